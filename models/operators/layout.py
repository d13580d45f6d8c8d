"""Operators that move elements between rows, columns and channels.

Reshape and Transpose: where as many elements come before the axis of the rows as before that of the
output's, both axes are in the same order, and the rows fall into as many parts as their numbers
have in common: of tokens (1, H x W, C), each W are a row of the map.

Rolling: rows from `shift` on, then those before it, as one operator of imbrex. Swin shifts its
windows so. A tile at the end reads the last rows and the first, which one box cannot hold without
all between: so the node reads the first rows from a copy of its input, a tensor of its own.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from models.graph.graph import ROWS, Graph, Node
from models.operators.arrange import DOMAIN
from models.operators.constants import first_only
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.boxes import Box, Span

ROLL_OP = "Roll"


class _SameRows(NamedTuple):
    """Rows [k x read, (k + 1) x read) along axis `source` of the input become rows
    [k x made, (k + 1) x made) along axis `target` of the output.
    """

    source: int
    target: int
    read: int
    made: int


def _concat_axis(node: Node, box: Box) -> int:
    return node.int("axis", 1) % len(box)


def _joins_rows(graph: Graph, node: Node, axis: int) -> bool:
    return axis == graph.axis(node.outputs[0], ROWS)


def _concat(graph: Graph, node: Node, box: Box) -> Boxes:
    return of_joined(graph, node, node.inputs, box)


def of_joined(graph: Graph, node: Node, names: Sequence[str], box: Box) -> Boxes:
    """What a box reads of the tensors that a node joins: of rows, those that hold some of the box;
    of channels, all.
    """
    axis = _concat_axis(node, box)
    sizes = [graph.shape(name)[axis] for name in names]
    if not _joins_rows(graph, node, axis):
        return tuple(box.replace(axis, Span(0, size)) for size in sizes)
    starts = itertools.accumulate(sizes, initial=0)
    spans = [
        Span(box[axis].start - start, box[axis].stop - start).intersect(Span(0, size))
        for start, size in zip(starts, sizes, strict=False)
    ]
    return tuple(box.replace(axis, span) if len(span) else None for span in spans)


def _build_concat(piece: BoxPiece, program: Emitter) -> None:
    _write_joined(piece, program, _concat_axis(piece.node, piece.output))


def joined(graph: Graph, node: Node, box: Box) -> Box:
    """Any rows, but all inputs joined along another axis."""
    axis = _concat_axis(node, box)
    if _joins_rows(graph, node, axis):
        return box
    return box.replace(axis, Span(0, graph.shape(node.outputs[0])[axis]))


def _space_to_depth(graph: Graph, node: Node, box: Box) -> Boxes:
    block = node.int("blocksize", 1)
    channels = Span(0, graph.shape(node.inputs[0])[1])
    rows, cols = (Span(s.start * block, s.stop * block) for s in box[2:])
    return (Box((box[0], channels, rows, cols)),)


def whole_channels(graph: Graph, node: Node, box: Box) -> Box:
    """All channels of a demanded box."""
    return box.replace(1, Span(0, graph.shape(node.outputs[0])[1]))


def _depth_to_space(graph: Graph, node: Node, box: Box) -> Boxes:
    block = node.int("blocksize", 1)
    channels = Span(0, graph.shape(node.inputs[0])[1])
    rows, cols = (Span(s.start // block, s.stop // block) for s in box[2:])
    return (Box((box[0], channels, rows, cols)),)


def _whole_blocks(graph: Graph, node: Node, box: Box) -> Box:
    """All channels, and the rows and columns that whole input elements become."""
    block = node.int("blocksize", 1)
    rows, cols = (Span(s.start // block * block, -(-s.stop // block) * block) for s in box[2:])
    return Box((box[0], Span(0, graph.shape(node.outputs[0])[1]), rows, cols))


def _rolled(graph: Graph, node: Node, box: Box) -> Boxes:
    """Of the input and of its copy; None where nothing is read."""
    axis, shift = node.int("axis", 0), node.int("shift", 0)
    size = graph.shape(node.inputs[0])[axis]
    start, stop = box[axis].start + shift, box[axis].stop + shift
    spans = (
        Span(start, stop).intersect(Span(shift, size)),
        Span(max(0, start - size), stop - size),
    )
    return tuple(box.replace(axis, span) if len(span) else None for span in spans)


def _build_roll(piece: BoxPiece, program: Emitter) -> None:
    _write_joined(piece, program, piece.node.int("axis", 0))


def _write_joined(piece: BoxPiece, program: Emitter, axis: int) -> None:
    """Joins what a tile reads, which may be of some inputs only."""
    read = [name for name in piece.inputs if name]
    if len(read) == 1:
        program.emit("Identity", read, piece.name)
    else:
        program.emit("Concat", read, piece.name, axis=axis)


def _same_rows(graph: Graph, node: Node) -> _SameRows | None:
    """How a Reshape keeps rows; None if it does not."""
    name, made = node.inputs[0], node.outputs[0]
    source, target = graph.axis(name, ROWS), graph.axis(made, ROWS)
    if source is None or target is None:
        return None
    shape, out = graph.shape(name), graph.shape(made)
    parts = math.gcd(shape[source], out[target])
    if parts < 2 or math.prod(shape[:source]) != math.prod(out[:target]):
        return None
    return _SameRows(source, target, shape[source] // parts, out[target] // parts)


def _reshape(graph: Graph, node: Node, box: Box) -> Boxes:
    whole, same = Box.whole(graph.shape(node.inputs[0])), _same_rows(graph, node)
    if same is not None:
        rows = box[same.target]
        read = Span(rows.start // same.made * same.read, -(-rows.stop // same.made) * same.read)
        whole = whole.replace(same.source, read)
    return first_only(node, whole)


def _reshape_yields(graph: Graph, node: Node, box: Box) -> Box:
    """All of the parts that hold a demanded row."""
    whole, same = Box.whole(graph.shape(node.outputs[0])), _same_rows(graph, node)
    if same is None:
        return whole
    rows, made = box[same.target], same.made
    return whole.replace(same.target, Span(rows.start // made * made, -(-rows.stop // made) * made))


def _build_reshape(piece: BoxPiece, program: Emitter) -> None:
    """The number of rows is what remains, so that tiles share a program."""
    shape = list(piece.output.shape)
    axis = piece.graph.axis(piece.name, ROWS)
    if axis is not None:
        shape[axis] = -1
    label = program.constant(f"{piece.name}__shape", np.array(shape, dtype=np.int64))
    program.emit("Reshape", [piece.inputs[0], label], piece.name)


def _transposed(graph: Graph, node: Node, box: Box) -> Boxes:
    order = node.ints("perm", reversed(range(len(graph.shape(node.inputs[0])))))
    spans = sorted(zip(order, box, strict=True))
    return (Box([span for _, span in spans]),)


def _in_parts(graph: Graph, node: Node) -> tuple[int, int] | None:
    same = _same_rows(graph, node)
    return None if same is None else (same.made, same.read)


_RESHAPE = Operator(
    Kind.LAYOUT,
    "concat",
    _reshape,
    yields=_reshape_yields,
    build=_build_reshape,
    in_parts=_in_parts,
)
_ROLL = Operator(Kind.LAYOUT, "concat", _rolled, build=_build_roll, heavy=True)

LAYOUT = {
    **dict.fromkeys(["Flatten", "Reshape", "Squeeze", "Unsqueeze"], _RESHAPE),
    "Transpose": Operator(Kind.LAYOUT, "concat", _transposed, aligned=True),
    f"{DOMAIN}.{ROLL_OP}": _ROLL,
    "Concat": Operator(Kind.LAYOUT, "concat", _concat, yields=joined, build=_build_concat),
    "SpaceToDepth": Operator(Kind.LAYOUT, "concat", _space_to_depth, yields=whole_channels),
    "DepthToSpace": Operator(Kind.LAYOUT, "concat", _depth_to_space, yields=_whole_blocks),
}
