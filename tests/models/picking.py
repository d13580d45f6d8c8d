"""Small detectors that pick their boxes themselves, as YOLO26 and YOLOv10 are exported."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.models.attention import Net

SCORES, ROWS, SIDE = 3, 6, 16
# Two maps: 8 x 8 and 4 x 4 boxes.
ENTRIES = 64 + 16
FAULTS = (
    *("smallest", "unsorted", "other scores", "another divisor", "boxes by class", "squares"),
    *("products", "scores of all"),
)


def detector(
    fault: str = "", *, twice: bool = False, more: int = 0, scores: int = SCORES, side: int = SIDE
) -> onnx.ModelProto:
    """Boxes of an image (1, 3, side, side), as rows (1, ROWS, 6 + more). `fault` makes it pick
    otherwise; `twice`: boxes are taken in two steps, as YOLOv10 does.
    """
    net = Net(1, 3, side, side)
    near = net.add("Relu", net.conv("x", 3, 8, 3, 2))
    far = net.add("Relu", net.conv(near, 8, 8, 3, 2))
    values = 4 + scores + more
    flat = [net.reshape(net.conv(each, 8, values), 1, values, -1) for each in (near, far)]
    sizes = [4, scores] + [more] * (more > 0)
    cuts = net.ints(2, 2, *sizes[1:])
    raw = net.several("Split", net.add("Concat", *flat, axis=2), cuts, count=1 + len(sizes), axis=1)
    half = net.constant(np.array(side / 2, np.float32))
    low, size = (net.add("Mul", net.add("Sigmoid", each), half) for each in raw[:2])
    high = net.add("Add", low, size)
    joined = net.add("Concat", low, high, net.add("Sigmoid", raw[2]), *raw[3:], axis=1)
    rows = net.add("Transpose", joined, perm=[0, 2, 1])
    boxes, likely, *others = net.several("Split", rows, net.ints(*sizes), count=len(sizes), axis=2)
    return net.model(_picked(net, fault, twice, boxes, likely, others, scores))


def _picked(
    net: Net, fault: str, twice: bool, boxes: str, scores: str, others: list[str], many: int
) -> str:
    ranked = net.add("Mul", scores, scores) if fault == "squares" else scores
    best = net.add("ReduceMax", ranked, axes=[2], keepdims=0)
    kind = {"largest": int(fault != "smallest"), "sorted": int(fault != "unsorted")}
    _, first = net.several("TopK", best, net.ints(ROWS), count=2, axis=1, **kind)
    column = net.add("Unsqueeze", first, net.ints(2))

    def taken(source: str, index: str, width: int) -> str:
        wide = net.add("Expand", index, net.ints(1, ROWS, width))
        return net.add("GatherElements", source, wide, axis=1)

    of_these = ranked
    if fault != "scores of all":
        of_these = taken(boxes if fault == "other scores" else ranked, column, many)
    list_ = net.add("Flatten", of_these, axis=1)
    score, second = net.several("TopK", list_, net.ints(ROWS), count=2, axis=1)
    count = net.constant(np.array(many, np.int64))
    divisor = net.constant(np.array(many + 1, np.int64)) if fault == "another divisor" else count
    place = net.add("Div", second, divisor)
    label = net.add("Mod", second, count)
    if fault == "boxes by class":
        place = label
    places = net.add("Unsqueeze", place, net.ints(2))
    if twice:
        picked = [taken(taken(each, column, w), places, w) for each, w in _widths(boxes, others)]
    else:
        entry = net.add("Unsqueeze", net.add("GatherElements", first, place, axis=1), net.ints(2))
        picked = [taken(each, entry, w) for each, w in _widths(boxes, others)]
    if fault == "products":
        picked[0] = net.add("Mul", picked[0], net.add("Unsqueeze", score, net.ints(2)))
    named = net.add("Cast", net.add("Unsqueeze", label, net.ints(2)), to=TensorProto.FLOAT)
    shown = net.add("Unsqueeze", score, net.ints(2))
    return net.add("Concat", picked[0], shown, named, *picked[1:], axis=2)


def _widths(boxes: str, others: list[str]) -> list[tuple[str, int]]:
    return [(boxes, 4), *((each, 2) for each in others)]
