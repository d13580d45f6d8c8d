"""Small networks whose rows leave the form of a map, written as exporters write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Net:
    """A network that grows, node by node; its input is `x`."""

    def __init__(self, *shape: int, seed: int = 1) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def constant(self, array: np.ndarray) -> str:
        """A constant's name."""
        self.weights.append(numpy_helper.from_array(array, f"c{len(self.weights)}"))
        return str(self.weights[-1].name)

    def floats(self, *shape: int) -> str:
        """A constant of random values."""
        return self.constant(self._rng.standard_normal(shape, dtype=np.float32) * 0.3)

    def ints(self, *values: int) -> str:
        """A constant list of integers."""
        return self.constant(np.array(values, dtype=np.int64))

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        """Appends a node; its output's name."""
        return self.several(op, *inputs, count=1, **attributes)[0]

    def several(self, op: str, *inputs: str, count: int, **attributes: object) -> list[str]:
        """Appends a node with several outputs."""
        made = [f"t{len(self.nodes)}_{k}" for k in range(count)]
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), made, name=name, **attributes))
        return made

    def reshape(self, source: str, *shape: int) -> str:
        """Appends a Reshape."""
        return self.add("Reshape", source, self.ints(*shape))

    def conv(
        self, source: str, channels: int, outputs: int, kernel: int = 1, stride: int = 1
    ) -> str:
        """Appends a convolution that keeps the size, but for its stride."""
        weights, bias = self.floats(outputs, channels, kernel, kernel), self.floats(outputs)
        pads = [kernel // 2] * 4
        return self.add("Conv", source, weights, bias, pads=pads, strides=[stride] * 2)

    def linear(self, source: str, inputs: int, outputs: int) -> str:
        """Appends a product with a constant, and a bias."""
        product = self.add("MatMul", source, self.floats(inputs, outputs))
        return self.add("Add", product, self.floats(outputs))

    def tokens(self, source: str, channels: int, count: int) -> str:
        """Appends what makes tokens (1, count, channels) of a map."""
        flat = self.reshape(source, 1, channels, count)
        return self.add("Transpose", flat, perm=[0, 2, 1])

    def model(
        self, *outputs: str, integers: Sequence[str] = (), opset: int = OPSET
    ) -> onnx.ModelProto:
        """The whole; `integers` are its outputs of INT64."""
        kinds = dict.fromkeys(outputs, TensorProto.FLOAT) | dict.fromkeys(
            integers, TensorProto.INT64
        )
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
            self.weights,
        )
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def encoder(net: Net, tokens: str, count: int, width: int, heads: int) -> str:
    """A transformer's layer on tokens (1, count, width), as TorchScript's exporter writes it."""
    normal = net.add("LayerNormalization", tokens, net.floats(width), net.floats(width), axis=-1)
    both = net.linear(normal, width, 3 * width)
    apart = net.reshape(both, 1, count, 3, heads, width // heads)
    apart = net.add("Transpose", apart, perm=[2, 0, 3, 1, 4])
    zero, one, two = (net.constant(np.array(k, np.int64)) for k in range(3))
    q, k, v = (net.add("Gather", apart, index, axis=0) for index in (zero, one, two))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.add("Softmax", net.add("Mul", scores, net.floats(1)), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    mixed = net.linear(net.reshape(mixed, 1, count, width), width, width)
    tokens = net.add("Add", tokens, mixed)
    hidden = net.add("Relu", net.linear(tokens, width, 2 * width))
    return net.add("Add", tokens, net.linear(hidden, 2 * width, width))


def vit(side: int = 32, *, class_token: bool = True) -> onnx.ModelProto:
    """Patches, a class token, positions, two layers, a classifier of the first token."""
    net, width = Net(1, 3, side, side), 24
    count = (side // 4) ** 2
    patches = net.add("Conv", "x", net.floats(width, 3, 4, 4), strides=[4, 4])
    tokens = net.add("Transpose", net.reshape(patches, 1, width, count), perm=[0, 2, 1])
    if class_token:
        tokens = net.add("Concat", net.floats(1, 1, width), tokens, axis=1)
        count += 1
    tokens = net.add("Add", tokens, net.floats(1, count, width))
    for _ in range(2):
        tokens = encoder(net, tokens, count, width, 3)
    tokens = net.add("LayerNormalization", tokens, net.floats(width), net.floats(width), axis=-1)
    first = net.add("Gather", tokens, net.constant(np.array(0, np.int64)), axis=1)
    return net.model(net.add("Gemm", first, net.floats(width, 5), net.floats(5)))


def yolo_attention(rows: int = 8, columns: int = 6) -> onnx.ModelProto:
    """YOLO11's: tokens stay last, and what attention yields is a map again."""
    net, width, heads, deep, wide = Net(1, 3, rows, columns), 16, 2, 4, 8
    count = rows * columns
    x = net.conv("x", 3, width, 3)
    both = net.conv(x, width, heads * (2 * deep + wide))
    both = net.reshape(both, 1, heads, 2 * deep + wide, count)
    q, k, v = net.several("Split", both, net.ints(deep, deep, wide), count=3, axis=2)
    scores = net.add("MatMul", net.add("Transpose", q, perm=[0, 1, 3, 2]), k)
    scores = net.add("Softmax", net.add("Mul", scores, net.floats(1)), axis=-1)
    mixed = net.add("MatMul", v, net.add("Transpose", scores, perm=[0, 1, 3, 2]))
    mixed = net.reshape(mixed, 1, width, rows, columns)
    places = net.conv(net.reshape(v, 1, width, rows, columns), width, width, 3)
    x = net.add("Add", x, net.conv(net.add("Add", mixed, places), width, width))
    return net.model(net.conv(x, width, 4, 3))


def windows(side: int = 16, size: int = 4, shift: int = 0) -> onnx.ModelProto:
    """Swin's: attention inside of windows of the map, which may be shifted."""
    net, width, per = Net(1, 3, side, side), 8, side // size
    x = net.add("Transpose", net.conv("x", 3, width, 3), perm=[0, 2, 3, 1])
    if shift:
        x = _rolled(net, x, 1, shift, side)
    cut = net.reshape(x, 1, per, size, per, size, width)
    cut = net.add("Transpose", cut, perm=[0, 1, 3, 2, 4, 5])
    tokens = net.reshape(cut, per * per, size * size, width)
    scores = net.add(
        "MatMul",
        net.linear(tokens, width, width),
        net.add("Transpose", net.linear(tokens, width, width), perm=[0, 2, 1]),
    )
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), tokens)
    whole = net.reshape(mixed, 1, per, per, size, size, width)
    whole = net.add("Transpose", whole, perm=[0, 1, 3, 2, 4, 5])
    whole = net.reshape(whole, 1, side, side, width)
    if shift:
        whole = _rolled(net, whole, 1, side - shift, side)
    whole = net.add("Transpose", whole, perm=[0, 3, 1, 2])
    return net.model(net.conv(whole, width, 4, 3))


def _rolled(net: Net, source: str, axis: int, shift: int, size: int) -> str:
    """The rows from `shift` on, then those before it."""
    parts = [
        net.add("Slice", source, net.ints(start), net.ints(stop), net.ints(axis), net.ints(1))
        for start, stop in ((shift, size), (0, shift))
    ]
    return net.add("Concat", *parts, axis=axis)


def detector(sides: tuple[int, ...] = (16, 8, 4)) -> onnx.ModelProto:
    """A YOLO's head: scales in one list, boxes from the distribution of distances, scores."""
    net, bins, classes = Net(1, 3, 2 * sides[0], 2 * sides[0]), 4, 3
    x, maps = "x", []
    channels = 3
    for _ in sides:
        x, channels = net.conv(x, channels, 8, 3, 2), 8
        maps.append(net.conv(x, 8, 4 * bins + classes))
    count = sum(side * side for side in sides)
    flat = [
        net.reshape(each, 1, 4 * bins + classes, side * side)
        for each, side in zip(maps, sides, strict=True)
    ]
    every = net.add("Concat", *flat, axis=2)
    found, scores = net.several("Split", every, net.ints(4 * bins, classes), count=2, axis=1)
    found = net.add("Transpose", net.reshape(found, 1, 4, bins, count), perm=[0, 2, 1, 3])
    found = net.add("Conv", net.add("Softmax", found, axis=1), net.floats(1, bins, 1, 1))
    found = net.reshape(found, 1, 4, count)
    low = net.add("Slice", found, net.ints(0), net.ints(2), net.ints(1))
    high = net.add("Slice", found, net.ints(2), net.ints(4), net.ints(1))
    anchors = net.floats(1, 2, count)
    low, high = net.add("Sub", anchors, low), net.add("Add", anchors, high)
    boxes = net.add("Mul", net.add("Concat", low, high, axis=1), net.floats(1, count))
    return net.model(net.add("Concat", boxes, net.add("Sigmoid", scores), axis=1))


def gated(side: int = 16) -> onnx.ModelProto:
    """Two layers with a squeeze-and-excitation each."""
    net, width = Net(1, 3, side, side), 8
    x = net.conv("x", 3, width, 3)
    for _ in range(2):
        mean = net.add("GlobalAveragePool", net.conv(x, width, width, 3))
        gate = net.add("Relu", net.conv(mean, width, 4))
        gate = net.add("Sigmoid", net.conv(gate, 4, width))
        x = net.conv(net.add("Mul", x, gate), width, width, 3)
    return net.model(x)


def gated_by_vectors(side: int = 16) -> onnx.ModelProto:
    """The same as vectors, one of which is used again later."""
    net, width = Net(1, 3, side, side), 8
    x, last = net.conv("x", 3, width, 3), ""
    for _ in range(2):
        mean = net.reshape(net.add("GlobalAveragePool", net.conv(x, width, width, 3)), 1, width)
        gate = net.add("Gemm", mean, net.floats(width, width), net.floats(width))
        gate = net.add("Sigmoid", net.add("Add", gate, last) if last else gate)
        x = net.conv(net.add("Mul", x, net.reshape(gate, 1, width, 1, 1)), width, width, 3)
        last = gate
    return net.model(net.add("Add", x, net.reshape(last, 1, width, 1, 1)))


def sampled(side: int = 8, queries: int = 12) -> onnx.ModelProto:
    """Deformable attention's core: places that are computed, in maps that are."""
    net, width = Net(1, 3, side, side), 8
    x = net.conv("x", 3, width, 3)
    places = net.conv(net.conv("x", 3, 4, 3), 4, 2)
    places = net.add("Slice", places, net.ints(0), net.ints(queries // 2), net.ints(2))
    places = net.add("Tanh", net.add("Transpose", places, perm=[0, 2, 3, 1]))
    found = net.add("GridSample", x, places, align_corners=0)
    return net.model(net.conv(found, width, 4))


def deformable(side: int = 16, heads: int = 4, layers: int = 2) -> onnx.ModelProto:
    """Layers of a decoder, whose queries sample values of the same tokens, head by head."""
    net, width, points = Net(1, 3, side, side), 16, 3
    tokens = net.tokens(net.conv("x", 3, width, 3), width, side * side)
    queries = (side // 4) ** 2
    coarse = net.conv(net.conv("x", 3, 8, 3, 2), 8, width, 3, 2)
    found = net.tokens(coarse, width, queries)
    few = net.constant(np.array(0.1, np.float32))
    for _ in range(layers):
        values = net.reshape(net.linear(tokens, width, width), 1, side * side, heads, -1)
        values = net.add("Transpose", values, perm=[0, 2, 3, 1])
        values = net.reshape(values, heads, width // heads, side, side)
        # Maps of random values differ from pixel to pixel: places move little with the queries.
        places = net.add("Mul", net.linear(found, width, heads * points * 2), few)
        places = net.reshape(places, 1, queries, heads, points, 2)
        places = net.add("Transpose", places, perm=[0, 2, 1, 3, 4])
        places = net.add("Tanh", net.reshape(places, heads, queries, points, 2))
        weights = net.reshape(net.linear(found, width, heads * points), 1, queries, heads, points)
        weights = net.add("Transpose", net.add("Softmax", weights, axis=-1), perm=[0, 2, 1, 3])
        weights = net.reshape(weights, heads, 1, queries, points)
        taken = net.add("GridSample", values, places, align_corners=0)
        summed = net.add("ReduceSum", net.add("Mul", taken, weights), net.ints(-1), keepdims=0)
        summed = net.add("Transpose", net.reshape(summed, 1, width, queries), perm=[0, 2, 1])
        found = net.add("Add", found, net.linear(summed, width, width))
    return net.model(net.linear(found, width, 5))


def normalised(rows: int = 24) -> onnx.ModelProto:
    """Groups of channels, then tokens, some of their features, flattened for a product."""
    net, width = Net(1, 3, rows, 16), 8
    groups = {"num_groups": 2, "epsilon": 1e-2}
    x = net.conv("x", 3, width, 3)
    x = net.add("GroupNormalization", x, net.floats(width), net.floats(width), **groups)
    tokens = net.add("Transpose", net.add("Flatten", x, axis=2), perm=[1, 0])
    tokens = net.add("Gather", tokens, net.ints(5, 0, 3, 3, -1), axis=1)
    tokens = net.add("RMSNormalization", tokens, net.floats(5), axis=-1)
    tokens = net.add("Gemm", tokens, net.floats(5, 6), net.floats(6))
    return net.model(net.add("Flatten", tokens, axis=-1), opset=23)


def matrices(side: int = 8) -> onnx.ModelProto:
    """Tokens as a matrix, for a fully connected layer, and as a map again."""
    net, width = Net(1, 3, side, side), 8
    tokens = net.reshape(net.conv("x", 3, width, 3), 1, width, side * side)
    tokens = net.add("Transpose", tokens, perm=[0, 2, 1])
    normal = net.add("LayerNormalization", tokens, net.floats(width), net.floats(width), axis=-1)
    matrix = net.add("Squeeze", normal, net.ints(0))
    matrix = net.add("Relu", net.add("Gemm", matrix, net.floats(width, width), net.floats(width)))
    tokens = net.add("Add", tokens, net.add("Unsqueeze", matrix, net.ints(0)))
    map_ = net.reshape(net.add("Transpose", tokens, perm=[0, 2, 1]), 1, width, side, side)
    return net.model(net.conv(map_, width, 4, 3))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "class token": vit,
    "tokens": lambda: vit(class_token=False),
    "attention on a map": yolo_attention,
    "windows": windows,
    "shifted windows": lambda: windows(shift=2),
    "detector": detector,
    "gates": gated,
    "vectors as gates": gated_by_vectors,
    "sampled": sampled,
    "deformable": deformable,
    "normalised": normalised,
    "matrices": matrices,
}
