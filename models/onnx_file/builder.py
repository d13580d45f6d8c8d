"""A small fluent builder of ONNX networks with seeded weights.

    net = NetworkBuilder("tiny", seed=7)
    x = net.input("image", (1, 3, 32, 32))
    x = x.conv("conv1", 16, square(3)).relu().max_pool("pool1", square(2, 2))
    model = net.model(x.flatten("flatten").gemm("fc", 10))

A node and the tensor that it makes share one name; what belongs to a layer is named after it
(`conv1`, `conv1_bn`, `conv1_relu`), and so are its weights (`conv1.weight`, `conv1.bias`).

Weights are He-uniform, var(w) = 2 / fan_in, so that a ReLU network keeps its scale: input of
mean square 1/2 gives variance 1, whose ReLU has mean square 1/2 again. They are made of PCG64's
bits by exactly rounded float32 arithmetic only, so every machine makes the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from models.onnx_file.stored import Allocate, StoredModel
from models.tensors.windows import Window

OPSET = 17
IR_VERSION = 9

# In metadata_props, so that a network saved to a file is still identified.
WEIGHTS_KEY = "imbrex.weights"
UNTRAINED = "untrained, for benchmarks"

# Small against activations of variance 1, but never zero: a tile that treats the map's border
# wrongly must show in the output.
BIAS = 0.05
# Half-widths of the spread of batch normalisation's statistics about mean 0, variance 1,
# scale 1, shift 0, which suit a convolution whose input has mean square 1/2.
NORM_SPREAD = 0.1
VARIANCE_SPREAD = 0.3
EPSILON = 1e-5


Windows = tuple[Window, Window]
"""Along rows and along columns."""


def square(kernel: int, stride: int = 1, *, pad: int | None = None, dilation: int = 1) -> Windows:
    """A square window. Its pad is `pad` on every side, or as much as keeps the map's size at
    stride 1 (for an even kernel, one less than that in total)."""
    side = dilation * (kernel - 1) // 2 if pad is None else pad
    window = Window(kernel, stride, dilation, side, side)
    return window, window


@dataclass(frozen=True, slots=True)
class _Draw:
    """Weights to be drawn evenly from `about` -+ `spread`."""

    name: str
    shape: tuple[int, ...]
    about: float
    spread: float


class NetworkBuilder:
    """A network under construction; nodes are appended in the order of the calls."""

    def __init__(self, name: str, seed: int) -> None:
        self._seed = seed
        self._model = helper.make_model(
            helper.make_graph([], name, [], []),
            producer_name="imbrex",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        helper.set_model_props(self._model, {WEIGHTS_KEY: UNTRAINED})
        self._names: set[str] = set()
        self._draws: list[_Draw] = []

    def input(self, name: str, shape: Sequence[int]) -> NetworkTensor:
        """Declares a float32 input."""
        self._claim(name)
        self._model.graph.input.append(_float_info(name, shape))
        return NetworkTensor(self, name, tuple(shape), layer=name)

    def node(
        self, op: str, name: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any
    ) -> NetworkTensor:
        """Appends any operator with one output of this shape."""
        self._claim(name)
        self._model.graph.node.append(
            helper.make_node(op, list(inputs), [name], name=name, **attributes)
        )
        return NetworkTensor(self, name, tuple(shape), layer=name)

    def split(self, name: str, tensor: NetworkTensor, sizes: Sequence[int]) -> list[NetworkTensor]:
        """Splits channels into parts of these sizes, named `name`, `name_2`, ..."""
        assert sum(sizes) == tensor.shape[1]
        inputs = [tensor.name, self.integers(f"{name}.sizes", sizes)]
        names = [name, *(f"{name}_{index}" for index in range(2, len(sizes) + 1))]
        for output in names:
            self._claim(output)
        self._model.graph.node.append(helper.make_node("Split", inputs, names, name=name, axis=1))
        batch, _, *rest = tensor.shape
        return [
            NetworkTensor(self, output, (batch, size, *rest), layer=name)
            for output, size in zip(names, sizes, strict=True)
        ]

    def concat(self, name: str, parts: Sequence[NetworkTensor], axis: int = 1) -> NetworkTensor:
        """Joins tensors, by default along channels."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("Concat", name, [part.name for part in parts], shape, axis=axis)

    def he_weight(self, name: str, shape: Sequence[int]) -> str:
        """Adds a weight (out, in per group, ...) of variance 2 / fan_in; returns its name."""
        limit = math.sqrt(6 / math.prod(shape[1:]))
        return self.uniform_weight(name, shape, about=0.0, spread=limit)

    def uniform_weight(
        self, name: str, shape: Sequence[int], *, about: float, spread: float
    ) -> str:
        """Adds a weight drawn evenly from `about` -+ `spread`; returns its name."""
        self._draws.append(_Draw(name, tuple(shape), about, spread))
        return self._initialiser(name, shape, TensorProto.FLOAT)

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
        """Adds an initialiser with these values; returns its name."""
        values = values.astype("<f4", copy=False)
        return self._initialiser(name, values.shape, TensorProto.FLOAT, values.tobytes())

    def integers(self, name: str, values: Sequence[int]) -> str:
        """Adds a one-dimensional int64 initialiser (sizes, pads, axes); returns its name."""
        data = np.array(values, "<i8").tobytes()
        return self._initialiser(name, [len(values)], TensorProto.INT64, data)

    def stored(self, *outputs: NetworkTensor) -> StoredModel:
        """The finished network, whose weights are generated at each read; this builder must not be
        used afterwards.
        """
        graph = self._model.graph
        graph.output.extend(_float_info(tensor.name, tensor.shape) for tensor in outputs)
        sizes = tuple(4 * math.prod(draw.shape) for draw in self._draws)
        return StoredModel(self._model, self._drawn, sizes)

    def model(self, *outputs: NetworkTensor) -> ModelProto:
        """The finished network with its weights; this builder must not be used afterwards."""
        return self.stored(*outputs).complete()

    def has(self, name: str) -> bool:
        """Whether a node or constant of this name was added."""
        return name in self._names

    def _drawn(self, room: Allocate) -> dict[str, NDArray[np.float32]]:
        rng, arrays = np.random.Generator(np.random.PCG64(self._seed)), {}
        for draw in self._draws:
            values = arrays[draw.name] = room(np.dtype(np.float32), draw.shape)
            rng.random(dtype=np.float32, out=values)
            values *= np.float32(2 * draw.spread)
            values += np.float32(draw.about - draw.spread)
            values.flags.writeable = False
        return arrays

    def _initialiser(
        self, name: str, shape: Sequence[int], data_type: int, data: bytes | None = None
    ) -> str:
        self._claim(name)
        weight = self._model.graph.initializer.add()
        weight.name = name
        weight.data_type = data_type
        weight.dims.extend(shape)
        if data is not None:
            weight.raw_data = data
        return name

    def _claim(self, name: str) -> None:
        assert name not in self._names, f"{name} is taken"
        self._names.add(name)


