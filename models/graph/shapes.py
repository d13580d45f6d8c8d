"""Static shapes of all tensors, by ONNX's inference, without the bytes of the weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from models.graph.soundness import is_numeric, nested
from models.tensors.arrays import Arrays
from models.tensors.wire import Encoding, Pixels, Quantised
from protos.errors import BadRequest

_DEFAULTS = {"MeanVarianceNormalization": ("axes", [0, 2, 3]), "STFT": ("onesided", 1)}
# Initialisers up to this many elements may steer shapes (Reshape, Slice, Resize ...).
STEERING_ELEMENTS = 1024
_FREE_INITIALISERS = 4
# Tensors are sent in messages, and protobuf allows no larger one.
MAX_TENSOR_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Static shape and ONNX element type of a tensor. `wire`: its encoding; None: unencoded.
    `read_share`: how much of it the host probably reads, where devices send it no more than that.
    `is_dynamic`: its shape is known only once it is computed, and stands here as (1,).
    """

    shape: tuple[int, ...]
    data_type: int
    wire: Encoding | Pixels | Quantised | None = None
    read_share: float = 1.0
    is_dynamic: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of an element."""
        return _numpy_type(self.data_type)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _itemsize(self.data_type)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.itemsize * math.prod(self.shape)

    @property
    def told_shape(self) -> tuple[int, ...]:
        """Its shape as people and protocols are told it: (-1,) if it is dynamic."""
        return (-1,) if self.is_dynamic else self.shape

    @property
    def on_wire(self) -> "TensorInfo":
        """Its form on the wire."""
        return self if self.wire is None else TensorInfo(self.shape, self.wire.data_type)

    @property
    def accepted(self) -> "tuple[np.dtype[Any], ...]":
        """The types accepted in requests: its own, and for a picture that of its pixels."""
        if not isinstance(self.wire, Pixels):
            return (self.dtype,)
        return self.dtype, _numpy_type(self.wire.data_type)

    @property
    def wire_itemsize(self) -> int:
        """Bytes of one element on the wire."""
        return self.on_wire.itemsize


def info_of(array: np.ndarray) -> TensorInfo:
    """The type of an array, unencoded."""
    return TensorInfo(array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))


@cache
def _numpy_type(data_type: int) -> np.dtype[Any]:
    """The properties of one of ONNX's two dozen element types."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(data_type))


@cache
def _itemsize(data_type: int) -> int:
    return int(_numpy_type(data_type).itemsize)


def light_model(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: Arrays,
) -> ModelProto:
    """The model with these nodes and inputs, and without the bytes of large weights: inference
    needs only their shapes. Shapes of outputs are removed, to be inferred again; outputs that none
    of these nodes makes are left out.
    """
    light = ModelProto()
    # Before version 4 initialisers had to be inputs too; many files leave them out of these, which
    # onnxruntime takes and ONNX's inference does not.
    light.ir_version = max(_FREE_INITIALISERS, model.ir_version)
    light.opset_import.extend(model.opset_import)
    # onnxruntime knows its own domains without an import, and its optimiser writes files so.
    unnamed = {node.domain for node in nodes} - {opset.domain for opset in model.opset_import}
    light.opset_import.extend(
        helper.make_opsetid(domain, 1) for domain in sorted(unnamed - {"", "ai.onnx"})
    )
    light.graph.name = model.graph.name or "network"
    light.graph.node.extend(nodes)
    light.graph.input.extend(inputs)
    made = {name for node in nodes for name in node.output}
    light.graph.output.extend(value for value in model.graph.output if value.name in made)
    for key, array in constants.items():
        if array.size <= STEERING_ELEMENTS:
            light.graph.initializer.append(numpy_helper.from_array(array, key))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            light.graph.input.append(helper.make_tensor_value_info(key, kind, array.shape))
    forget_declared(light.graph)
    return light


def forget_declared(graph: GraphProto) -> None:
    """Removes the shapes that a file declares of what a graph, and graphs inside it, make."""
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for inner in nested(node):
            forget_declared(inner)


