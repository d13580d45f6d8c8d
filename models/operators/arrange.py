"""Rearranging: a chain of Reshape and Transpose as one operator of imbrex.

Its node holds the steps and, for rows and columns that survive, the ranges that each reads. A tile
does the same steps with its own sizes if that is equivalent; otherwise (a reorg whose rows wrap
around) a constant lists where each element goes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.graph.graph import Graph, Node
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.arrays import Ints
from models.tensors.boxes import Box, Span

DOMAIN, OP = "imbrex", "Arrange"


@dataclass(frozen=True, slots=True)
class Step:
    """A Transpose by the permutation `axes` if it `moves`, else a Reshape to the shape `axes`."""

    moves: bool
    axes: tuple[int, ...]


def rearranged(shape: Sequence[int], steps: Sequence[Step]) -> Ints:
    """For every element of the result, the flat index of its element in the input."""
    index: Ints = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    for step in steps:
        index = index.transpose(step.axes) if step.moves else index.reshape(step.axes)
    return index


def _steps(node: Node) -> list[Step]:
    found: list[Step] = []
    while f"step{len(found)}" in node.attributes:
        moves, *axes = node.attributes[f"step{len(found)}"]
        found.append(Step(bool(moves), tuple(axes)))
    return found


def _surviving(node: Node) -> list[int]:
    return [axis for axis in (2, 3) if f"first{axis}" in node.attributes]


def _reads(graph: Graph, node: Node, box: Box) -> Boxes:
    read = Box.whole(graph.shape(node.inputs[0]))
    for axis in _surviving(node):
        span = slice(box[axis].start, box[axis].stop)
        first, last = node.attributes[f"first{axis}"][span], node.attributes[f"last{axis}"][span]
        read = read.replace(axis, Span(min(first), max(last)))
    return (read,)


def _yields(graph: Graph, node: Node, box: Box) -> Box:
    whole = Box.whole(graph.shape(node.outputs[0]))
    for axis in _surviving(node):
        whole = whole.replace(axis, box[axis])
    return whole


def _build(piece: BoxPiece, program: Emitter) -> None:
    read = piece.reads[0]
    assert read is not None
    shape, steps = piece.graph.shape(piece.node.inputs[0]), _steps(piece.node)
    wanted = rearranged(shape, steps)[piece.output.slices()]
    # Flat, as numpy 2.4 errs where the last of several axes has one element, and all have 8193.
    places = np.unravel_index(wanted.reshape(-1), shape)
    local = [place - span.start for place, span in zip(places, read, strict=True)]
    index = np.ravel_multi_index(local, read.shape).astype(np.int64).reshape(wanted.shape)
    scaled = _scaled(shape, read.shape, steps)
    if scaled is not None and np.array_equal(rearranged(read.shape, scaled), index):
        source = piece.inputs[0]
        for k, step in enumerate(scaled):
            name = piece.name if k == len(scaled) - 1 else f"{piece.name}__step{k}"
            if step.moves:
                source = program.emit("Transpose", [source], name, perm=list(step.axes))
            else:
                source = _reshape(program, source, name, step.axes)
        return
    flat = _reshape(program, piece.inputs[0], f"{piece.name}__flat", [-1])
    label = program.constant(f"{piece.name}__order", index.reshape(-1))
    picked = program.emit("Gather", [flat, label], f"{piece.name}__picked", axis=0)
    _reshape(program, picked, piece.name, index.shape)


def _reshape(program: Emitter, source: str, name: str, shape: Sequence[int]) -> str:
    label = program.constant(f"{name}__shape", np.array(shape, dtype=np.int64))
    return program.emit("Reshape", [source, label], name)


def _scaled(whole: Sequence[int], part: Sequence[int], steps: Sequence[Step]) -> list[Step] | None:
    """The steps with the sizes of a part; None where a size does not divide."""
    found = []
    for step in steps:
        if step.moves:
            whole = [whole[axis] for axis in step.axes]
            part = [part[axis] for axis in step.axes]
            found.append(step)
            continue
        target = _target(whole, part, step.axes)
        if target is None:
            return None
        whole, part = step.axes, target
        found.append(Step(False, target))
    return found


def _target(
    whole: Sequence[int], part: Sequence[int], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """The shape of a part after a Reshape: sizes with equal products are grouped, and the first of
    a group that can be scaled is.
    """
    target: list[int] = []
    i = j = 0
    while i < len(whole) or j < len(shape):
        before, after, small = 1, 1, 1
        first = j
        while before != after or (i < len(whole) and j < len(shape) and first == j):
            if before <= after and i < len(whole):
                before, small, i = before * whole[i], small * part[i], i + 1
            elif j < len(shape):
                after, j = after * shape[j], j + 1
            else:
                return None
        if first == j:  # sizes of one at the end
            i, rest = len(whole), shape[j:]
            j = len(shape)
            target += rest
            continue
        group = list(shape[first:j])
        for k, size in enumerate(group):
            if size * small % before == 0 and size * small >= before:
                group[k] = size * small // before
                break
        else:
            return None
        target += group
    return tuple(target)


ARRANGE = {f"{DOMAIN}.{OP}": Operator(Kind.LAYOUT, "concat", _reads, yields=_yields, build=_build)}
