"""Quantised operators of ONNX and onnxruntime. Scales and zero points are per tensor or per
channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.boxes import Box, Span
from models.operators.declaration import Boxes, Kind, Operator
from models.operators.layout import joined
from models.operators.windowed import per_output_channel

if TYPE_CHECKING:
    from models.graph import Graph, Node


def _linear(graph: Graph, node: Node, box: Box) -> Boxes:
    along = box[node.int("axis", 1) % len(box)] if len(box) else Span(0, 1)
    return (box, *(per_output_channel(graph, name, along) for name in node.inputs[1:]))


def _linear_refuses(graph: Graph, node: Node) -> str:
    return f"blocked {node.op} is not divided" if node.int("block_size", 0) else ""


def _concat(graph: Graph, node: Node, box: Box) -> Boxes:
    """Output scale and zero point, then each operand with its own."""
    axis = node.int("axis", 1) % len(box)
    reads = [Box.whole(graph.shape(name)) for name in node.inputs]
    for place in range(2, len(node.inputs), 3):
        reads[place] = box.replace(axis, Span(0, graph.shape(node.inputs[place])[axis]))
    return tuple(reads)


# The indices of QGemm's factors among its inputs.
_A, _B = 0, 3


def _gemm(graph: Graph, node: Node, box: Box) -> Boxes:
    """Rows of A by columns of B; inputs with one value per column follow the columns."""
    rows, cols = box.spans
    whole = Span(0, _inner(graph, node))
    reads: list[Box | None] = [per_output_channel(graph, name, cols) for name in node.inputs]
    reads[_A] = Box((whole, rows)) if node.int("transA", 0) else Box((rows, whole))
    reads[_B] = Box((cols, whole)) if node.int("transB", 0) else Box((whole, cols))
    return tuple(reads)


def _inner(graph: Graph, node: Node) -> int:
    return graph.shape(node.inputs[_A])[0 if node.int("transA", 0) else 1]


def _gemm_flop(graph: Graph, node: Node, output: Box) -> int:
    return 2 * _inner(graph, node) * output.volume


_LINEAR = Operator(Kind.POINTWISE, "elementwise", _linear, refuses=_linear_refuses)
_CONCAT = Operator(Kind.LAYOUT, "concat", _concat, yields=joined)
_GEMM = Operator(Kind.MIXING, "fully_connected", _gemm, flop=_gemm_flop, heavy=True)

_WIDENING = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})

QUANTISED = {
    **dict.fromkeys(["QuantizeLinear", "com.microsoft.QuantizeLinear", *_WIDENING], _LINEAR),
    "com.microsoft.QLinearConcat": _CONCAT,
    "com.microsoft.QGemm": _GEMM,
}


def dequantises(node: Node) -> bool:
    """Whether a node only dequantises its input."""
    return node.op in _WIDENING
