"""Rolling: rows from `shift` on, then those before it, as one operator of imbrex.

Swin shifts its windows so. A tile at the end reads the last rows and the first, which one box
cannot hold without all between: so the node reads the first rows from a copy of its input, a tensor
of its own.
"""

from typing import TYPE_CHECKING

from models.operators.arrange import DOMAIN
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.boxes import Box, Span

if TYPE_CHECKING:
    from models.graph.graph import Graph, Node

OP = "Roll"


def _reads(graph: "Graph", node: "Node", box: Box) -> Boxes:
    """Of the input and of its copy; None where nothing is read."""
    axis, shift = node.int("axis", 0), node.int("shift", 0)
    size = graph.shape(node.inputs[0])[axis]
    start, stop = box[axis].start + shift, box[axis].stop + shift
    spans = (
        Span(start, stop).intersect(Span(shift, size)),
        Span(max(0, start - size), stop - size),
    )
    return tuple(box.replace(axis, span) if len(span) else None for span in spans)


def _build(piece: BoxPiece, program: Emitter) -> None:
    write_joined(piece, program, piece.node.int("axis", 0))


def write_joined(piece: BoxPiece, program: Emitter, axis: int) -> None:
    """Joins what a tile reads, which may be of some inputs only."""
    read = [name for name in piece.inputs if name]
    if len(read) == 1:
        program.emit("Identity", read, piece.name)
    else:
        program.emit("Concat", read, piece.name, axis=axis)


ROLL = {f"{DOMAIN}.{OP}": Operator(Kind.LAYOUT, "concat", _reads, build=_build, heavy=True)}
