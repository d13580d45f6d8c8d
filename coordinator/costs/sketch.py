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
    """A chain of layers being built, `channels` wide where the last convolution made it so.

    Maps are (1, C, H, W), tokens (1, tokens, width) or by heads (1, heads, tokens, width); float32.
    """

    def __init__(self, *shape: int) -> None:
        self._nodes: list[Any] = []
        self._weights: dict[str, tuple[int, ...]] = {}
        self._constants: dict[str, np.ndarray] = {}
        self.shape = shape
        self._inputs = {_INPUT: shape}
        self.channels = shape[1]
        self.last = _INPUT

    def extra_input(self, *shape: int) -> str:
        """Another input of the program."""
        name = f"{_INPUT}{len(self._inputs)}"
        self._inputs[name] = shape
        return name

    def conv(self, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        """A convolution with bias, as a tile from the middle of a map has it: padded on the left
        and right so that stride 1 keeps the width, but not above or below.
        """
        side, inputs = kernel // 2, self.channels // groups
        weights = self.weight(channels, inputs, kernel, kernel), self.weight(channels)
        pads = [0, side, 0, side]
        self.add("Conv", *weights, strides=[stride] * 2, pads=pads, group=groups)
        self.channels = channels

    def norm(self) -> None:
        """Batch normalisation."""
        self.add("BatchNormalization", *(self.weight(self.channels) for _ in range(4)))

    def gelu(self) -> None:
        """The activation of transformers, as exporters write it [Hendrycks and Gimpel, 2016]."""
        x = self.last
        self.add("Div", self.constant(2**0.5))
        self.add("Erf")
        self.add("Add", self.constant(1.0))
        self.add("Mul", x)
        self.add("Mul", self.constant(0.5))

    def resize(self, mode: str) -> None:
        """The map at twice its rows and columns."""
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
        if mode == "nearest":
            attributes["nearest_mode"] = "floor"
        self.add("Resize", "", self.constant([1, 1, 2, 2]), **attributes)

    def add(self, op: str, *others: str, **attributes: Any) -> None:
        """Any operator on the chain and these other tensors."""
        inputs, output = [self.last, *others], f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        self.last = output

    def weight(self, *dims: int) -> str:
        """A weight of this shape."""
        name = f"w{len(self._weights)}"
        self._weights[name] = dims
        return name

    def constant(self, values: float | Sequence[float]) -> str:
        """A constant of these values."""
        name = f"s{len(self._constants)}"
        self._constants[name] = np.array(values, np.float32)
        return name

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
        known = [numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        model = helper.make_model(
            helper.make_graph(self._nodes, "sample", inputs, [output], known),
            opset_imports=[helper.make_opsetid("", _OPSET)],
        )
        zeros = {name: np.broadcast_to(np.float32(0), dims) for name, dims in self._weights.items()}
        constants = {**zeros, **self._constants}
        return replace(load_graph(model), inputs=tuple(self._inputs), constants=constants)


class _Nameless(BlobSource):
    """Gives weights no content hash, so that the worker fills them at random."""

    def add(self, array: np.ndarray) -> str:
        """No hash."""
        return ""

    def add_box(self, constant: np.ndarray, box: Box, shape: Sequence[int] | None = None) -> str:
        """No hash."""
        return ""
