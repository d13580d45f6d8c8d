"""Operators that choose, repeat or blend elements along axes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from


def concat(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, 1, 2, -1]))
    shape = list(drawing.values[source].shape)
    shape[axis] = 0
    others = []
    for name, array in drawing.values.items():
        other = list(array.shape)
        if len(other) == len(shape) and array.dtype == drawing.values[source].dtype:
            other[axis] = 0
            others += [name] if other == shape else []
    return Proposed("Concat", [source, *draw(st.lists(Pick(others), max_size=2))], {"axis": axis})


def split(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, 1, 2, 3]))
    if axis >= drawing.values[source].ndim:
        return None
    size = drawing.values[source].shape[axis]
    parts = draw(Pick([n for n in (2, 3, 4) if size % n == 0 or n == 2]))
    first = draw(st.integers(1, max(1, size - 1)))
    sizes = [size // parts] * parts if size % parts == 0 else [first, size - first]
    if drawing.opset < 13:
        return Proposed("Split", [source], {"axis": axis, "split": sizes}, outputs=len(sizes))
    return Proposed("Split", [source, drawing.ints(*sizes)], {"axis": axis}, outputs=len(sizes))


def slice_(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    axes = draw(st.lists(st.integers(1, rank - 1), min_size=1, max_size=2, unique=True))
    starts = [draw(st.integers(-4, 5)) for _ in axes]
    ends = [draw(Pick([2**31 - 1, -1, 3, 8, -(2**31)])) for _ in axes]
    if drawing.opset < 10:
        return Proposed("Slice", [source], {"starts": starts, "ends": ends, "axes": axes})
    lists = [starts, ends, axes, [draw(Pick([1, 1, 2, 3, -1, -2])) for _ in axes]]
    return Proposed("Slice", [source, *(drawing.ints(*each) for each in lists)])


def gather(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, 2, -1]))
    size = drawing.values[source].shape[axis]
    picks = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=6))
    return Proposed("Gather", [source, drawing.ints(*picks)], {"axis": axis})


def tile(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    repeats = [1, *(draw(Pick([1, 1, 2])) for _ in drawing.values[source].shape[1:])]
    return Proposed("Tile", [source, drawing.ints(*repeats)])


def expand(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    shape = drawing.values[source].shape
    wanted = [size if size > 1 else draw(Pick([1, 3])) for size in shape]
    return Proposed("Expand", [source, drawing.ints(1, *wanted[1:])])


def pad(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    mode = draw(Pick(["constant", "reflect", "edge", "wrap"]))
    low = -1 if mode == "constant" else 0
    channels = draw(Pick([0, 0, 0, 1]))
    ends = [[0, channels, *(draw(st.integers(low, 3)) for _ in range(rank - 2))] for _ in "se"]
    pads = [*ends[0], *ends[1]]
    if drawing.opset < 11:
        return Proposed("Pad", [source], {"pads": pads, "mode": mode, "value": 0.25})
    value = [drawing.weight(np.float32(0.25))] if draw(st.booleans()) else []
    return Proposed("Pad", [source, drawing.ints(*pads), *value], {"mode": mode})


def resize(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    shape = drawing.values[source].shape
    rank = len(shape)
    mode = draw(Pick(["nearest", "linear"]))
    values = [1.0, 1.0, *(draw(Pick([2.0, 2.0, 1.0, 3.0, 0.5, 1.7, 4.0])) for _ in range(rank - 2))]
    scales = drawing.weight(np.array(values, dtype=np.float32))
    if drawing.opset < 9:
        return Proposed("Upsample", [source], {"mode": mode, "scales": values})
    if drawing.opset < 11:
        op = "Upsample" if drawing.opset < 10 else "Resize"
        return Proposed(op, [source, scales], {"mode": mode})
    how = [
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "half_pixel_symmetric",
    ]
    attributes: dict[str, object] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(Pick(how)),
    }
    if mode == "nearest":
        rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        attributes["nearest_mode"] = draw(Pick(rounding))
    roi = drawing.weight(np.zeros(0, np.float32))
    if draw(st.booleans()):
        return Proposed("Resize", [source, roi, scales], attributes)
    sizes = [max(1, int(size * v)) for size, v in zip(shape, values, strict=True)]
    extra = draw(st.integers(0, 2))
    sizes = [*sizes[:2], *(size + extra for size in sizes[2:])]
    empty = drawing.weight(np.zeros(0, np.float32))
    return Proposed("Resize", [source, roi, empty, drawing.ints(*sizes)], attributes)


INDEXING = {
    "concat": concat,
    "split": split,
    "slice": slice_,
    "gather": gather,
    "tile": tile,
    "expand": expand,
    "pad": pad,
    "resize": resize,
}
