"""What networks with attention, windows and detectors' heads do to rows."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from tests.models.proposals.mixing import LEAST_SPREAD
from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from


def _chain(drawing: Drawing, source: str, *steps: Proposed) -> str | None:
    """Nodes, each of which reads the one before; None as soon as one is refused."""
    name: str | None = source
    for step in steps:
        made = drawing.add(Proposed(step.op, [str(name), *step.inputs], step.attributes))
        name = made[0] if made else None
        if name is None:
            return None
    return name


def _flat(draw: Draw, drawing: Drawing, source: str) -> str | None:
    """A map (1, C, H, W) as (1, C, H x W), or (C, H x W)."""
    _, c, h, w = drawing.values[source].shape
    if draw(st.booleans()):
        return _chain(drawing, source, Proposed("Reshape", [drawing.ints(1, c, h * w)]))
    made = _chain(drawing, source, Proposed("Flatten", [], {"axis": 2}))
    return made and _chain(drawing, made, Proposed("Reshape", [drawing.ints(1, c, h * w)]))


def tokens(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A map as tokens, before or behind their features."""
    if drawing.values[source].ndim != 4:
        return None
    flat = _flat(draw, drawing, source)
    if flat is None or draw(st.booleans()):
        return flat and Proposed("Identity", [flat])
    return Proposed("Transpose", [flat], {"perm": [0, 2, 1]})


