"""Cutting boxes in proportion to devices' rates, but never through a group of channels."""

import math
from collections.abc import Sequence

from models.cut.tiles import weighted_spans
from models.cut.units import Unit
from models.graph.graph import CHANNELS, COLS, ROWS, Graph
from models.tensors.boxes import Box, Span


def owned_boxes(graph: Graph, unit: Unit, whole: Box, main: Box) -> dict[str, Box]:
    """A tile's boxes of all of the unit's outputs: the same relative part of each as `main` is of
    the main output's `whole`.
    """
    if len(unit.outputs) == 1:
        return {unit.outputs[0]: main}
    boxes = {}
    for name in unit.outputs:
        box = Box.whole(graph.shape(name))
        for which in (CHANNELS, ROWS, COLS):
            axis, of_main = graph.axis(name, which), graph.axis(unit.outputs[-1], which)
            if axis is not None and of_main is not None:
                # The same relative range; adjacent spans stay adjacent.
                span, size, other = main[of_main], len(whole[of_main]), len(box[axis])
                part = Span(-(-span.start * other // size), -(-span.stop * other // size))
                box = box.replace(axis, part)
        boxes[name] = box
    return boxes


def channel_step(graph: Graph, unit: Unit) -> int:
    """Output channels that cannot be separated: those of one group of a grouped convolution."""
    steps = [
        graph.shape(node.inputs[1])[0] // node.int("group", 1)
        for node in unit.nodes
        if node.op == "Conv" and node.int("group", 1) > 1
    ]
    return math.lcm(*steps)


def cut_span(span: Span, rates: Sequence[float], step: int = 1) -> tuple[Span, ...]:
    """A span in parts in proportion to rates, cut at multiples of `step` from its start."""
    size = len(span)
    if size % step:
        return (span, *(Span(span.stop, span.stop) for _ in rates[1:]))
    parts = weighted_spans(size // step, rates)
    return tuple(Span(span.start + p.start * step, span.start + p.stop * step) for p in parts)


def nested(
    box: Box, steps: Sequence[tuple[int, int, int]], rates: Sequence[float]
) -> list[Box] | None:
    """A box cut along one axis after the other, each (axis, degree, step) within the parts of the
    previous one and at multiples of the step, so that device i's part is in proportion to
    `rates[i]`. None if a part would be empty.
    """
    if not steps:
        return [box]
    (axis, degree, step), rest = steps[0], steps[1:]
    if degree == 1:
        return nested(box, rest, rates)
    size = len(rates) // degree
    shares = [rates[i * size : (i + 1) * size] for i in range(degree)]
    spans = cut_span(box[axis], [sum(share) for share in shares], step)
    found: list[Box] = []
    for span, share in zip(spans, shares, strict=True):
        inner = nested(box.replace(axis, span), rest, share) if len(span) else None
        if inner is None:
            return None
        found += inner
    return found
