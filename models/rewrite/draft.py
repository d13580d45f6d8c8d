"""A graph that is being rewritten."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto, helper

from models.graph.shapes import TensorInfo
from models.operators.declaration import Attribute, with_attributes
from models.tensors.arrays import Arrays


@dataclass
class Draft:
    """Nodes in order, written one after the other; `tensors` knows those of the model, `rows` where
    theirs lie, if not along axis 2. `gathered` are small tensors that one device is to have whole,
    `dequantised` what Dequantize makes of constants, `reshaped` the tensors that others are with
    another shape, and which they have themselves.
    """

    opset: int
    tensors: dict[str, TensorInfo]
    constants: dict[str, np.ndarray]
    outputs: frozenset[str]
    nodes: list[NodeProto] = field(default_factory=list)
    gathered: set[str] = field(default_factory=set)
    dequantised: dict[str, NodeProto] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    reshaped: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def is_fixed(self, tensor: str) -> bool:
        """Whether a tensor is constant, or dequantised from constants."""
        return tensor in self.constants or tensor in self.dequantised

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor of the model."""
        return self.tensors[tensor].shape

    def constant(self, name: str, array: np.ndarray) -> str:
        """Adds a constant."""
        self.constants[name] = array
        return name

    def ints(self, name: str, values: Sequence[int]) -> str:
        """Adds a constant list of integers."""
        return self.constant(name, np.array(values, dtype=np.int64))

    def emit(self, op: str, inputs: list[str], output: str, **attributes: Attribute) -> str:
        """Appends a node named after its output."""
        proto = helper.make_node(op, inputs, [output], name=output)
        self.nodes.append(with_attributes(proto, attributes))
        return output

    def cast(self, source: str, output: str, data_type: int) -> str:
        """The same tensor of another type."""
        self.tensors[output] = TensorInfo(self.shape(source), data_type)
        return self.emit("Cast", [source], output, to=data_type)

    def reduce(self, op: str, source: str, output: str, axes: list[int]) -> str:
        """A Reduce operator that keeps dimensions, in the form of the opset."""
        if self.opset >= (13 if op == "ReduceSum" else 18):
            return self.emit(op, [source, self.ints(f"{output}__axes", axes)], output)
        return self.emit(op, [source], output, axes=axes)

    def reshape(self, source: str, output: str, shape: Sequence[int]) -> str:
        """The same elements in another shape."""
        return self.emit("Reshape", [source, self.ints(f"{output}__shape", shape)], output)

    def part(self, source: str, output: str, axis: int, start: int, stop: int) -> str:
        """Elements [start, stop) along an axis."""
        parts = {"starts": [start], "ends": [stop], "axes": [axis]}
        if self.opset < 10:
            return self.emit("Slice", [source], output, **parts)
        labels = [self.ints(f"{output}__{key}", values) for key, values in parts.items()]
        return self.emit("Slice", [source, *labels], output)

    def over_map(self, op: str, source: str, output: str, rank: int, *, channels: bool) -> str:
        """A reduction over the map (and channels), in two steps: along each row, which every device
        can do for its rows, then over the rows' results.
        """
        if rank > 3:
            across = [*([1] if channels else []), *range(3, rank)]
            source = self.reduce(op, source, f"{output}__rows", across)
        elif channels:
            source = self.reduce(op, source, f"{output}__rows", [1])
        return self.reduce(op, source, output, [2])


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def op_of(node: NodeProto) -> str:
    """The operator, with its domain in front unless it is ONNX's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def joined_axis(node: NodeProto, rank: int) -> int:
    """The axis along which a Concat joins tensors of so many dimensions."""
    return int(attributes_of(node).get("axis", 1)) % rank


class Slice(NamedTuple):
    """Elements [start, stop) along one axis."""

    axis: int
    start: int
    stop: int


def slice_of(node: NodeProto, tensors: Mapping[str, TensorInfo], constants: Arrays) -> Slice | None:
    """What a Slice takes, if that is a range along one axis alone."""
    if node.op_type != "Slice" or node.input[0] not in tensors:
        return None
    if any(name and name not in constants for name in node.input[1:]):
        return None
    shape, given = tensors[node.input[0]].shape, attributes_of(node)
    starts, ends, axes, steps = (
        given.get(key) or _constant(node, place, constants)
        for place, key in enumerate(("starts", "ends", "axes", "steps"), start=1)
    )
    if not starts or not ends or len(starts) != 1 or (steps or [1]) != [1]:
        return None
    axis = (axes or [0])[0] % len(shape)
    ends = [
        min(max(place + shape[axis] * (place < 0), 0), shape[axis]) for place in (*starts, *ends)
    ]
    return Slice(axis, *ends)


def _constant(node: NodeProto, place: int, constants: Arrays) -> list[int] | None:
    name = node.input[place] if len(node.input) > place else ""
    return constants[name].reshape(-1).tolist() if name in constants else None
