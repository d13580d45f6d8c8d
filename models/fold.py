"""Constant folding: what depends on constants and static shapes only is computed once, here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from protos.errors import BadRequest

if TYPE_CHECKING:
    from models.graph import TensorInfo

# A folded constant larger than this stays a node: folding must not blow up a model.
_FOLDED_ELEMENTS = 1 << 20
_TRANSPARENT = frozenset({"Identity", "Dropout"})


def fold_constants(
    model: onnx.ModelProto,
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, np.ndarray],
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], list[str]]:
    """Nodes that remain, the constants they use, and the (possibly renamed) graph outputs.

    Removes Identity and inference-time Dropout, turns Constant and Shape into constants, and
    evaluates nodes all of whose inputs are constant. Also drops nodes whose outputs nobody
    reads, and requires topological order.
    """
    known = dict(constants)
    renamed: dict[str, str] = {}
    opsets = list(model.opset_import)
    outputs = [value.name for value in model.graph.output]
    seen = {value.name for value in model.graph.input} | set(known) | {""}
    kept: list[onnx.NodeProto] = []
    for original in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        node.input[:] = [renamed.get(name, name) for name in node.input]
        unknown = [name for name in node.input if name not in seen]
        if unknown:
            raise BadRequest(
                cause=f"node {node.name or node.op_type!r} reads {unknown[0]!r}, which nothing "
                "before it makes",
                cure="The graph is cyclic, unordered or incomplete: export it again.",
            )
        seen.update(node.output)
        if node.op_type in _TRANSPARENT and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        elif (values := _evaluate(node, tensors, known, opsets)) is not None:
            known.update(values)
        else:
            kept.append(node)
    needed = {renamed.get(name, name) for name in outputs}
    alive: list[onnx.NodeProto] = []
    for node in reversed(kept):
        if any(name in needed for name in node.output):
            needed.update(node.input)
            alive.append(node)
    alive.reverse()
    return alive, {k: v for k, v in known.items() if k in needed}, outputs


def _evaluate(
    node: onnx.NodeProto,
    tensors: Mapping[str, TensorInfo],
    known: Mapping[str, np.ndarray],
    opsets: list[onnx.OperatorSetIdProto],
) -> dict[str, np.ndarray] | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Shape" and node.input[0] in tensors and not node.attribute:
        shape = np.array(tensors[node.input[0]].shape, dtype=np.int64)
        return {node.output[0]: shape}
    sizes = [int(np.prod(tensors[name].shape)) for name in node.output if name in tensors]
    constant = all(name in known for name in node.input if name)
    if not constant or any(size > _FOLDED_ELEMENTS for size in sizes):
        return None
    if node.op_type.startswith("Random") or any(a.HasField("g") for a in node.attribute):
        return None
    feeds = {name: known[name] for name in node.input if name}
    model = helper.make_model(
        helper.make_graph(
            [node],
            "fold",
            [
                helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for k, v in feeds.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        ),
        opset_imports=opsets,
    )
    try:
        results = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # the reference lacks an operator or a type: the node simply stays
        return None
    names = [name for name in node.output if name]
    return {name: np.asarray(value) for name, value in zip(names, results, strict=True)}
