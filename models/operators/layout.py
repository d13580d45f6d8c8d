"""Operators that move elements between rows, columns and channels."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.graph.graph import ROWS
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.operators.roll import write_joined
from models.tensors.boxes import Box, Span

if TYPE_CHECKING:
    from models.graph.graph import Graph, Node


def _concat_axis(node: "Node", box: Box) -> int:
    return node.int("axis", 1) % len(box)


def _joins_rows(graph: "Graph", node: "Node", axis: int) -> bool:
    return axis == graph.axis(node.outputs[0], ROWS)


def _concat(graph: "Graph", node: "Node", box: Box) -> Boxes:
    return of_joined(graph, node, node.inputs, box)


def of_joined(graph: "Graph", node: "Node", names: Sequence[str], box: Box) -> Boxes:
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
    write_joined(piece, program, _concat_axis(piece.node, piece.output))


def joined(graph: "Graph", node: "Node", box: Box) -> Box:
    """Any rows, but all inputs joined along another axis."""
    axis = _concat_axis(node, box)
    if _joins_rows(graph, node, axis):
        return box
    return box.replace(axis, Span(0, graph.shape(node.outputs[0])[axis]))


def _space_to_depth(graph: "Graph", node: "Node", box: Box) -> Boxes:
    block = node.int("blocksize", 1)
    channels = Span(0, graph.shape(node.inputs[0])[1])
    rows, cols = (Span(s.start * block, s.stop * block) for s in box[2:])
    return (Box((box[0], channels, rows, cols)),)


def whole_channels(graph: "Graph", node: "Node", box: Box) -> Box:
    """All channels of a demanded box."""
    return box.replace(1, Span(0, graph.shape(node.outputs[0])[1]))


def _depth_to_space(graph: "Graph", node: "Node", box: Box) -> Boxes:
    block = node.int("blocksize", 1)
    channels = Span(0, graph.shape(node.inputs[0])[1])
    rows, cols = (Span(s.start // block, s.stop // block) for s in box[2:])
    return (Box((box[0], channels, rows, cols)),)


def _whole_blocks(graph: "Graph", node: "Node", box: Box) -> Box:
    """All channels, and the rows and columns that whole input elements become."""
    block = node.int("blocksize", 1)
    rows, cols = (Span(s.start // block * block, -(-s.stop // block) * block) for s in box[2:])
    return Box((box[0], Span(0, graph.shape(node.outputs[0])[1]), rows, cols))


LAYOUT = {
    "Concat": Operator(Kind.LAYOUT, "concat", _concat, yields=joined, build=_build_concat),
    "SpaceToDepth": Operator(Kind.LAYOUT, "concat", _space_to_depth, yields=whole_channels),
    "DepthToSpace": Operator(Kind.LAYOUT, "concat", _depth_to_space, yields=_whole_blocks),
}
