"""Constant folding: values that depend only on constants and static shapes are computed once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from models.shapes import TensorInfo, infer_node, info_of
from models.soundness import outer_names, reads

# Folding must not blow up a model: beyond this size of one node's outputs, and of all that was
# folded, nodes stay.
_FOLDED_BYTES = 8 << 20
_FOLDED_BYTES_IN_ALL = 64 << 20
# Operators for which the reference evaluator does not loop over elements in Python.
_LOOPED_ELEMENTS = 1 << 12
_VECTORISED = frozenset(
    {"Add", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Expand", "Gather", "Mul"}
    | {"Neg", "Reciprocal", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile"}
    | {"Transpose", "Unsqueeze", "Abs", "And", "Ceil", "Clip", "Cos", "Equal", "Exp", "Floor"}
    | {"Greater", "Less", "Log", "MatMul", "Max", "Min", "Not", "Or", "Pow", "Sin", "Where"}
)
# Multiplications of a product of matrices: a millisecond.
_MULTIPLIED = 1 << 20
_TRANSPARENT = frozenset({"Identity", "Dropout"})


def fold_constants(
    model: onnx.ModelProto,
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, np.ndarray],
    grown: int = 0,
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """The remaining nodes and the constants they use; `model`'s nodes are in topological order.
    `grown`: bytes folded so far.

    Removes Identity and inference-time Dropout, turns Constant, Shape and what has no elements into
    constants, and evaluates nodes all of whose inputs are constant. Also drops nodes whose outputs
    are not read.
    Nodes that make an output of the model always stay.
    """
    known, shapes = dict(constants), dict(tensors)
    renamed: dict[str, str] = {}
    empty = {name for name, array in constants.items() if not array.size}
    opsets = list(model.opset_import)
    outputs = {value.name for value in model.graph.output}
    inside = {name for node in model.graph.node for name in outer_names(node)}
    read = {name for node in model.graph.node for name in node.input} | outputs | inside
    kept: list[onnx.NodeProto] = []
    left = _FOLDED_BYTES_IN_ALL - grown
    for original in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Concat" and not empty.issuperset(node.input):
            node.input[:] = [name for name in node.input if name not in empty]
        if not all(name in shapes for name in node.output if name):
            # Sizes that were folded before it may have made them known.
            shapes.update(infer_node(node, shapes, known, opsets))
        if outputs.intersection(node.output):
            kept.append(node)
        elif (
            node.op_type in _TRANSPARENT
            and node.output[0] not in inside
            and not read.intersection(node.output[1:])
        ):
            renamed[node.output[0]] = node.input[0]
        elif (
            values := _empty(node, shapes) or _evaluate(node, shapes, known, opsets, left)
        ) is not None:
            known.update(values)
            empty.update(name for name, value in values.items() if not value.size)
            shapes.update((name, info_of(value)) for name, value in values.items())
            if node.op_type != "Constant":  # its values are in the file
                left -= sum(value.nbytes for value in values.values())
        else:
            kept.append(node)
    needed = set(outputs)
    alive: list[onnx.NodeProto] = []
    for node in reversed(kept):
        if any(name in needed for name in node.output):
            needed.update(reads(node))
            alive.append(node)
    alive.reverse()
    return alive, {k: v for k, v in known.items() if k in needed}


def _empty(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    """The node's outputs, if none of them has elements."""
    made = [name for name in node.output if name]
    if not all(name in tensors and 0 in tensors[name].shape for name in made):
        return {}
    return {name: np.empty(tensors[name].shape, tensors[name].dtype) for name in made}


def _evaluate(
    node: onnx.NodeProto,
    tensors: Mapping[str, TensorInfo],
    known: Mapping[str, np.ndarray],
    opsets: list[onnx.OperatorSetIdProto],
    most_bytes: int,
) -> dict[str, np.ndarray] | None:
    """The node's outputs, if they are constant and small; None if the node must stay."""
    if node.op_type == "Shape" and node.input[0] in tensors:
        ends = {each.name: each.i for each in node.attribute}
        shape = np.array(tensors[node.input[0]].shape, dtype=np.int64)
        return {node.output[0]: shape[ends.get("start") : ends.get("end")]}
    made = [name for name in node.output if name]
    feeds = {name: known[name] for name in node.input if name in known}
    if not _foldable(node) or len(feeds) < len({name for name in node.input if name}):
        return None
    if not all(name in tensors for name in made):
        return None  # of unknown, possibly unbounded size
    size = sum(math.prod(tensors[name].shape) for name in made)
    size_bytes = sum(math.prod(tensors[name].shape) * tensors[name].itemsize for name in made)
    multiplied = size * feeds[node.input[0]].shape[-1] if node.op_type == "MatMul" else 0
    if (
        size_bytes > min(_FOLDED_BYTES, max(0, most_bytes))
        or (size > _LOOPED_ELEMENTS and node.op_type not in _VECTORISED)
        or multiplied > _MULTIPLIED
    ):
        return None
    model = helper.make_model(
        helper.make_graph(
            [node],
            "fold",
            [
                helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for k, v in feeds.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in made],
        ),
        opset_imports=opsets,
    )
    try:
        results = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # the reference lacks an operator or a type: the node simply stays
        return None
    values = {name: np.asarray(value) for name, value in zip(made, results, strict=True)}
    return values if all(value.dtype.kind in "fiub" for value in values.values()) else None


def _foldable(node: onnx.NodeProto) -> bool:
    """Whether the node is deterministic and takes bounded time. Dequantised weights are not folded:
    quantised ones have special kernels and a quarter of the bytes.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type.startswith("Random"):
        return False
    if node.op_type == "DequantizeLinear":
        return False
    return not any(attribute.HasField("g") for attribute in node.attribute)