@dataclass(frozen=True, slots=True, eq=False)
class NetworkTensor:
    """A tensor of a network under construction; each method appends a layer that reads it.

    Maps are (N, C, H, W).
    """

    network: NetworkBuilder
    name: str
    shape: tuple[int, ...]
    layer: str
    """Name of the layer that it belongs to, after which normalisation and activation are named."""

    def conv(
        self,
        name: str,
        channels: int,
        windows: Windows,
        *,
        groups: int = 1,
        bias: bool = True,
        bias_about: float = 0.0,
    ) -> NetworkTensor:
        """A convolution; leave the bias out where `norm` follows."""
        net = self.network
        inputs = [
            self.name,
            net.he_weight(f"{name}.weight", (channels, self.shape[1] // groups, *_kernel(windows))),
        ]
        if bias:
            spread = {"about": bias_about, "spread": BIAS}
            inputs.append(net.uniform_weight(f"{name}.bias", (channels,), **spread))
        return net.node(
            "Conv",
            name,
            inputs,
            (self.shape[0], channels, *self._walked(windows)),
            group=groups,
            dilations=[window.dilation for window in windows],
            **_window_attributes(windows),
        )

    def norm(self, *, scale: float = 1.0) -> NetworkTensor:
        """Batch normalisation to a standard deviation of about `scale`."""
        net, channels, name = self.network, (self.shape[1],), f"{self.layer}_bn"
        spread = NORM_SPREAD * scale
        weights = [
            net.uniform_weight(f"{name}.scale", channels, about=scale, spread=spread),
            net.uniform_weight(f"{name}.shift", channels, about=0.0, spread=spread),
            net.uniform_weight(f"{name}.mean", channels, about=0.0, spread=NORM_SPREAD),
            net.uniform_weight(f"{name}.variance", channels, about=1.0, spread=VARIANCE_SPREAD),
        ]
        return self.attached("BatchNormalization", "bn", weights, epsilon=EPSILON)

    def relu(self) -> NetworkTensor:
        """max(x, 0)."""
        return self.attached("Relu", "relu")

    def leaky_relu(self, slope: float) -> NetworkTensor:
        """x, times `slope` where it is negative."""
        return self.attached("LeakyRelu", "leaky", alpha=slope)

    def max_pool(self, name: str, windows: Windows) -> NetworkTensor:
        """The window's maximum; pads never win."""
        return self._pool(
            "MaxPool", name, windows, dilations=[window.dilation for window in windows]
        )

    def average_pool(
        self, name: str, windows: Windows, *, count_pads: bool = False
    ) -> NetworkTensor:
        """The window's mean, over the map's own values unless `count_pads`."""
        assert all(window.dilation == 1 for window in windows), (
            "AveragePool dilates only from opset 19"
        )
        return self._pool("AveragePool", name, windows, count_include_pad=int(count_pads))

    def global_average_pool(self, name: str) -> NetworkTensor:
        """Each channel's mean: (N, C, 1, 1)."""
        return self.network.node("GlobalAveragePool", name, [self.name], (*self.shape[:2], 1, 1))

    def flatten(self, name: str) -> NetworkTensor:
        """(N, C, H, W) to (N, C * H * W)."""
        shape = (self.shape[0], math.prod(self.shape[1:]))
        return self.network.node("Flatten", name, [self.name], shape, axis=1)

    def gemm(self, name: str, features: int) -> NetworkTensor:
        """A fully connected layer over (N, features in); its weight is (out, in)."""
        net, (batch, depth) = self.network, self.shape
        inputs = [
            self.name,
            net.he_weight(f"{name}.weight", (features, depth)),
            net.uniform_weight(f"{name}.bias", (features,), about=0.0, spread=BIAS),
        ]
        return net.node("Gemm", name, inputs, (batch, features), transB=1)

    def add(self, name: str, other: NetworkTensor) -> NetworkTensor:
        """The sum with a tensor of the same shape."""
        assert self.shape == other.shape
        return self.network.node("Add", name, [self.name, other.name], self.shape)

    def space_to_depth(self, name: str, block: int) -> NetworkTensor:
        """(N, C, H, W) to (N, C * block^2, H / block, W / block)."""
        batch, channels, rows, cols = self.shape
        shape = (batch, channels * block**2, rows // block, cols // block)
        return self.network.node("SpaceToDepth", name, [self.name], shape, blocksize=block)

    def _walked(self, windows: Windows) -> list[int]:
        """Rows and columns of the map that these windows make of this one."""
        return [
            (size + window.pad_start + window.pad_end - window.reach) // window.stride + 1
            for size, window in zip(self.shape[2:], windows, strict=True)
        ]

    def attached(
        self, op: str, suffix: str, weights: Sequence[str] = (), **attributes: Any
    ) -> NetworkTensor:
        """A pointwise operator that belongs to this tensor's layer."""
        name = f"{self.layer}_{suffix}"
        made = self.network.node(op, name, [self.name, *weights], self.shape, **attributes)
        return NetworkTensor(self.network, name, made.shape, self.layer)

    def _pool(self, op: str, name: str, windows: Windows, **attributes: Any) -> NetworkTensor:
        return self.network.node(
            op,
            name,
            [self.name],
            (*self.shape[:2], *self._walked(windows)),
            **_window_attributes(windows),
            **attributes,
        )


def _kernel(windows: Windows) -> list[int]:
    return [window.kernel for window in windows]


def _window_attributes(windows: Windows) -> dict[str, list[int]]:
    """The attributes that Conv and both pools share; ONNX lists all starts of pads, then all
    ends.
    """
    return {
        "kernel_shape": _kernel(windows),
        "strides": [window.stride for window in windows],
        "pads": [
            *(window.pad_start for window in windows),
            *(window.pad_end for window in windows),
        ],
    }


def _float_info(name: str, shape: Sequence[int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
