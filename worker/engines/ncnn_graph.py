"""Writes a program as ncnn describes a network: a text of layers, and weights in their order.

ncnn has no batch axis: an axis of size 1 in front is left out everywhere. Sizes are fixed, and
equal programs make equal texts: blobs are numbered.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from models.cut.program import Program
from models.tensors.arrays import Arrays, Shape
from worker.engines.ncnn_algorithms import choose_algorithms
from worker.engines.ncnn_layer import CONVOLUTIONS, Layer, Unknown
from worker.engines.ncnn_rewrites import rewritten
from worker.programs.graphs import declare_input

MapShapes = Mapping[str, Shape]
# Numbers and arrays of numbers, by ncnn's number of a parameter.
Parameters = Mapping[int, Any]

_MAGIC = 7767517
# Tag of weights in 32 bits.
PLAIN = np.zeros(1, np.int32)
# ncnn's numbers of the sizes of a tensor, from its first axis on, by their count.
_SIZES = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
# The elements that a channel begins at a multiple of.
_ALIGNED = 4
# A tensor is copied out as channels of another one of at most so many times its size.
_MOST_LEFT_OUT = 4
# The operands after which come settings, not tensors, by operator.
_TENSORS = {"Clip": 1, "Pad": 1, "Reshape": 1, "Resize": 1, "Slice": 1, "Split": 1}
_TENSORS |= {"ReduceMean": 1, "Squeeze": 1, "Unsqueeze": 1, "Upsample": 1}


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the program: its blob, its shape there, and whether ncnn must get a copy."""

    blob: str
    shape: Shape
    copied: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Channels [start, stop) of a blob, counted along the first axis."""

    blob: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class NcnnGraph:
    """A program as ncnn reads it: text, weights in their order, inputs, and the blobs that outputs
    consist of, one after the other; `tile` is the size of Winograd's tiles of output elements, 4 or
    2, and `weight_bytes` what a net's weights take in 32 bits.
    """

    text: str
    weights: Sequence[np.ndarray] = field(repr=False)
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Sequence[Part]]
    tile: int
    weight_bytes: int

    def entries(self, inputs: Arrays) -> dict[str, tuple[np.ndarray, bool]]:
        """Inputs by blob as ncnn takes them, without the batch, contiguous and in 32 bits, and
        whether they must be copied.
        """
        return {
            entry.blob: (
                np.ascontiguousarray(inputs[name].reshape(entry.shape), np.float32),
                entry.copied,
            )
            for name, entry in self.inputs.items()
        }


def inferred(model: ModelProto, program: Program, shapes: MapShapes) -> dict[str, Shape]:
    """The shapes of all tensors that ONNX can infer."""
    sized = ModelProto()
    sized.CopyFrom(model)
    for value in (*sized.graph.input, *sized.graph.output):
        dims = value.type.tensor_type.shape
        if value.name in shapes:
            del dims.dim[:]
            for size in shapes[value.name]:
                dims.dim.add(dim_value=size)
        else:
            value.type.tensor_type.ClearField("shape")
    del sized.graph.value_info[:]
    for ref in program.weights:
        declare_input(sized, ref)
    try:
        inferred = shape_inference.infer_shapes(sized, strict_mode=True, data_prop=True).graph
    except Exception as error:
        raise Unknown(f"sizes that do not fit: {str(error)[:200]}") from None
    sizes: dict[str, Shape] = {}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        tensor = value.type.tensor_type
        is_known = all(dim.HasField("dim_value") for dim in tensor.shape.dim)
        if tensor.HasField("shape") and is_known:
            sizes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return sizes


class Translation:
    """A program on its way to ncnn: the layers so far."""

    def __init__(
        self,
        model: ModelProto,
        weights: Arrays,
        sizes: dict[str, Shape],
        inputs: MapShapes,
    ) -> None:
        self._model = model
        self._sizes = sizes
        self._inputs = inputs
        self.opset = next(
            entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")
        )
        self._constants = dict(weights) | {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self._layers: list[Layer] = []
        self._count = 0
        # Tensors that are another one by name.
        self._same: dict[str, str] = {}
        self._by_output: dict[str, Layer] = {}
        self._results = [value.name for value in model.graph.output]
        self._needed = self._needed_tensors()
        self._readers = Counter(
            name for node in self._nodes() for name in self._tensors(node)
        ) + Counter(self._results)

    def graph(self, operators: "Operators", threads: int, room_bytes: float) -> NcnnGraph:
        """The program, translated by these functions, for so many threads and a net with so many
        bytes for its weights.
        """
        for name in self._inputs:
            if name in self._needed:
                self._check_input(name)
                self._layers.append(Layer("Input", [], [name]))
        for node in self._nodes():
            self._translate(node, operators)
        ends = {self.blob(name) for name in self._results}
        layers = rewritten(self._layers, ends, self._sizes)
        self._layers, tile, weight_bytes = choose_algorithms(
            layers, self._sizes, threads, room_bytes
        )
        self._by_output = {layer.outputs[0]: layer for layer in self._layers}
        return self._written(tile, weight_bytes, self._shaped_inputs(ends))

    # ------------------------------------------------------------ what the program says

    def _tensors(self, node: NodeProto) -> list[str]:
        """What a node reads that is computed."""
        names = node.input[: _TENSORS.get(node.op_type, len(node.input))]
        return [name for name in names if name and name not in self._constants]

    def _needed_tensors(self) -> set[str]:
        needed = set(self._results)
        for node in reversed(self._model.graph.node):
            if node.op_type == "Constant":
                (entry,) = node.attribute
                value = helper.get_attribute_value(entry)
                is_tensor = entry.name == "value"
                array = numpy_helper.to_array(value) if is_tensor else np.asarray(value)
                self._constants[node.output[0]] = array
        for node in reversed(self._model.graph.node):
            if not needed.isdisjoint(node.output):
                needed.update(self._tensors(node))
        return needed

    def _nodes(self) -> Iterator[NodeProto]:
        for node in self._model.graph.node:
            if node.op_type != "Constant" and not self._needed.isdisjoint(node.output):
                yield node

    def _check_input(self, name: str) -> None:
        kind = next(
            value.type.tensor_type.elem_type
            for value in self._model.graph.input
            if value.name == name
        )
        readers = [node for node in self._nodes() if name in self._tensors(node)]
        if kind != TensorProto.FLOAT and any(node.op_type != "Cast" for node in readers):
            raise Unknown(f"the input {name!r} of type {TensorProto.DataType.Name(kind)}")

    def dims(self, name: str) -> Shape:
        """A tensor's shape without the batch axis."""
        shape = self._sizes.get(name)
        if shape is None and name in self._constants:
            shape = self._constants[name].shape
        if shape is None:
            raise Unknown(f"{name!r}, whose size is not known")
        if not 2 <= len(shape) <= 5 or shape[0] != 1 or 0 in shape:
            raise Unknown(f"{name!r} of shape {shape}")
        return shape[1:]

    def constant(self, node: NodeProto, place: int) -> np.ndarray | None:
        """An operand that is a constant; None if it is not there.

        Raises:
            Unknown: it is computed.
        """
        if place >= len(node.input) or not node.input[place]:
            return None
        array = self._constants.get(node.input[place])
        if array is None:
            raise Unknown(f"{node.op_type} whose operand {place} is computed")
        return array

    def constant_of(self, name: str) -> np.ndarray | None:
        """The constant of this name, if it is one."""
        return self._constants.get(name)

    def operand(self, name: str, out: Shape) -> str:
        """A tensor with as many axes as `out`, to which it is repeated: ncnn would choose the axes
        of one with fewer by their sizes.
        """
        array = float32(self._constants.get(name))
        shape = self._sizes.get(name) if array is None else array.shape
        if shape is None:
            raise Unknown(f"{name!r}, whose size is not known")
        dims = (*(1 for _ in range(len(out) + 1 - len(shape))), *shape)
        if dims[0] != 1 or len(dims) != len(out) + 1:
            raise Unknown(f"{name!r} of shape {shape}")
        self._count += 1
        label = f"{name}__operand{self._count}"
        if array is not None:
            parameters = dict(zip(_SIZES[len(out)], dims[1:], strict=True))
            self._sizes[label] = dims
            self.add("MemoryData", [], label, parameters, [np.ascontiguousarray(array)])
            return label
        return name if dims == shape else self.reshape(name, dims[1:], label)

    def names_of_constants(self) -> Collection[str]:
        """The names of all constants."""
        return self._constants.keys()

    def is_needed(self, name: str) -> bool:
        """Whether an output depends on this tensor."""
        return name in self._needed

    def is_result(self, name: str) -> bool:
        """Whether a tensor is an output that nothing else reads."""
        return name in self._results and self.is_read_once(name)

    def size_along(self, name: str, axis: int) -> int:
        """A tensor's size along an axis."""
        return (1, *self.dims(name))[axis]

    def setting(self, node: NodeProto, name: str, place: int) -> list[int] | None:
        """Whole numbers that are an attribute, or an operand in later opsets."""
        values = attributes(node).get(name)
        if values is None and (array := self.constant(node, place)) is not None:
            values = array.reshape(-1).tolist()
        if values is None:
            return None
        return [int(value) for value in values] if isinstance(values, list) else [int(values)]

    # ------------------------------------------------------------ layers

    def blob(self, name: str) -> str:
        """The tensor that has this one's values."""
        while name in self._same:
            name = self._same[name]
        return name

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        output: str,
        parameters: Parameters | None = None,
        weights: Sequence[np.ndarray] = (),
    ) -> Layer:
        """Appends a layer with one output."""
        blobs = [self.blob(name) for name in inputs]
        if not self._constants.keys().isdisjoint(blobs):
            raise Unknown(f"{kind} of a constant")
        layer = Layer(kind, blobs, [output], dict(parameters or {}), list(weights))
        self._layers.append(layer)
        self._by_output[output] = layer
        return layer

    def reshape(self, name: str, dims: Shape, output: str) -> str:
        """Appends a change of shape."""
        self._sizes[output] = (1, *dims)
        self.add("Reshape", [name], output, dict(zip(_SIZES[len(dims)], dims, strict=True)))
        return output

    def rename(self, name: str, output: str) -> None:
        """Another name for a tensor."""
        self._same[output] = name

    def convolution_before(self, name: str) -> Layer | None:
        """The convolution without an activation that makes a tensor for one reader."""
        source = self.blob(name)
        layer = self._by_output.get(source)
        if layer is None or layer.kind not in CONVOLUTIONS or 9 in layer.parameters:
            return None
        return layer if self.is_read_once(name) and source == name else None

    def activate(self, node: NodeProto, number: int, kind: str, *values: float) -> None:
        """Has the convolution before this node do what the node does, as its activation of this
        number; without one, appends a layer of this kind.
        """
        layer = self.convolution_before(node.input[0])
        if layer is None:
            self.add(kind, node.input[:1], node.output[0], dict(enumerate(values)))
            return
        layer.parameters[9] = number
        if values:
            layer.parameters[10] = values
        self.becomes(layer, node.output[0])

    def becomes(self, layer: Layer, output: str) -> None:
        """Gives a layer's output another name."""
        layer.outputs[0] = output
        self._by_output[output] = layer

    def is_read_once(self, name: str) -> bool:
        """Whether one node reads this tensor, and nothing else does."""
        return self._readers[name] == 1

    def maker(self, name: str) -> Layer | None:
        """The layer that makes a tensor."""
        return self._by_output.get(self.blob(name))

    def drop(self, layer: Layer) -> None:
        """Removes a layer that another one replaces."""
        self._layers.remove(layer)

    def _translate(self, node: NodeProto, operators: "Operators") -> None:
        if node.domain not in ("", "ai.onnx") or node.op_type not in operators:
            raise Unknown(f"the operator {node.op_type}")
        used = [name for name in node.output if name in self._needed]
        if used != [node.output[0]] and node.op_type != "Split":
            raise Unknown(f"{node.op_type} with several outputs")
        for name in (*self._tensors(node), *used):
            self.dims(name)
        operators[node.op_type](self, node)

    # ------------------------------------------------------------ the text

    def _parts(self) -> dict[str, list[Part]]:
        """What the outputs consist of. Channels are joined and taken apart last of all while they
        are copied out, not by layers.
        """
        readers = Counter(name for layer in self._layers for name in layer.inputs)
        readers += Counter(self.blob(name) for name in self._results)
        parts: dict[str, list[Part]] = {}
        unread: list[str] = []
        for result in self._results:
            name = self.blob(result)
            layer = self._by_output.get(name)
            names = [name]
            joins = layer is not None and layer.kind == "Concat" and layer.parameters[0] == 0
            if layer is not None and joins and readers[name] == 1:
                unread.append(name)
                names = layer.inputs
            parts[result] = [self._part(source, readers, unread) for source in names]
        self._layers = [layer for layer in self._layers if layer.outputs[0] not in unread]
        return parts

    def _part(self, name: str, readers: Counter[str], unread: list[str]) -> Part:
        """A tensor, or the channels of another one that it is; then it may be left unread."""
        layer, channels = self._by_output.get(name), self.dims(name)[0]
        start = None if layer is None else layer.first_channel
        if layer is None or start is None:
            return Part(name, 0, channels)
        (source,) = layer.inputs
        if _MOST_LEFT_OUT * channels < self.dims(source)[0]:
            return Part(name, 0, channels)
        if readers[name] == 1:
            unread.append(name)
        return Part(source, start, start + channels)

    def _shaped_inputs(self, ends: Collection[str]) -> dict[str, str]:
        """The names of inputs by tensor: one that only a change of shape reads is given in that
        shape, without a layer.
        """
        read = Counter(name for layer in self._layers for name in layer.inputs) + Counter(ends)
        names = {name: name for name in self._inputs}
        for layer in [layer for layer in self._layers if layer.kind == "Reshape"]:
            (name,) = layer.inputs
            if name in names and read[name] == 1:
                self._layers.remove(layer)
                self.becomes(self._by_output[name], layer.outputs[0])
                names[layer.outputs[0]] = names.pop(name)
        return names

    def _written(self, tile: int, weight_bytes: int, names: Mapping[str, str]) -> NcnnGraph:
        """Numbers the blobs; a blob that is read more than once is split, since ncnn's blobs have
        one reader, which may consume them. `names` has those of inputs.
        """
        parts = self._parts()
        ends = {part.blob for result in parts.values() for part in result}
        if not self._constants.keys().isdisjoint(ends):
            raise Unknown("an output that is a constant")
        read = Counter(name for layer in self._layers for name in layer.inputs) + Counter(ends)
        in_place = {name for layer in self._layers if not layer.copies for name in layer.inputs}
        lines: list[str] = []
        waiting: dict[str, list[str]] = {}
        inputs: dict[str, Input] = {}
        count = 0
        for layer in self._layers:
            entries = [waiting[name].pop() for name in layer.inputs]
            (output,) = layer.outputs
            count += 1
            blob = f"b{count}"
            lines.append(layer.line(len(lines), entries, [blob]))
            if layer.kind == "Input":
                shape = self.dims(output)
                # ncnn would leave a gap behind each channel, for which layers look that copy or
                # divide several channels at once. An array has none.
                is_unaligned = len(shape) > 2 and prod(shape[1:]) % _ALIGNED != 0
                is_copied = output in in_place | ends or is_unaligned
                inputs[names[output]] = Input(blob, shape, is_copied)
            waiting[output] = [blob]
            if read[output] > 1:
                waiting[output] = [f"b{count + 1 + k}" for k in range(read[output])]
                count += read[output]
                lines.append(Layer("Split", [], []).line(len(lines), [blob], waiting[output]))
        last = {name: waiting[name].pop() for name in ends}
        outputs = {
            name: [replace(part, blob=last[part.blob]) for part in result]
            for name, result in parts.items()
        }
        text = "\n".join((str(_MAGIC), f"{len(lines)} {count}", *lines, ""))
        weights = [array for layer in self._layers for array in layer.weights]
        return NcnnGraph(text, weights, inputs, outputs, tile, weight_bytes)


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes by name."""
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def float32(array: np.ndarray | None) -> np.ndarray | None:
    """The weights, in the only type that is translated."""
    if array is not None and array.dtype != np.float32:
        raise Unknown(f"weights of type {array.dtype}")
    return array


Operators = Mapping[str, Callable[[Translation, NodeProto], None]]
