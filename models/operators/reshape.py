"""Reshape and Transpose: the same elements along other axes.

Where as many elements come before the axis of the rows as before that of the output's, both axes
are in the same order, and the rows fall into as many parts as their numbers have in common: of
tokens (1, H x W, C), each W are a row of the map.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from models.graph.graph import ROWS
from models.operators.constants import first_only
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.boxes import Box, Span

if TYPE_CHECKING:
    from models.graph.graph import Graph, Node


class Same(NamedTuple):
    """Rows [k x read, (k + 1) x read) along axis `source` of the input become rows
    [k x made, (k + 1) x made) along axis `target` of the output.
    """

    source: int
    target: int
    read: int
    made: int


def same_rows(graph: "Graph", node: "Node") -> Same | None:
    """How a Reshape keeps rows; None if it does not."""
    name, made = node.inputs[0], node.outputs[0]
    source, target = graph.axis(name, ROWS), graph.axis(made, ROWS)
    if source is None or target is None:
        return None
    shape, out = graph.shape(name), graph.shape(made)
    parts = math.gcd(shape[source], out[target])
    if parts < 2 or math.prod(shape[:source]) != math.prod(out[:target]):
        return None
    return Same(source, target, shape[source] // parts, out[target] // parts)


def _reads(graph: "Graph", node: "Node", box: Box) -> Boxes:
    whole, same = Box.whole(graph.shape(node.inputs[0])), same_rows(graph, node)
    if same is not None:
        rows = box[same.target]
        read = Span(rows.start // same.made * same.read, -(-rows.stop // same.made) * same.read)
        whole = whole.replace(same.source, read)
    return first_only(node, whole)


def _yields(graph: "Graph", node: "Node", box: Box) -> Box:
    """All of the parts that hold a demanded row."""
    whole, same = Box.whole(graph.shape(node.outputs[0])), same_rows(graph, node)
    if same is None:
        return whole
    rows, made = box[same.target], same.made
    return whole.replace(same.target, Span(rows.start // made * made, -(-rows.stop // made) * made))


def _build(piece: BoxPiece, program: Emitter) -> None:
    """The number of rows is what remains, so that tiles share a program."""
    shape = list(piece.output.shape)
    axis = piece.graph.axis(piece.name, ROWS)
    if axis is not None:
        shape[axis] = -1
    label = program.constant(f"{piece.name}__shape", np.array(shape, dtype=np.int64))
    program.emit("Reshape", [piece.inputs[0], label], piece.name)


def _transposed(graph: "Graph", node: "Node", box: Box) -> Boxes:
    order = node.ints("perm", reversed(range(len(graph.shape(node.inputs[0])))))
    spans = sorted(zip(order, box, strict=True))
    return (Box([span for _, span in spans]),)


def _in_parts(graph: "Graph", node: "Node") -> tuple[int, int] | None:
    same = same_rows(graph, node)
    return None if same is None else (same.made, same.read)


_RESHAPE = Operator(Kind.LAYOUT, "concat", _reads, yields=_yields, build=_build, in_parts=_in_parts)

RESHAPE = {
    **dict.fromkeys(["Flatten", "Reshape", "Squeeze", "Unsqueeze"], _RESHAPE),
    "Transpose": Operator(Kind.LAYOUT, "concat", _transposed, aligned=True),
}
