"""A Concat of a tensor's last rows and its first becomes one node; see `models.operators.roll`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from models.operators.arrange import DOMAIN
from models.operators.roll import OP
from models.shapes import TensorInfo
from models.simplify.draft import attributes_of


def rolled(
    nodes: Sequence[onnx.NodeProto],
    tensors: dict[str, TensorInfo],
    constants: Mapping[str, np.ndarray],
    rows: dict[str, int],
    outputs: frozenset[str],
) -> list[onnx.NodeProto]:
    """The nodes with each such Concat as one; adds the copies that they read to `tensors` and, if
    need be, to `rows`.
    """
    maker = {node.output[0]: node for node in nodes}
    found: list[onnx.NodeProto] = []
    for node in nodes:
        cut = _rolls(node, maker, tensors, constants, rows)
        if cut is None:
            found.append(node)
            continue
        source, axis, shift = cut
        copy = f"{node.output[0]}__again"
        tensors[copy] = tensors[source]
        if source in rows:
            rows[copy] = rows[source]
        found.append(helper.make_node("Identity", [source], [copy], name=copy))
        name = node.name or node.output[0]
        found.append(
            helper.make_node(
                OP, [source, copy], list(node.output), name, domain=DOMAIN, axis=axis, shift=shift
            )
        )
    read = {name for node in found for name in node.input} | outputs
    return [node for node in found if read.intersection(node.output)]


def _rolls(
    node: onnx.NodeProto,
    maker: Mapping[str, onnx.NodeProto],
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, np.ndarray],
    rows: Mapping[str, int],
) -> tuple[str, int, int] | None:
    """The tensor that a Concat rolls, the axis of its rows, and by how many."""
    if node.op_type != "Concat" or len(node.input) != 2:
        return None
    made = node.output[0]
    axis = attributes_of(node)["axis"] % len(tensors[made].shape)
    parts = [_part(maker.get(name), tensors, constants, axis) for name in node.input]
    if axis != rows.get(made, 2) or None in parts:
        return None
    (source, start, stop), (other, first, last) = (part for part in parts if part)
    whole = source in tensors and tensors[source].shape == tensors[made].shape
    if source != other or not whole or first != 0 or start != last:
        return None
    return (source, axis, start) if stop == tensors[source].shape[axis] else None


def _part(
    node: onnx.NodeProto | None,
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, np.ndarray],
    axis: int,
) -> tuple[str, int, int] | None:
    """What a Slice takes along one axis alone: the tensor, start and stop."""
    if node is None or node.op_type != "Slice" or node.input[0] not in tensors:
        return None
    given, settings = attributes_of(node), ("starts", "ends", "axes", "steps")
    values = {
        key: given.get(key) if key in given else _constant(node, place, constants)
        for place, key in enumerate(settings, start=1)
    }
    rank, size = len(tensors[node.input[0]].shape), tensors[node.input[0]].shape[axis]
    axes, steps = values["axes"] or [0], values["steps"] or [1]
    if len(axes) != 1 or axes[0] % rank != axis or steps != [1]:
        return None
    if not values["starts"] or not values["ends"]:
        return None
    start, stop = (
        min(max(each + size if each < 0 else each, 0), size)
        for each in (values["starts"][0], values["ends"][0])
    )
    return node.input[0], start, stop


def _constant(
    node: onnx.NodeProto, place: int, constants: Mapping[str, np.ndarray]
) -> list[int] | None:
    name = node.input[place] if len(node.input) > place else ""
    return constants[name].reshape(-1).tolist() if name in constants else None