def groups(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A map's channels, normalised in groups as if each were one channel of a list."""
    values = drawing.values[source]
    even = values.std(axis=tuple(range(2, values.ndim))) < LEAST_SPREAD * np.abs(values).max()
    if values.ndim != 4 or even.any():
        return None
    count = draw(Pick([each for each in (1, 2, 3, values.shape[1]) if values.shape[1] % each == 0]))
    parts = [drawing.floats(count), drawing.floats(count)]
    normalised = _chain(
        drawing,
        source,
        Proposed("Reshape", [drawing.ints(0, count, -1)]),
        Proposed("InstanceNormalization", parts, {"epsilon": 1e-2}),
    )
    return normalised and Proposed("Reshape", [normalised, drawing.ints(*values.shape)])


def attention(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Of tokens (N, S, C) or (N, C, S) to each other, in heads, over either axis; a map's pixels
    are tokens.
    """
    if drawing.values[source].ndim == 4:
        flat = _flat(draw, drawing, source)
        turned = Proposed("Transpose", [], {"perm": [0, 2, 1]})
        tokens = _chain(drawing, flat, turned) if flat and draw(st.booleans()) else flat
        if tokens is None:
            return None
        source = tokens
    shape = drawing.values[source].shape
    if len(shape) != 3 or max(shape) > 128:
        return None
    batch, first, second = shape
    heads = draw(Pick([each for each in (1, 2, 3) if second % each == 0]))
    apart = Proposed("Reshape", [drawing.ints(batch, first, heads, second // heads)])
    made = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        scaled = draw(Pick(["Sigmoid", "Tanh", "Neg"]))
        made.append(
            _chain(
                drawing,
                source,
                Proposed(scaled, []),
                apart,
                Proposed("Transpose", [], {"perm": order}),
            )
        )
    q, k, v = made
    if q is None or k is None or v is None:
        return None
    mixed = _chain(
        drawing,
        q,
        Proposed("MatMul", [k]),
        Proposed("Softmax", [], {"axis": 3}),
        Proposed("MatMul", [v]),
        Proposed("Transpose", [], {"perm": [0, 2, 1, 3]}),
    )
    return mixed and Proposed("Reshape", [mixed, drawing.ints(batch, first, second)])


def tail(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Maps of several scales in one list, and some of what follows."""
    lists = []
    shape = drawing.values[source].shape
    channels = shape[1] if len(shape) > 1 else 0
    for name, array in list(drawing.values.items()):
        if array.ndim == 4 and array.shape[1] == channels and array.dtype.name == "float32":
            size = math.prod(array.shape[2:])
            flat = _chain(drawing, name, Proposed("Reshape", [drawing.ints(1, channels, size)]))
            lists += [flat] if flat else []
        if len(lists) == 3:
            break
    if len(lists) < 2:
        return None
    last = draw(st.booleans())
    if not last:
        turned = (
            _chain(drawing, each, Proposed("Transpose", [], {"perm": [0, 2, 1]})) for each in lists
        )
        lists = [each for each in turned if each]
    joined = drawing.add(Proposed("Concat", lists, {"axis": 2 if last else 1}))
    if joined is None:
        return None
    shape = drawing.values[joined[0]].shape
    steps = [
        Proposed("Sigmoid", []),
        Proposed("Mul", [drawing.floats(*(shape if draw(st.booleans()) else (shape[-1],)))]),
        Proposed("Softmax", [], {"axis": draw(Pick([1, 2]))}),
        Proposed("Transpose", [], {"perm": [0, 2, 1]}),
    ]
    chosen = draw(st.lists(Pick(range(len(steps))), max_size=3, unique=True))
    made = _chain(drawing, joined[0], *(steps[k] for k in chosen))
    return made and Proposed("Neg", [made])


def detector(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A YOLO's end of one map or several: places from the distribution of distances, boxes about
    them, and scores.
    """
    bins = draw(st.integers(1, 3))
    channels = 4 * bins + draw(st.integers(1, 3))
    maps = [name for name, array in drawing.values.items() if array.ndim == 4]
    flat = []
    for name in draw(st.lists(Pick(maps), min_size=1, max_size=3)) if maps else []:
        weights = drawing.floats(channels, drawing.values[name].shape[1], 1, 1)
        made = _chain(drawing, name, Proposed("Conv", [weights]))
        flat += filter(None, [made and _flat(draw, drawing, made)])
    count = sum(drawing.values[each].shape[2] for each in flat)
    joined = drawing.add(Proposed("Concat", flat, {"axis": 2})) if flat else None
    if joined is None:
        return None

    def part(of: str, start: int, stop: int) -> str | None:
        if drawing.opset < 10:
            cut = Proposed("Slice", [], {"starts": [start], "ends": [stop], "axes": [1]})
        else:
            cut = Proposed("Slice", [drawing.ints(start), drawing.ints(stop), drawing.ints(1)])
        return _chain(drawing, of, cut)

    raw, scores = part(joined[0], 0, 4 * bins), part(joined[0], 4 * bins, channels)
    distances = raw and _chain(
        drawing,
        raw,
        Proposed("Reshape", [drawing.ints(1, 4, bins, count)]),
        Proposed("Transpose", [], {"perm": [0, 3, 1, 2]}),
        Proposed("Softmax", [], {"axis": 3}),
        Proposed("Transpose", [], {"perm": [0, 3, 2, 1]}),
        Proposed("Conv", [drawing.floats(1, bins, 1, 1)]),
        Proposed("Reshape", [drawing.ints(1, 4, count)]),
    )
    likely = scores and _chain(drawing, scores, Proposed("Sigmoid", []))
    before, after = (distances and part(distances, k, k + 2) for k in (0, 2))
    if not before or not after or not likely:
        return None
    anchors = drawing.floats(1, 2, count)
    low = drawing.add(Proposed("Sub", [anchors, before]))
    high = drawing.add(Proposed("Add", [after, anchors]))
    boxes = low and high and drawing.add(Proposed("Concat", [*low, *high], {"axis": 1}))
    scaled = boxes and drawing.add(Proposed("Mul", [*boxes, drawing.floats(1, count)]))
    return scaled and Proposed("Concat", [*scaled, likely], {"axis": 1})


def windows(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A map cut into windows, each a batch of tokens, and perhaps put together again."""
    shape = drawing.values[source].shape
    if len(shape) != 4:
        return None
    _, c, h, w = shape
    sizes = [each for each in (2, 3, 4) if h % each == 0 and w % each == 0]
    if not sizes:
        return None
    size = draw(Pick(sizes))
    cut = drawing.ints(1, c, h // size, size, w // size, size)
    count = h // size * (w // size)
    made = _chain(
        drawing,
        source,
        Proposed("Reshape", [cut]),
        Proposed("Transpose", [], {"perm": [0, 2, 4, 3, 5, 1]}),
        Proposed("Reshape", [drawing.ints(count, size * size, c)]),
    )
    if made is None or draw(st.booleans()):
        return made and Proposed("Identity", [made])
    attending = attention(draw, drawing, made)
    mixed = drawing.add(attending) if attending else None
    whole = mixed and _chain(
        drawing,
        mixed[0],
        Proposed("Reshape", [drawing.ints(1, h // size, w // size, size, size, c)]),
        Proposed("Transpose", [], {"perm": [0, 5, 1, 3, 2, 4]}),
    )
    return whole and Proposed("Reshape", [whole, drawing.ints(1, c, h, w)])


def roll(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """The rows or columns from somewhere on, then those before."""
    array = drawing.values[source]
    axis = draw(st.integers(1, array.ndim - 1))
    size = array.shape[axis]
    if drawing.opset < 10 or size < 2:
        return None
    at = draw(st.integers(1, size - 1))
    ends = ((at, size), (0, at)) if draw(st.integers(0, 3)) else ((0, at), (at, size))
    parts = [
        _chain(
            drawing,
            source,
            Proposed("Slice", [drawing.ints(start), drawing.ints(stop), drawing.ints(axis)]),
        )
        for start, stop in ends
    ]
    found = [each for each in parts if each]
    return Proposed("Concat", found, {"axis": axis}) if len(found) == 2 else None


def grid_sample(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """At places that are constant, or computed."""
    shape = drawing.values[source].shape
    if len(shape) != 4:
        return None
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    places = drawing.floats(shape[0], rows, columns, 2, low=-1.0, high=1.0)
    if draw(st.booleans()):
        found = drawing.add(Proposed("Reshape", [source, drawing.ints(shape[0], -1)]))
        mean = found and drawing.add(Proposed("Sigmoid", found))
        if mean and drawing.values[mean[0]].shape[1] >= 2 * shape[2]:
            part = Proposed("Slice", [drawing.ints(0), drawing.ints(2 * shape[2]), drawing.ints(1)])
            cut = _chain(drawing, mean[0], part)
            made = cut and _chain(
                drawing, cut, Proposed("Reshape", [drawing.ints(shape[0], shape[2], 1, 2)])
            )
            places = made or places
    more = {
        "align_corners": draw(st.integers(0, 1)),
        "padding_mode": draw(Pick(["zeros", "border"])),
    }
    return Proposed("GridSample", [source, places], more)


ROWS = {
    "tokens": tokens,
    "groups": groups,
    "attention": attention,
    "tail": tail,
    "detector": detector,
    "windows": windows,
    "roll": roll,
    "grid sample": grid_sample,
}
