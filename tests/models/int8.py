"""Small quantised networks: QDQ as exporters write it, and QOperator."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

RUNTIME = "com.microsoft"
LAYERS = (
    *("conv", "linear", "pool", "residual", "concat", "gate"),
    *("own activation", "own sum", "own concat", "own pool"),
    *("product", "own softmax", "own mean"),
)


@dataclass
class Int8:
    """A quantised graph as it grows; `shapes[t]` is that of a uint8 tensor. `domain`: whose
    Quantize and Dequantize.
    """

    rng: np.random.Generator
    domain: str = ""
    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scales: dict[str, tuple[str, str]] = field(default_factory=dict)

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def scale(self) -> tuple[str, str]:
        """A scale and a zero point."""
        scale = np.float32(self.rng.uniform(0.01, 0.06))
        return self.constant(scale), self.constant(np.uint8(self.rng.integers(90, 160)))

    def quantise(self, source: str, shape: tuple[int, ...]) -> str:
        parts = self.scale()
        name = self.node("QuantizeLinear", [source, *parts], domain=self.domain)
        self.shapes[name], self.scales[name] = shape, parts
        return name

    def dequantise(self, source: str) -> str:
        return self.node("DequantizeLinear", [source, *self.scales[source]], domain=self.domain)

    def kernel(self, out: int, channels: int, size: int) -> tuple[str, str, str]:
        """Weights with a scale per output channel."""
        weights = self.rng.integers(-127, 128, (out, channels, size, size)).astype(np.int8)
        scales = self.rng.uniform(0.001, 0.01, out).astype(np.float32)
        points = np.zeros(out, np.int8)
        return self.constant(weights), self.constant(scales), self.constant(points)

    def conv(self, source: str, out: int, size: int, stride: int, relu: bool) -> str:
        _, channels, *sizes = self.shapes[source]
        parts = self.kernel(out, channels, size)
        weights = self.node("DequantizeLinear", list(parts), axis=0)
        pads = [size // 2] * 4
        made = self.node(
            "Conv", [self.dequantise(source), weights], strides=[stride] * 2, pads=pads
        )
        made = self.node("Relu", [made]) if relu else made
        return self.quantise(made, (1, out, *(-(-each // stride) for each in sizes)))

    def linear_conv(self, source: str, out: int, size: int, stride: int) -> str:
        """The same as one QLinearConv."""
        _, channels, *sizes = self.shapes[source]
        parts, after = self.kernel(out, channels, size), self.scale()
        inputs = [source, *self.scales[source], *parts, *after]
        name = self.node("QLinearConv", inputs, strides=[stride] * 2, pads=[size // 2] * 4)
        self.shapes[name] = (1, out, *(-(-each // stride) for each in sizes))
        self.scales[name] = after
        return name

    def runtime(
        self, op: str, sources: list[str], shape: tuple[int, ...], **attributes: object
    ) -> str:
        """One of onnxruntime's own operators on quantised tensors."""
        after = self.scale()
        operands = [part for name in sources for part in (name, *self.scales[name])]
        inputs = [*after, *operands] if op == "QLinearConcat" else [*operands, *after]
        name = self.node(op, inputs, domain=RUNTIME, **attributes)
        self.shapes[name], self.scales[name] = shape, after
        return name

    def product(self, source: str, out: int, *, per_column: bool) -> str:
        """Of each row with weights that have a scale per column, or one."""
        *before, inner = self.shapes[source]
        weights = self.constant(self.rng.integers(-127, 128, (inner, out)).astype(np.int8))
        size = (out,) if per_column else ()
        scales = self.constant(self.rng.uniform(0.001, 0.01, size).astype(np.float32))
        points, after = self.constant(np.zeros(size, np.int8)), self.scale()
        inputs = [source, *self.scales[source], weights, scales, points, *after]
        name = self.node("QLinearMatMul", inputs)
        self.shapes[name], self.scales[name] = (*before, out), after
        return name

    def fully_connected(self, source: str, out: int) -> str:
        """Behind a Flatten, with a scale per output."""
        inner = int(np.prod(self.shapes[source]))
        flat = self.node("Flatten", [source])
        weights = self.constant(self.rng.integers(-127, 128, (out, inner)).astype(np.int8))
        scales = self.constant(self.rng.uniform(0.001, 0.01, out).astype(np.float32))
        points, bias = (self.constant(np.zeros(out, kind)) for kind in (np.int8, np.int32))
        after = self.scale()
        inputs = [flat, *self.scales[source], weights, scales, points, bias, *after]
        name = self.node("QGemm", inputs, domain=RUNTIME, transB=1)
        self.shapes[name], self.scales[name] = (1, out), after
        return name

    def model(self, shape: tuple[int, ...], outputs: list[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "int8",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(n, TensorProto.UINT8, self.shapes[n]) for n in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@st.composite
def int8_networks(draw: st.DrawFn, opset: int = 17) -> onnx.ModelProto:
    """Convolutions, pools, residuals and concats between Quantize and Dequantize."""
    domain = RUNTIME if draw(st.integers(0, 5)) == 0 else ""
    net = Int8(np.random.default_rng(draw(st.integers(0, 2**16))), domain, opset)
    shape = (1, draw(st.integers(1, 4)), draw(st.integers(4, 20)), draw(st.integers(4, 20)))
    tensor = net.quantise("x", shape)
    for _ in range(draw(st.integers(1, 5))):
        channels = net.shapes[tensor][1]
        match draw(st.sampled_from(LAYERS)):
            case "conv":
                kernel, stride = draw(st.sampled_from([(1, 1), (3, 1), (3, 2), (5, 1)]))
                tensor = net.conv(tensor, draw(st.integers(1, 6)), kernel, stride, draw(_yes))
            case "linear":
                kernel, stride = draw(st.sampled_from([(1, 1), (3, 1), (3, 2)]))
                tensor = net.linear_conv(tensor, draw(st.integers(1, 6)), kernel, stride)
            case "pool":
                more = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
                pooled = net.node("MaxPool", [net.dequantise(tensor)], **more)
                tensor = net.quantise(pooled, net.shapes[tensor])
            case "residual":
                branch = net.dequantise(net.conv(tensor, channels, 3, 1, True))
                total = net.node("Add", [branch, net.dequantise(tensor)])
                tensor = net.quantise(total, net.shapes[tensor])
            case "concat":
                branch = net.conv(tensor, 2, 3, 1, False)
                both = [net.dequantise(tensor), net.dequantise(branch)]
                joined = net.node("Concat", both, axis=1)
                sizes = net.shapes[tensor][2:]
                tensor = net.quantise(joined, (1, channels + 2, *sizes))
            case "gate":
                pooled = net.node("GlobalAveragePool", [net.dequantise(tensor)])
                pooled = net.quantise(pooled, (1, channels, 1, 1))
                gate = net.dequantise(net.conv(pooled, channels, 1, 1, True))
                gated = net.node("Mul", [net.dequantise(tensor), gate])
                tensor = net.quantise(gated, net.shapes[tensor])
            case "own activation":
                op = draw(st.sampled_from(["QLinearLeakyRelu", "QLinearSigmoid"]))
                more = {"alpha": 0.2} if op == "QLinearLeakyRelu" else {}
                tensor = net.runtime(op, [tensor], net.shapes[tensor], **more)
            case "own sum":
                branch = net.conv(tensor, channels, 3, 1, False)
                op = draw(st.sampled_from(["QLinearAdd", "QLinearMul"]))
                tensor = net.runtime(op, [branch, tensor], net.shapes[tensor])
            case "own concat":
                axis, joined = draw(st.sampled_from([1, 2, 3])), list(net.shapes[tensor])
                branch = net.linear_conv(tensor, channels if axis > 1 else 2, 3, 1)
                joined[axis] += net.shapes[branch][axis]
                tensor = net.runtime("QLinearConcat", [tensor, branch], tuple(joined), axis=axis)
            case "own pool":
                more = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
                pooled = net.runtime("QLinearAveragePool", [tensor], net.shapes[tensor], **more)
                tensor = pooled
            case "product":
                tensor = net.product(tensor, draw(st.integers(1, 6)), per_column=draw(_yes))
            case "own softmax":
                # Not 12, see test_a_softmax_of_an_old_opset_is_equal.
                more = {"axis": draw(st.sampled_from([1, 2, 3, -1])), "opset": 13}
                tensor = net.runtime("QLinearSoftmax", [tensor], net.shapes[tensor], **more)
            case "own mean":
                mean = net.runtime("QLinearGlobalAveragePool", [tensor], (1, channels, 1, 1))
                tensor = net.runtime("QLinearMul", [tensor, mean], net.shapes[tensor])
    if draw(st.integers(0, 4)) == 0:
        tensor = net.fully_connected(tensor, draw(st.integers(1, 6)))
    return net.model(shape, [tensor])


_yes = st.booleans()
