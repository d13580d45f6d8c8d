"""Rows of several maps in one list, as a detector's head makes of its three scales: joined last.

What follows such a Concat mostly does the same to every row (softmax of the bins, sigmoid, boxes
from distances), so it is done to the rows of each map on its own, and the Concat comes last. Each
device then keeps its rows of every map, and nothing is moved to bring them into the list's order.
"""

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from models.graph.graph import ROWS, JoinedOutput, results_of
from models.graph.shapes import TensorInfo
from models.graph.soundness import without_unread
from models.operators import LAYER_NORMS, LINEAR, WIDENING
from models.operators.pointwise import BROADCASTING
from models.rewrite.draft import Draft, attributes_of, joined_axis, op_of, slice_of
from models.rewrite.rows import row_axes

# No detector has more scales, and what follows a list is written once for each of its maps.
_MOST_PARTS = 8
_MOST_WRITTEN = 1 << 13


@dataclass(frozen=True, slots=True)
class _TensorParts:
    """A tensor in parts along an axis."""

    names: tuple[str, ...]
    axis: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """A node that does the same to each part of a tensor: the axis of its output's parts, the axes
    along which constant inputs (by place) are cut, and for a Reshape its shape.
    """

    axis: int
    sliced: Mapping[int, int]
    shape: Sequence[int] | None = None


def joined_last(
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorInfo],
    constants: dict[str, np.ndarray],
    outputs: frozenset[str],
    opset: int,
    gathered: Container[str] = (),
) -> tuple[list[NodeProto], dict[str, JoinedOutput], dict[str, TensorInfo]]:
    """The nodes in which every Concat of rows comes as late as possible, the outputs that remain to
    be joined, and the parts that were made, of which ONNX may not know how to infer the shape.
    """
    rows = row_axes(nodes, tensors, frozenset(constants), gathered)
    read = {name for node in nodes for name in node.input}
    sinking = _Sinking(Draft(opset, dict(tensors), constants, outputs), rows, outputs - read)
    for node in nodes:
        sinking.add(node)
    sinking.flush()
    results = results_of(outputs, sinking.joined)
    return without_unread(sinking.draft.nodes, results), sinking.joined, sinking.made


