"""Tiny networks for measurements only: their weights have shapes but no values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.operators.work import NodeWork, tile_works
from models.tensors.boxes import Box

_OPSET = 17
_INPUT = "x"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input of a measured program; the worker fills it at random."""

    tensor: str
    data_type: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measurable:
    """A program to time, its inputs, and the work of one run."""

    program: Program
    inputs: tuple[TensorSpec, ...]
    works: tuple[NodeWork, ...]


class ProgramBuilder:
    """A chain of layers being built; every method appends one and returns its output.

    Maps are (1, C, H, W), tokens (1, tokens, width) or by heads (1, heads, tokens, width); float32.
    """

    def __init__(self, *shape: int) -> None:
        self._nodes: list[Any] = []
        self._weights: dict[str, tuple[int, ...]] = {}
        self._settings: dict[str, np.ndarray] = {}
        self.shape = shape
        self._inputs = {_INPUT: shape}
        self.channels: dict[str, int] = {_INPUT: shape[1]}
        self.last = _INPUT

    def extra_input(self, *shape: int) -> str:
        """Another input of the program."""
        name = f"{_INPUT}{len(self._inputs)}"
        self._inputs[name] = shape
        self.channels[name] = shape[1]
        return name

    def conv(self, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        """A convolution with bias, as a tile from the middle of a map has it: padded on the left
        and right so that stride 1 keeps the width, but not above or below.
        """
        x, side = self.last, kernel // 2
        weight = self._weight(channels, self.channels[x] // groups, kernel, kernel)
        pads = [0, side, 0, side]
        attributes = {"strides": [stride] * 2, "pads": pads, "group": groups}
        return self._add("Conv", (x, weight, self._weight(channels)), channels, **attributes)

    def pool(self, kernel: int = 2, stride: int = 2, op: str = "MaxPool") -> str:
        """A pool without padding."""
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
        return self._add(op, (self.last,), self.channels[self.last], **attributes)

    def activation(self, op: str = "Relu", **attributes: Any) -> str:
        """A unary elementwise operator."""
        return self._add(op, (self.last,), self.channels[self.last], **attributes)

    def norm(self) -> str:
        """Batch normalisation."""
        channels = self.channels[self.last]
        weights = tuple(self._weight(channels) for _ in range(4))
        return self._add("BatchNormalization", (self.last, *weights), channels)

    def join(self, other: str, op: str = "Add") -> str:
        """An elementwise operator on the chain and another tensor of the same shape."""
        return self._add(op, (self.last, other), self.channels[self.last])

    def concat(self, other: str) -> str:
        """The chain and another map, concatenated along the channels."""
        channels = self.channels[self.last] + self.channels[other]
        return self._add("Concat", (self.last, other), channels, axis=1)

    def space_to_depth(self) -> str:
        """Moves every 2x2 of the map into channels."""
        return self._add("SpaceToDepth", (self.last,), 4 * self.channels[self.last], blocksize=2)

    def transpose(self) -> str:
        """The channels of a map last, as where tokens are made of it."""
        return self._add("Transpose", (self.last,), self.shape[2], perm=[0, 2, 3, 1])

    def softmax(self) -> str:
        """Softmax over the last axis."""
        return self._add("Softmax", (self.last,), self.channels[self.last], axis=-1)

    def layer_norm(self, width: int) -> str:
        """Layer normalisation over the last axis, which has this width."""
        inputs = (self.last, self._weight(width), self._weight(width))
        return self._add("LayerNormalization", inputs, self.channels[self.last], axis=-1)

    def linear(self, width: int, outputs: int) -> str:
        """A product of tokens of this width with weights."""
        inputs = (self.last, self._weight(width, outputs))
        return self._add("MatMul", inputs, self.channels[self.last])

    def bias(self, width: int) -> str:
        """Weights of this width added to the last axis."""
        return self._add("Add", (self.last, self._weight(width)), self.channels[self.last])

    def with_number(self, op: str, number: float) -> str:
        """An elementwise operator with a constant number."""
        name = self._setting(np.array(number, np.float32))
        return self._add(op, (self.last, name), self.channels[self.last])

    def gelu(self) -> str:
        """The activation of transformers, as exporters write it [Hendrycks and Gimpel, 2016]."""
        x = self.last
        self.with_number("Div", 2**0.5)
        self.activation("Erf")
        self.with_number("Add", 1.0)
        self.join(x, "Mul")
        return self.with_number("Mul", 0.5)

    def multiply(self, other: str) -> str:
        """A product with another tensor, as in attention."""
        return self._add("MatMul", (self.last, other), self.channels[self.last])

    def resize(self, mode: str) -> str:
        """The map at twice its rows and columns."""
        scales = self._setting(np.array([1, 1, 2, 2], dtype=np.float32))
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
        if mode == "nearest":
            attributes["nearest_mode"] = "floor"
        inputs = (self.last, "", scales)
        return self._add("Resize", inputs, self.channels[self.last], **attributes)

    def gemm(self, outputs: int) -> str:
        """A fully connected layer over a vector."""
        weight = self._weight(outputs, self.channels[self.last])
        inputs = (self.last, weight, self._weight(outputs))
        return self._add("Gemm", inputs, outputs, transB=1)

    def measurable(self) -> Measurable:
        """The finished program."""
        graph = self._graph()
        output = graph.outputs[0]
        demand = {output: Box.whole(graph.shape(output))}
        piece = cut(graph, graph.nodes, demand, _Nameless(), static=True)
        specs = tuple(
            TensorSpec(name, int(TensorProto.FLOAT), box.shape)
            for name, box in piece.inputs.items()
        )
        return Measurable(piece.program, specs, tuple(tile_works(graph, graph.nodes, demand)))

    def _graph(self) -> Graph:
        """The graph; weights are inputs during shape inference, then constants without memory."""
        shapes = {**self._inputs, **self._weights}
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in shapes.items()
        ]
        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        settings = [numpy_helper.from_array(each, name) for name, each in self._settings.items()]
        model = helper.make_model(
            helper.make_graph(self._nodes, "sample", inputs, [output], settings),
            opset_imports=[helper.make_opsetid("", _OPSET)],
        )
        zeros = {name: np.broadcast_to(np.float32(0), dims) for name, dims in self._weights.items()}
        constants = {**zeros, **self._settings}
        return replace(load_graph(model), inputs=tuple(self._inputs), constants=constants)

    def _setting(self, array: np.ndarray) -> str:
        name = f"s{len(self._settings)}"
        self._settings[name] = array
        return name

    def _weight(self, *dims: int) -> str:
        name = f"w{len(self._weights)}"
        self._weights[name] = dims
        return name

    def _add(self, op: str, inputs: Sequence[str], channels: int, **attributes: Any) -> str:
        output = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        self.channels[output] = channels
        self.last = output
        return output


class _Nameless(BlobSource):
    """Gives weights no content hash, so that the worker fills them at random."""

    def add(self, array: np.ndarray) -> str:
        """No hash."""
        return ""

    def add_box(self, constant: np.ndarray, box: Box, shape: Sequence[int] | None = None) -> str:
        """No hash."""
        return ""
