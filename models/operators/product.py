"""Products of matrices in tensors, as in attention: rows of A, columns of B, and each matrix of the
batch on its own. A product of two matrices with constant B is a Gemm.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.operators.declaration import Boxes, Kind, Operator
from models.operators.pointwise import project
from models.tensors.boxes import Box, Span

if TYPE_CHECKING:
    from models.graph.graph import Graph, Node


def factors(a: Sequence[int], b: Sequence[int], box: Box) -> tuple[Box, Box]:
    """What a box of a product reads of its factors, of shapes `a` and `b`."""
    batch, summed = Box(box[:-2]), Span(0, a[-1])
    return (
        Box((*project(batch, a[:-2]), box[-2], summed)),
        Box((*project(batch, b[:-2]), summed, box[-1])),
    )


def _reads(graph: "Graph", node: "Node", box: Box) -> Boxes:
    a, b = (graph.shape(name) for name in node.inputs)
    return factors(a, b, box)


def _flop(graph: "Graph", node: "Node", output: Box) -> int:
    return 2 * graph.shape(node.inputs[0])[-1] * output.volume


def _refuses(graph: "Graph", node: "Node") -> str:
    vectors = any(len(graph.shape(name)) < 2 for name in node.inputs)
    return f"{node.op} multiplies by a vector" if vectors else ""


PRODUCT = {
    "MatMul": Operator(
        Kind.MIXING, "product", _reads, flop=_flop, refuses=_refuses, heavy=True, aligned=True
    )
}
