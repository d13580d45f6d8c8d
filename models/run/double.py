"""A model's answer in float64, where each operator follows ONNX's own definition: slow, and a judge
between two answers in float32 that differ. onnxruntime has no such kernels; onnx has.
"""

from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from models.tensors.arrays import Arrays

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def answer_in_double(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray] | None:
    """All outputs, floats as float64; None if the model has an operator that onnx only declares."""
    wide = ModelProto()
    wide.CopyFrom(model)
    _widen(wide.graph)
    given = {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in feeds.items()
    }
    names = [value.name for value in wide.graph.output]
    try:
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(wide, new_ops=[QuantizeLinear, DequantizeLinear]).run(
                names, given
            )
    except Exception:  # of many types: what is not implemented, or only for float32
        return None
    return {name: np.asarray(array) for name, array in zip(names, made, strict=True)}


def _widen(graph: GraphProto) -> None:
    """Has a graph compute in float64 what it computes in float32 or float16."""
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type in _FLOATS:
            kind.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen(attribute.g)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _along(values: np.ndarray | None, axis: int | None, dims: int) -> Any:
    """A scale or zero point for each index of an axis, so that it is broadcast."""
    if values is None or values.ndim != 1 or values.size == 1:
        return values
    place = (1 if axis is None else axis) % dims
    return values.reshape([-1 if dim == place else 1 for dim in range(dims)])


class QuantizeLinear(OpRun):
    """onnx's own is of some opsets only [ONNX, QuantizeLinear]."""

    def _run(self, x: Any, scale: Any, zero: Any = None, axis: int | None = None, **_: Any) -> Any:
        zero = np.uint8(0) if zero is None else _along(zero, axis, x.ndim)
        span = np.iinfo(zero.dtype)
        steps = np.rint(x / _along(scale, axis, x.ndim)) + zero.astype(np.float64)
        return (np.clip(steps, span.min, span.max).astype(zero.dtype),)


class DequantizeLinear(OpRun):
    """The same of its inverse."""

    def _run(self, x: Any, scale: Any, zero: Any = None, axis: int | None = None, **_: Any) -> Any:
        offset = 0 if zero is None else _along(zero, axis, x.ndim).astype(np.float64)
        return ((x.astype(np.float64) - offset) * _along(scale, axis, x.ndim),)
