"""The network `digits`: its layers, its cost, and its ONNX graph from a dict of weights.

Eleven convolutions down to stride 16 and a YOLOv2 head, all of it cuttable into spatial tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

Weights = Mapping[str, NDArray[np.float32]]
"""`conv1.weight` (out, in, k, k) and `conv1.bias` (out,), and so on, batch normalisation folded."""

SIDE = 416
STRIDE = 16
CLASSES = 10
# Width and height in cells of STRIDE pixels: k-means of training boxes by IoU.
ANCHORS = ((1.4, 2.2), (2.2, 3.4), (3.7, 5.4))
HEAD_CHANNELS = len(ANCHORS) * (5 + CLASSES)
OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class Conv:
    """A square convolution with 'same' padding; `relu` follows except after the head."""

    name: str
    channels: int
    kernel: int = 3
    stride: int = 1
    relu: bool = True


@dataclass(frozen=True, slots=True)
class Pool:
    """A 2x2 maximum with stride 2."""

    name: str


Layer = Conv | Pool

LAYERS: tuple[Layer, ...] = (
    Conv("conv1", 16, stride=2),
    Conv("conv2", 24),
    Pool("pool1"),
    Conv("conv3", 48),
    Pool("pool2"),
    Conv("conv4", 64),
    Conv("conv5", 96),
    Pool("pool3"),
    Conv("conv6", 128),
    Conv("conv7", 64, kernel=1),
    Conv("conv8", 128),
    Conv("conv9", 64, kernel=1),
    Conv("conv10", 128),
    Conv("head", HEAD_CHANNELS, kernel=1, relu=False),
)


@dataclass(frozen=True, slots=True)
class Shaped:
    """A layer, the channels of the maps that it reads and writes, and the side of the latter."""

    layer: Layer
    channels_in: int
    channels_out: int
    side_out: int

    @property
    def flop(self) -> int:
        """Two per multiply-add; a pool counts as none."""
        if isinstance(self.layer, Pool):
            return 0
        taps = self.layer.kernel**2 * self.channels_in
        return 2 * taps * self.channels_out * self.side_out**2


def shaped() -> Iterator[Shaped]:
    """The layers in order with the maps between them."""
    channels, side = 3, SIDE
    for layer in LAYERS:
        stride = 2 if isinstance(layer, Pool) else layer.stride
        wider = channels if isinstance(layer, Pool) else layer.channels
        yield Shaped(layer, channels, wider, side // stride)
        channels, side = wider, side // stride


def flop() -> int:
    """Cost of one inference, two per multiply-add."""
    return sum(step.flop for step in shaped())


def build(weights: Weights) -> ModelProto:
    """The ONNX model: `image` float32 (1, 3, 416, 416) in 0..255 -> `grid` (1, 45, 26, 26)."""
    nodes: list[NodeProto] = []
    value = "image"
    for layer in LAYERS:
        made = _nodes(layer, value)
        nodes += made
        value = made[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, SIDE, SIDE))],
        [helper.make_tensor_value_info("grid", TensorProto.FLOAT, _grid_shape())],
        [numpy_helper.from_array(array, name) for name, array in _checked(weights)],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="imbrex",
    )
    checker.check_model(model, full_check=True)
    return model


def _grid_shape() -> tuple[int, int, int, int]:
    return (1, HEAD_CHANNELS, SIDE // STRIDE, SIDE // STRIDE)


def _nodes(layer: Layer, source: str) -> list[NodeProto]:
    """The ONNX nodes of one layer, each writing a value of its own name."""
    name = layer.name
    if isinstance(layer, Pool):
        return [
            helper.make_node(
                "MaxPool", [source], [name], name=name, kernel_shape=[2, 2], strides=[2, 2]
            )
        ]
    output = name if layer.relu else "grid"
    conv = helper.make_node(
        "Conv",
        [source, f"{name}.weight", f"{name}.bias"],
        [output],
        name=name,
        kernel_shape=[layer.kernel] * 2,
        strides=[layer.stride] * 2,
        pads=[layer.kernel // 2] * 4,
    )
    if not layer.relu:
        return [conv]
    return [conv, helper.make_node("Relu", [name], [f"{name}_relu"], name=f"{name}_relu")]


def _checked(weights: Weights) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The weights in the order of the layers, each of the shape its layer needs."""
    for step in shaped():
        if isinstance(step.layer, Pool):
            continue
        kernel = step.layer.kernel
        for part, shape in (
            ("weight", (step.channels_out, step.channels_in, kernel, kernel)),
            ("bias", (step.channels_out,)),
        ):
            name = f"{step.layer.name}.{part}"
            array = np.ascontiguousarray(weights[name], dtype=np.float32)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, its layer needs {shape}")
            yield name, array