class _Sinking:
    def __init__(self, draft: Draft, rows: Mapping[str, int], ends: frozenset[str]) -> None:
        self.draft = draft
        # Outputs that no node reads, and those of them that are joined by nobody here.
        self._ends, self.joined = ends, dict[str, JoinedOutput]()
        self._rows = rows
        self._parts: dict[str, _TensorParts] = {}
        self._waiting: dict[str, NodeProto] = {}
        # What is done to each map's rows, one map after the other, so that it makes layers.
        self._chains: dict[int, list[NodeProto]] = {}
        self._taken_parts: set[str] = set()
        self._done: set[str] = set()
        self.made: dict[str, TensorInfo] = {}

    def add(self, node: NodeProto) -> None:
        """Writes a node, or its parts if it reads some and can be divided."""
        if (part := self._taken(node)) is not None:
            self._chains.setdefault(part[0], []).append(part[1])
            self._taken_parts.update(node.output)
            return
        parts = self._divided(node)
        if parts is not None:
            self._parts[node.output[0]] = parts
            join = helper.make_node("Concat", list(parts.names), [node.output[0]], axis=parts.axis)
            join.name = node.name or node.output[0]
            self._waiting[node.output[0]] = join
            if node.output[0] in self._ends and self._done.issuperset(parts.names):
                self.joined[node.output[0]] = JoinedOutput(parts.axis, parts.names)
                del self._waiting[node.output[0]]
            elif node.output[0] in self.draft.outputs:
                self._join(node.output[0])
            return
        for name in node.input:
            self._join(name)
            if name in self._taken_parts:
                self.flush()
        self.draft.nodes.append(node)
        fixed = all(name in self.draft.constants for name in node.input if name)
        if fixed and op_of(node) in WIDENING and not attributes_of(node).get("block_size", 0):
            self.draft.dequantised[node.output[0]] = node
        self._done.update(node.output)

    def _taken(self, node: NodeProto) -> tuple[int, NodeProto] | None:
        """Which part a Slice takes, and the node that takes it."""
        parts = self._parts.get(node.input[0]) if node.op_type == "Slice" else None
        taken = slice_of(node, self.draft.tensors, self.draft.constants) if parts else None
        if parts is None or taken is None or taken.axis != parts.axis:
            return None
        starts = itertools.accumulate(parts.sizes, initial=0)
        for k, (start, size) in enumerate(zip(starts, parts.sizes, strict=False)):
            if (taken.start, taken.stop) == (start, start + size):
                name = node.name or node.output[0]
                return k, helper.make_node("Identity", [parts.names[k]], list(node.output), name)
        return None

    def _join(self, name: str) -> None:
        """Writes the Concat of a tensor's parts, if it is not there yet."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self.flush()
            self.draft.nodes.append(waiting)

    def flush(self) -> None:
        """Writes the parts that were not needed before."""
        for chain in self._chains.values():
            self.draft.nodes += chain
        self._chains.clear()
        self._taken_parts.clear()

    def _divided(self, node: NodeProto) -> _TensorParts | None:
        if len(node.output) != 1:
            return None
        if any(name and name not in self.draft.tensors for name in (*node.input, *node.output)):
            return None
        if self._is_list(node):
            axis = joined_axis(node, len(self.draft.shape(node.output[0])))
            sizes = tuple(self.draft.shape(name)[axis] for name in node.input)
            return _TensorParts(tuple(node.input), axis, sizes)
        read = {name: self._parts[name] for name in node.input if name in self._parts}
        if not read or len({parts.sizes for parts in read.values()}) > 1:
            return None
        if len(self.made) > _MOST_WRITTEN:
            return None
        rule = _RULES.get(op_of(node))
        change = rule(self.draft, node, read) if rule else None
        return None if change is None else self._write(node, read, change)

    def _is_list(self, node: NodeProto) -> bool:
        """Whether a node joins rows of several maps: tensors with fewer dimensions, or with their
        rows elsewhere, than maps.
        """
        if node.op_type != "Concat" or not 2 <= len(node.input) <= _MOST_PARTS:
            return False
        shape = self.draft.shape(node.output[0])
        axis = joined_axis(node, len(shape))
        made = any(name in self.draft.constants or name in self._parts for name in node.input)
        return not made and len(shape) == 3 and axis == self._rows.get(node.output[0], ROWS)

    def _write(
        self, node: NodeProto, read: Mapping[str, _TensorParts], change: _Change
    ) -> _TensorParts:
        sizes = next(iter(read.values())).sizes
        starts = itertools.accumulate(sizes, initial=0)
        names = tuple(f"{node.output[0]}__rows{k}" for k in range(len(sizes)))
        for k, (name, start, size) in enumerate(zip(names, starts, sizes, strict=False)):
            one = NodeProto()
            one.CopyFrom(node)
            one.name, one.output[0] = name, name
            for place, source in enumerate(node.input):
                if source in read:
                    one.input[place] = read[source].names[k]
                elif place in change.sliced:
                    one.input[place] = self._cut(source, change.sliced[place], start, size)
            if change.shape is not None:
                shape = [size if d == change.axis else s for d, s in enumerate(change.shape)]
                one.op_type = "Reshape"
                del one.attribute[:]
                one.input[:] = [one.input[0], self.draft.ints(f"{name}__shape", shape)]
            self._chains.setdefault(k, []).append(one)
            shape = list(self.draft.shape(node.output[0]))
            shape[change.axis] = size
            self.made[name] = TensorInfo(tuple(shape), self.draft.tensors[node.output[0]].data_type)
            self._done.add(name)
        return _TensorParts(names, change.axis, sizes)

    def _cut(self, source: str, axis: int, start: int, size: int) -> str:
        """A part of a constant, which keeps its memory, or of what is dequantised from some."""
        name = f"{source}__rows{axis}_{start}_{size}"
        if self.draft.is_fixed(name):
            return name
        if source in self.draft.constants:
            part = (slice(None),) * axis + (slice(start, start + size),)
            return self.draft.constant(name, self.draft.constants[source][part])
        wide, one = self.draft.dequantised[source], NodeProto()
        one.CopyFrom(wide)
        one.name = one.output[0] = name
        one.input[0] = self._cut(wide.input[0], axis, start, size)
        shape = list(self.draft.shape(source))
        if attributes_of(wide).get("axis", 1) % len(shape) == axis:
            for place, scale in enumerate(wide.input[1:], start=1):
                if scale and self.draft.constants[scale].size > 1:
                    one.input[place] = self._cut(scale, 0, start, size)
        shape[axis] = size
        self.made[name] = TensorInfo(tuple(shape), self.draft.tensors[source].data_type)
        self.draft.nodes.append(one)
        self.draft.dequantised[name] = one
        return name


_Rule = Callable[[Draft, NodeProto, Mapping[str, _TensorParts]], _Change | None]


def _elementwise(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    out = draft.shape(node.output[0])
    places = {len(out) - len(draft.shape(name)) + parts.axis for name, parts in read.items()}
    if len(places) > 1:
        return None
    (axis,) = places
    sliced = {}
    for place, name in enumerate(node.input):
        shape = draft.shape(name) if name else ()
        own = axis - (len(out) - len(shape))
        if not name or name in read or own < 0 or shape[own] == 1:
            continue
        if not draft.is_fixed(name):
            return None
        sliced[place] = own
    return _Change(axis, sliced)


def _linear(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    """Quantize and Dequantize; scales of the parts' axis are cut."""
    parts, given = read.get(node.input[0]), attributes_of(node)
    if parts is None or given.get("block_size", 0):
        return None
    axis = given.get("axis", 1) % len(draft.shape(node.input[0]))
    several = {
        place: 0
        for place, name in enumerate(node.input[1:], start=1)
        if name and math.prod(draft.shape(name)) > 1
    }
    if axis != parts.axis or not several:
        return _Change(parts.axis, {})
    fixed = all(node.input[place] in draft.constants for place in several)
    return _Change(parts.axis, several) if fixed else None


