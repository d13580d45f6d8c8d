"""GridSample: every output element reads anywhere in its channel, as deformable attention does."""

from typing import TYPE_CHECKING

from models.operators.declaration import Boxes, Kind, Operator
from models.tensors.boxes import Box, Span

if TYPE_CHECKING:
    from models.graph.graph import Graph, Node


def _reads(graph: "Graph", node: "Node", box: Box) -> Boxes:
    """The whole map of the same channels, and the same places of the grid."""
    shape = graph.shape(node.inputs[0])
    sampled = Box((box[0], box[1], *(Span(0, size) for size in shape[2:])))
    return (sampled, Box((box[0], *box[2:], Span(0, len(shape) - 2))))


def _flop(graph: "Graph", node: "Node", output: Box) -> int:
    """Linear interpolation of four neighbours."""
    return 8 * output.volume


SAMPLE = {"GridSample": Operator(Kind.RESAMPLING, "resize", _reads, flop=_flop, aligned=True)}
