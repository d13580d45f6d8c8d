"""Operators that need all of one axis, or all of the map."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from
# Of a channel that is all but even, only rounding would be normalised.
LEAST_SPREAD = 0.01


def over_channels(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    op = draw(Pick(["Softmax", "LogSoftmax", "LRN", "LpNormalization", "Hardmax"]))
    if op == "LRN":
        given = {"size": draw(Pick([3, 5])), "alpha": 0.1, "beta": draw(Pick([0.5, 0.75]))}
        return Proposed(op, [source], given | {"bias": draw(Pick([1.0, 2.0]))})
    axis = {"axis": draw(Pick([1, 1, 2, -1]))}
    # The last bit decides who is the largest, but not of the network's own input.
    return Proposed(op, ["x" if op == "Hardmax" else source], axis)


def statistics(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A normalisation over the map, or a reduction of it."""
    values = drawing.values[source]
    spread = values.std(axis=tuple(range(2, values.ndim)))
    if (spread < LEAST_SPREAD * np.abs(values).max()).any():
        return None
    channels = values.shape[1]
    parts = [drawing.floats(channels), drawing.floats(channels)]
    op = draw(Pick(["InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"]))
    if op == "MeanVarianceNormalization":
        return Proposed(op, [source], {"axes": draw(Pick([[0, 2, 3], [2, 3], [0, 1, 2, 3]]))})
    attributes: dict[str, object] = {"epsilon": 1e-2}
    if op == "GroupNormalization":
        groups = draw(Pick([g for g in (1, 2, 3, channels) if channels % g == 0]))
        attributes["num_groups"] = groups
        if drawing.opset < 21:
            parts = [drawing.floats(groups), drawing.floats(groups)]
    return Proposed(op, [source, *parts], attributes)


def layer_norm(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, -1, 2]))
    shape = drawing.values[source].shape[axis:]
    inputs = [source, drawing.floats(*shape), drawing.floats(*shape)]
    more = {"axis": axis, "epsilon": 1e-2}
    if drawing.opset >= 23 and draw(st.booleans()):
        return Proposed("RMSNormalization", inputs[:2], more)
    return Proposed("LayerNormalization", inputs[: draw(st.integers(2, 3))], more)


def reduction(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    ops = "Mean Max Min Sum L1 L2 LogSum LogSumExp SumSquare Prod"
    op = draw(Pick(ops.split()))
    axes = draw(Pick([[2, 3], [-1, -2], [1], [2], [3], [1, 2, 3]]))
    if max(axes) >= rank:
        return None
    keeps = {"keepdims": draw(Pick([1, 1, 1, 0]))}
    if op == "LogSum":  # of numbers beyond 1 alone is it defined, and nowhere zero
        found = drawing.add(Proposed("Sigmoid", [source]))
        more = drawing.weight(np.float32(1.1))
        found = found and drawing.add(Proposed("Add", [*found, more]))
        if not found:
            return None
        source = found[0]
    if drawing.opset >= (13 if op == "Sum" else 18):
        return Proposed(f"Reduce{op}", [source, drawing.ints(*axes)], keeps)
    return Proposed(f"Reduce{op}", [source], {"axes": axes, **keeps})


def arg(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    more = {"axis": draw(Pick([1, 1, 2])), "keepdims": draw(Pick([1, 0]))}
    return Proposed(draw(Pick(["ArgMax", "ArgMin"])), ["x"], more)


def global_pool(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    return Proposed(draw(Pick(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])), [source])


def product(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A fully connected layer behind a Flatten, or a product along the last axis."""
    array = drawing.values[source]
    if draw(st.booleans()):
        return Proposed(
            "MatMul", [source, drawing.floats(array.shape[-1], draw(st.integers(1, 5)))]
        )
    flat = drawing.add(Proposed("Flatten", [source]))
    if flat is None:
        return None
    inner = drawing.values[flat[0]].shape[1]
    if draw(st.booleans()):
        return Proposed("MatMul", [flat[0], drawing.floats(inner, 3)])
    turned = draw(st.integers(0, 1))
    weights = drawing.floats(*((3, inner) if turned else (inner, 3)))
    bias = draw(Pick([(3,), (1, 3), (1,)]))
    given = {"transB": turned, "alpha": draw(Pick([1.0, 1.0, 0.5])), "beta": draw(Pick([1.0, 2.0]))}
    return Proposed("Gemm", [flat[0], weights, drawing.floats(*bias)], given)


MIXING = {
    "over channels": over_channels,
    "statistics": statistics,
    "layer norm": layer_norm,
    "reduction": reduction,
    "arg": arg,
    "global pool": global_pool,
    "product": product,
}