def _concat(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    axes = {parts.axis for parts in read.values()}
    along = joined_axis(node, len(draft.shape(node.output[0])))
    if len(axes) > 1 or along in axes or any(name not in read for name in node.input):
        return None
    return _Change(axes.pop(), {})


def _first(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _TensorParts | None:
    """The parts of the first input, if all other inputs are constant."""
    others = (name for name in node.input[1:] if name)
    first = read.get(node.input[0])
    return first if first and all(map(draft.is_fixed, others)) else None


def _reshape(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    parts = _first(draft, node, read)
    if parts is None:
        return None
    shape, out = draft.shape(node.input[0]), draft.shape(node.output[0])
    before = math.prod(shape[: parts.axis])
    for axis, size in enumerate(out):
        if size == shape[parts.axis] and math.prod(out[:axis]) == before:
            return _Change(axis, {}, out)
    return None


def _transpose(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    parts = _first(draft, node, read)
    if parts is None:
        return None
    rank = len(draft.shape(node.input[0]))
    order = list(attributes_of(node).get("perm") or reversed(range(rank)))
    return _Change(order.index(parts.axis), {})


def _slice(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    parts = _first(draft, node, read)
    if parts is None:
        return None
    axes = attributes_of(node).get("axes")
    if axes is None and len(node.input) > 3:
        axes = draft.constants[node.input[3]].tolist()
    rank = len(draft.shape(node.input[0]))
    apart = axes is not None and parts.axis not in [int(axis) % rank for axis in axes]
    return _Change(parts.axis, {}) if apart else None


def _along_another(
    draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]
) -> _Change | None:
    """Softmax and reductions along another axis."""
    parts = _first(draft, node, read)
    if parts is None:
        return None
    rank, given = len(draft.shape(node.input[0])), attributes_of(node)
    if node.op_type == "Softmax":
        axes: list[int] = [given.get("axis", -1 if draft.opset >= 13 else 1)]
        if draft.opset < 13:
            axes = list(range(axes[0] % rank, rank))
    else:
        axes = given.get("axes") or []
        if not axes and len(node.input) > 1 and node.input[1]:
            axes = draft.constants[node.input[1]].tolist()
        if not axes or not given.get("keepdims", 1):
            return None
    return None if parts.axis in [axis % rank for axis in axes] else _Change(parts.axis, {})


def _by_row(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    """MatMul and normalisation of each row on its own."""
    parts, rank = _first(draft, node, read), len(draft.shape(node.output[0]))
    if parts is None or rank != len(draft.shape(node.input[0])):
        return None
    mixed = attributes_of(node).get("axis", -1) % rank
    return _Change(parts.axis, {}) if parts.axis < mixed else None


def _conv(draft: Draft, node: NodeProto, read: Mapping[str, _TensorParts]) -> _Change | None:
    """With a window of one along the parts."""
    parts, given = _first(draft, node, read), attributes_of(node)
    if parts is None or parts.axis < ROWS or str(given.get("auto_pad", b"")).startswith("b'SAME"):
        return None
    kernel = draft.shape(node.input[1])[parts.axis]
    window, spatial = parts.axis - ROWS, len(draft.shape(node.input[0])) - ROWS
    pads, strides = given.get("pads", [0] * 2 * spatial), given.get("strides", [1] * spatial)
    plain = kernel == 1 and not pads[window] and not pads[window + spatial] and strides[window] == 1
    return _Change(parts.axis, {}) if plain else None


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(BROADCASTING, _elementwise),
    **dict.fromkeys(LINEAR, _linear),
    **dict.fromkeys(["Reshape", "Unsqueeze", "Squeeze", "Flatten"], _reshape),
    **dict.fromkeys(["Softmax", "ReduceMean", "ReduceSum", "ReduceMax"], _along_another),
    **dict.fromkeys(["MatMul", *LAYER_NORMS], _by_row),
    "Concat": _concat,
    "Transpose": _transpose,
    "Slice": _slice,
    "Conv": _conv,
}
