"""A Concat of a tensor's last rows and its first becomes one node; see `models.operators.roll`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from models.graph import ROWS
from models.operators.arrange import DOMAIN
from models.operators.roll import OP
from models.shapes import TensorInfo
from models.simplify.draft import joined_axis, slice_of


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
    makers = [maker[name] for name in node.input if name in maker]
    if node.op_type != "Concat" or len(node.input) != 2 or len(makers) != 2:
        return None
    last, first = (slice_of(each, tensors, constants) for each in makers)
    if last is None or first is None:
        return None
    source, made = makers[0].input[0], node.output[0]
    axis = joined_axis(node, len(tensors[made].shape))
    fits = last.axis == first.axis == axis == rows.get(made, ROWS)
    whole = tensors[source].shape == tensors[made].shape
    together = first.start == 0 and first.stop == last.start
    if makers[1].input[0] != source or not (fits and whole and together):
        return None
    return (source, axis, last.start) if last.stop == tensors[source].shape[axis] else None
