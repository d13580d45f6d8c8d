"""Quantised operators. Scales and zero points are one for all, or one per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.boxes import Box
from models.operators.declaration import Boxes, Kind, Operator

if TYPE_CHECKING:
    from models.graph import Graph, Node


def _linear(graph: Graph, node: Node, box: Box) -> Boxes:
    axis = node.int("axis", 1) % len(box) if len(box) else 0
    reads: list[Box | None] = [box]
    for name in node.inputs[1:]:
        shape = graph.shape(name) if name else ()
        per_axis = len(shape) == 1 and shape[0] > 1
        reads.append(Box((box[axis],)) if per_axis else Box.whole(shape) if name else None)
    return tuple(reads)


def _linear_refuses(graph: Graph, node: Node) -> str:
    return f"{node.op} in blocks is not divided" if node.int("block_size", 0) else ""


_LINEAR = Operator(Kind.POINTWISE, "elementwise", _linear, refuses=_linear_refuses)

QUANTISED = {"QuantizeLinear": _LINEAR, "DequantizeLinear": _LINEAR}
