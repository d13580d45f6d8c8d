"""Which nodes do the same to each part of a tensor: for each operator, along which axis its output
is in parts then, and which of its constants are cut.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from models.graph.graph import ROWS
from models.operators import LAYER_NORMS, LINEAR
from models.operators.pointwise import BROADCASTING
from models.rewrite.draft import Draft, attributes_of, joined_axis, op_of


@dataclass(frozen=True, slots=True)
class TensorParts:
    """A tensor in parts along an axis."""

    names: tuple[str, ...]
    axis: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A node that can be divided: the axis of its output's parts, the axes along which constant
    inputs (by place) are cut, and for a Reshape its shape.
    """

    axis: int
    sliced: Mapping[int, int]
    shape: Sequence[int] | None = None


def change_of(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    """How a node that reads these parts is divided; None if it cannot be."""
    rule = _RULES.get(op_of(node))
    return rule(draft, node, read) if rule else None


_Rule = Callable[[Draft, NodeProto, Mapping[str, TensorParts]], Change | None]


def _elementwise(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    out = draft.shape(node.output[0])
    places = {len(out) - len(draft.shape(name)) + each.axis for name, each in read.items()}
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
    return Change(axis, sliced)


def _linear(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
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
        return Change(parts.axis, {})
    fixed = all(node.input[place] in draft.constants for place in several)
    return Change(parts.axis, several) if fixed else None


def _concat(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    axes = {each.axis for each in read.values()}
    along = joined_axis(node, len(draft.shape(node.output[0])))
    if len(axes) > 1 or along in axes or any(name not in read for name in node.input):
        return None
    return Change(axes.pop(), {})


def _first(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> TensorParts | None:
    """The parts of the first input, if all other inputs are constant."""
    others = (name for name in node.input[1:] if name)
    first = read.get(node.input[0])
    return first if first and all(map(draft.is_fixed, others)) else None


def _reshape(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    parts = _first(draft, node, read)
    if parts is None:
        return None
    shape, out = draft.shape(node.input[0]), draft.shape(node.output[0])
    before = math.prod(shape[: parts.axis])
    for axis, size in enumerate(out):
        if size == shape[parts.axis] and math.prod(out[:axis]) == before:
            return Change(axis, {}, out)
    return None


def _transpose(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    parts = _first(draft, node, read)
    if parts is None:
        return None
    rank = len(draft.shape(node.input[0]))
    order = list(attributes_of(node).get("perm") or reversed(range(rank)))
    return Change(order.index(parts.axis), {})


def _slice(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    parts = _first(draft, node, read)
    if parts is None:
        return None
    axes = attributes_of(node).get("axes")
    if axes is None and len(node.input) > 3:
        axes = draft.constants[node.input[3]].tolist()
    rank = len(draft.shape(node.input[0]))
    apart = axes is not None and parts.axis not in [int(axis) % rank for axis in axes]
    return Change(parts.axis, {}) if apart else None


def _along_another(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
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
    return None if parts.axis in [axis % rank for axis in axes] else Change(parts.axis, {})


def _by_row(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    """MatMul and normalisation of each row on its own."""
    parts, rank = _first(draft, node, read), len(draft.shape(node.output[0]))
    if parts is None or rank != len(draft.shape(node.input[0])):
        return None
    mixed = attributes_of(node).get("axis", -1) % rank
    return Change(parts.axis, {}) if parts.axis < mixed else None


def _conv(draft: Draft, node: NodeProto, read: Mapping[str, TensorParts]) -> Change | None:
    """With a window of one along the parts."""
    parts, given = _first(draft, node, read), attributes_of(node)
    if parts is None or parts.axis < ROWS or str(given.get("auto_pad", b"")).startswith("b'SAME"):
        return None
    kernel = draft.shape(node.input[1])[parts.axis]
    window, spatial = parts.axis - ROWS, len(draft.shape(node.input[0])) - ROWS
    pads, strides = given.get("pads", [0] * 2 * spatial), given.get("strides", [1] * spatial)
    plain = kernel == 1 and not pads[window] and not pads[window + spatial] and strides[window] == 1
    return Change(parts.axis, {}) if plain else None


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
