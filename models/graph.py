"""A network as data: nodes in topological order, static shapes, constants apart.

`Graph` is what every other module reads. `load_graph` makes it from ONNX: checked, batch bound
to 1, shapes inferred, constants folded, automatic padding made explicit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.fold import fold_constants
from models.windows import Window, explicit_windows
from models.wire import Encoding
from protos.errors import BadRequest

OPSETS = range(7, 24)
# Initialisers up to this many elements may steer shapes (Reshape, Slice, Resize ...).
_STEERING_ELEMENTS = 1024
_WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool"})


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Static shape and ONNX element type of a tensor. `wire`: how it travels; None: as it is."""

    shape: tuple[int, ...]
    data_type: int
    wire: Encoding | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of an element."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.data_type))

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.itemsize * int(np.prod(self.shape, dtype=np.int64))

    @property
    def on_wire(self) -> TensorInfo:
        """What travels in its place."""
        return self if self.wire is None else TensorInfo(self.shape, self.wire.data_type)

    @property
    def wire_itemsize(self) -> int:
        """Bytes of one element on the wire."""
        return self.on_wire.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One ONNX operator; a missing optional input is the empty string.

    `windows`: one per spatial dimension of a convolution or pool, empty for other operators.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: onnx.NodeProto = field(repr=False)
    windows: tuple[Window, ...] = ()

    def ints(self, name: str, default: Iterable[int]) -> tuple[int, ...]:
        """An integer-list attribute."""
        return tuple(int(value) for value in self.attributes.get(name, default))

    def int(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(name, default))


@dataclass(frozen=True, eq=False)
class Graph:
    """A network with static shapes. `constants` holds every initialiser; `tensors` describes
    inputs, constants and everything that a node produces.
    """

    name: str
    opset: int
    opset_imports: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, TensorInfo]
    constants: Mapping[str, np.ndarray]

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Index of the node that makes each tensor."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the nodes that read each tensor."""
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(index)
        return {name: tuple(indices) for name, indices in readers.items()}

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Static shape of a tensor."""
        return self.tensors[tensor].shape


def load_graph(model: onnx.ModelProto, name: str | None = None) -> Graph:
    """The graph of an ONNX model.

    Raises:
        BadRequest: opset outside 7..23, a shape that stays unknown, an invalid graph.
    """
    opset = _opset(model)
    constants = {tensor.name: _array(tensor) for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    light = _light_model(model, inputs, constants)
    tensors = _infer(light, constants)
    nodes, constants, outputs = fold_constants(light, tensors, constants)
    for key, array in constants.items():
        tensors[key] = TensorInfo(array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
    graph = Graph(
        name=name or model.graph.name or "network",
        opset=opset,
        opset_imports=tuple((entry.domain, entry.version) for entry in model.opset_import),
        inputs=tuple(value.name for value in inputs),
        outputs=tuple(outputs),
        nodes=tuple(_node(proto, index, tensors) for index, proto in enumerate(nodes)),
        tensors=tensors,
        constants=constants,
    )
    _require_shapes(graph)
    return graph


def _opset(model: onnx.ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            if entry.version not in OPSETS:
                raise BadRequest(
                    cause=f"the model uses ONNX opset {entry.version}",
                    cure=f"Convert it to opset {OPSETS.start} to {OPSETS.stop - 1}, for example "
                    "with onnx.version_converter.",
                )
            return int(entry.version)
    raise BadRequest(
        cause="the model names no ONNX opset", cure="Export it again with a current exporter."
    )


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise BadRequest(
            cause=f"the constant {tensor.name!r} is damaged ({error})",
            cure="Export or download the model again.",
        ) from error


def _light_model(
    model: onnx.ModelProto, inputs: list[onnx.ValueInfoProto], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """The model without the bytes of large weights (shape inference needs only their shapes),
    and with a symbolic batch bound to 1.
    """
    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.graph.name = model.graph.name or "network"
    light.graph.node.extend(model.graph.node)
    light.graph.output.extend(model.graph.output)
    for value in inputs:
        light.graph.input.append(_bound(value))
    for key, array in constants.items():
        if array.size <= _STEERING_ELEMENTS:
            light.graph.initializer.append(numpy_helper.from_array(array, key))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            light.graph.input.append(helper.make_tensor_value_info(key, kind, array.shape))
    for output in light.graph.output:
        output.type.tensor_type.ClearField("shape")  # inferred again, with the batch bound
    return light


def _bound(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    bound = onnx.ValueInfoProto()
    bound.CopyFrom(value)
    for axis, dim in enumerate(bound.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            continue
        if axis == 0:
            dim.dim_value = 1
            continue
        raise BadRequest(
            cause=f"input {value.name!r} has no fixed size along dimension {axis}",
            cure="Export the model with a fixed height and width.",
        )
    return bound


def _infer(light: onnx.ModelProto, constants: dict[str, np.ndarray]) -> dict[str, TensorInfo]:
    try:
        inferred = onnx.shape_inference.infer_shapes(light, strict_mode=True, data_prop=True)
    except Exception as error:  # onnx raises bare C++ exceptions of several types
        raise BadRequest(
            cause=f"the model is not a valid ONNX graph ({str(error).strip().splitlines()[0]})",
            cure="Check it with onnx.checker.check_model and export it again.",
        ) from error
    tensors: dict[str, TensorInfo] = {}
    graph = inferred.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if all(dim.HasField("dim_value") for dim in kind.shape.dim) and kind.HasField("shape"):
            shape = tuple(int(dim.dim_value) for dim in kind.shape.dim)
            tensors[value.name] = TensorInfo(shape, kind.elem_type)
    for key, array in constants.items():
        tensors[key] = TensorInfo(array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
    return tensors


def _node(proto: onnx.NodeProto, index: int, tensors: Mapping[str, TensorInfo]) -> Node:
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    windows: tuple[Window, ...] = ()
    if op in _WINDOWED and proto.input[0] in tensors and proto.output[0] in tensors:
        kernel = attributes.get("kernel_shape") or tensors[proto.input[1]].shape[2:]
        sizes, outputs = tensors[proto.input[0]].shape[2:], tensors[proto.output[0]].shape[2:]
        windows = explicit_windows(attributes, kernel, sizes, outputs)
    return Node(
        name=proto.name or f"{proto.op_type}_{index}",
        op=op,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=attributes,
        proto=proto,
        windows=windows,
    )


def _require_shapes(graph: Graph) -> None:
    for node in graph.nodes:
        for name in node.outputs:
            if name and name not in graph.tensors:
                raise BadRequest(
                    cause=f"the shape of {name!r} (made by {node.op} {node.name!r}) is not known",
                    cure="Export the model with fixed shapes, or simplify it first.",
                )