def infer(
    light: ModelProto,
    constants: Arrays,
    told: Mapping[str, TensorInfo] = MappingProxyType({}),
    *,
    asks: bool = False,
) -> dict[str, TensorInfo]:
    """Every tensor whose shape can be inferred, given those in `told`. `asks`: more will be told
    later, so that a mismatch may only come from a tensor that is still unknown.

    Raises:
        BadRequest: an operator's inputs do not fit it or each other, or a tensor is too large.
    """
    outputs = {value.name: value for value in light.graph.output}
    for name, info in told.items():
        value = helper.make_tensor_value_info(name, info.data_type, info.shape)
        if name in outputs:
            outputs[name].CopyFrom(value)
        else:
            light.graph.value_info.append(value)
    _say_defaults(light)
    try:
        return _believed(light, told, _inferred(light, constants, strict=True))
    except Exception as error:  # onnx raises bare C++ exceptions of several types
        if isinstance(error, BadRequest):
            raise
        if asks and any(map(is_undeclared, light.graph.node)):
            return _believed(light, told, _inferred(light, constants, strict=False))
        lines = str(error).strip().splitlines()
        said = lines[0][:300] if lines else type(error).__name__
        raise BadRequest(
            cause=f"the model is not a valid ONNX graph ({said})",
            cure="Check it with onnx.checker.check_model and export it again.",
        ) from error


def infer_node(
    node: NodeProto,
    known: Mapping[str, TensorInfo],
    constants: Arrays,
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, TensorInfo]:
    """The shapes of one node's outputs, from those of its inputs, as far as ONNX can infer them."""
    names = [name for name in node.input if name]
    versions = {opset.domain: opset.version for opset in opsets}
    if not all(name in known for name in names) or node.domain not in versions:
        return {}
    types = {
        name: helper.make_tensor_type_proto(known[name].data_type, known[name].shape)
        for name in names
    }
    data = {
        name: numpy_helper.from_array(constants[name], name)
        for name in names
        if name in constants and constants[name].size <= STEERING_ELEMENTS
    }
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=list(opsets)
        )
        tensors = {name: _static(name, value.tensor_type) for name, value in found.items()}
    except Exception:  # of several types; inference of the whole graph says what is wrong
        return {}
    return {name: info for name, info in tensors.items() if info is not None}


def is_undeclared(node: NodeProto) -> bool:
    """Whether ONNX cannot infer the shapes of the node's outputs."""
    if node.domain not in ("", "ai.onnx"):
        return True
    try:
        return not onnx.defs.get_schema(node.op_type).has_type_and_shape_inference_function
    except onnx.defs.SchemaError:
        return True


def _inferred(light: ModelProto, constants: Arrays, *, strict: bool) -> dict[str, TensorInfo]:
    """The shapes that ONNX infers; `strict`: a mismatch raises an exception."""
    inferred = onnx.shape_inference.infer_shapes(
        light, check_type=strict, strict_mode=strict, data_prop=True
    )
    tensors: dict[str, TensorInfo] = {}
    graph = inferred.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        if info := static_info(value):
            tensors[value.name] = info
    for key, array in constants.items():
        tensors[key] = info_of(array)
    return tensors


def _believed(
    light: ModelProto, told: Mapping[str, TensorInfo], found: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """The shapes found that are told or derive from known tensors: ONNX takes all others for
    scalars.
    """
    made = {name for node in light.graph.node for name in node.output}
    known = found.keys() - made
    for node in light.graph.node:
        if all(name in known for name in node.input if name):
            known.update(found.keys() & set(node.output))
        known.update(told.keys() & set(node.output))
    return {name: info for name, info in found.items() if name in known}


def _say_defaults(light: ModelProto) -> None:
    """Writes out attributes whose defaults ONNX's inference does not know: without axes, it refuses
    a MeanVarianceNormalization of opset 13 and later in strict mode; and it takes an STFT for one
    of both sides.
    """
    for node in light.graph.node:
        name, value = _DEFAULTS.get(node.op_type, ("", None))
        given = {attribute.name for attribute in node.attribute}
        if name and name not in given and node.domain in ("", "ai.onnx"):
            node.attribute.append(helper.make_attribute(name, value))


def static_info(value: onnx.ValueInfoProto) -> TensorInfo | None:
    """The declared type of a tensor; None unless all of its sizes are known."""
    return _static(value.name, value.type.tensor_type)


def _static(name: str, kind: onnx.TypeProto.Tensor) -> TensorInfo | None:
    """The type of a tensor all of whose sizes are known."""
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    info = TensorInfo(tuple(int(dim.dim_value) for dim in kind.shape.dim), kind.elem_type)
    # Arithmetic on shapes, which is folded, may have empty tensors.
    if any(size < 0 for size in info.shape):
        raise BadRequest(
            cause=f"the tensor {name!r} has a negative size: its shape is {list(info.shape)}",
            cure="Export the model for larger inputs.",
        )
    if is_numeric(info.data_type) and info.nbytes > MAX_TENSOR_BYTES:
        raise BadRequest(
            cause=f"the tensor {name!r} would take {info.nbytes / 1e9:.3g} GB: its shape is "
            f"{list(info.shape)}",
            cure=f"The largest usable size is {MAX_TENSOR_BYTES / 1e9:.2f} GB.",
        )
    return info
