"""Small random networks, and the slow way to compute a tile: run everything, then slice."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


@dataclass
class Sketch:
    """Builds a graph node by node; `shape[t]` is only the channel count, ONNX infers the rest."""

    size: tuple[int, int]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        array = self.rng.standard_normal(shape, dtype=np.float32) * 0.4
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], channels: int, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        node = helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes)
        self.nodes.append(node)
        self.channels[name] = channels
        return name

    def conv(self, source: str, channels: int, kernel: tuple[int, int], **more: object) -> str:
        groups = int(more.get("group", 1))
        weight = self.weight(
            f"w{len(self.nodes)}", (channels, self.channels[source] // groups, *kernel)
        )
        bias = self.weight(f"b{len(self.nodes)}", (channels,))
        return self.add("Conv", [source, weight, bias], channels, kernel_shape=kernel, **more)

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        shape = [1, self.channels["x"], *self.size]
        graph = helper.make_graph(
            self.nodes,
            "sketch",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def with_prior(size: int = 32, *, first: bool = True, joined: str = "channels") -> onnx.ModelProto:
    """A convolved image and a convolved constant map, whose layers come `first` or after the
    image's; a pool before them is not folded. They are `joined` as channels, as rows, or as their
    means.
    """
    sketch = Sketch((size, size), channels={"x": 3, "map": 8})
    sketch.weight("map", (1, 8, size, size))
    made = {}
    for source in ("map", "x") if first else ("x", "map"):
        begin = source
        if source == "map":
            begin = sketch.add("MaxPool", ["map"], 8, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        end = _same(sketch, _same(sketch, begin))
        made[source] = sketch.add("GlobalAveragePool", [end], 16) if joined == "means" else end
    ends = [made["x"], made["map"]]
    if joined == "rows":
        whole = sketch.add("Concat", ends, 16, axis=2)
    else:
        whole = sketch.add("Concat", ends, 32, axis=1)
    return sketch.model([_same(sketch, _same(sketch, whole))])


def _same(sketch: Sketch, source: str) -> str:
    return sketch.conv(source, 16, (3, 3), pads=[1, 1, 1, 1])


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Chains, residual blocks, concats and space-to-depth with every way to pad."""
    height, width = draw(st.integers(8, 26)), draw(st.integers(8, 26))
    sketch = Sketch((height, width))
    sketch.channels["x"] = draw(st.sampled_from([2, 3]))
    tensor, rows, cols = "x", height, width
    outputs: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        choices = ["conv", "conv", "pool", "pad", "residual", "concat", "reorg"]
        choice = draw(st.sampled_from(choices))
        if choice == "conv":
            tensor, rows, cols = draw(_conv(sketch, tensor, rows, cols))
        elif choice == "pool" and min(rows, cols) >= 4:
            tensor, rows, cols = draw(_pool(sketch, tensor, rows, cols))
        elif choice == "pad":
            tensor, rows, cols = draw(_pad(sketch, tensor, rows, cols))
        elif choice == "residual":
            tensor = _residual(sketch, tensor, draw(st.booleans()))
        elif choice == "concat":
            tensor = _concat(sketch, tensor, draw(st.integers(1, 2)))
        elif choice == "reorg" and rows % 2 == 0 and cols % 2 == 0:
            channels = sketch.channels[tensor] * 4
            tensor = sketch.add("SpaceToDepth", [tensor], channels, blocksize=2)
            rows, cols = rows // 2, cols // 2
            tensor = sketch.conv(tensor, 3, (1, 1))
        if draw(st.integers(0, 5)) == 0:
            outputs.append(tensor)
    tensor = sketch.add("Relu", [tensor], sketch.channels[tensor])
    return sketch.model([*(name for name in outputs if name != "x"), tensor])


@st.composite
def _pad(
    draw: st.DrawFn, sketch: Sketch, tensor: str, rows: int, cols: int
) -> tuple[str, int, int]:
    """Fill on any side, more of it than a window reaches over too."""
    top, left, bottom, right = (draw(st.integers(0, 3)) for _ in range(4))
    pads = np.array([0, 0, top, left, 0, 0, bottom, right], dtype=np.int64)
    sketch.weights.append(numpy_helper.from_array(pads, f"p{len(sketch.nodes)}"))
    made = sketch.add("Pad", [tensor, sketch.weights[-1].name], sketch.channels[tensor])
    return made, rows + top + bottom, cols + left + right


@st.composite
def _conv(
    draw: st.DrawFn, sketch: Sketch, tensor: str, rows: int, cols: int
) -> tuple[str, int, int]:
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 3), (2, 2)]))
    stride = draw(st.sampled_from([1, 1, 2]))
    dilation = draw(st.sampled_from([1, 1, 2]))
    reach = [(k - 1) * dilation + 1 for k in kernel]
    channels = draw(st.sampled_from([2, 4]))
    group = 2 if sketch.channels[tensor] % 2 == 0 and draw(st.booleans()) else 1
    more: dict[str, object] = {"strides": [stride] * 2, "group": group}
    if dilation == 1 and draw(st.booleans()):
        auto = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
        name = sketch.conv(tensor, channels, kernel, auto_pad=auto, **more)
        return name, -(-rows // stride), -(-cols // stride)
    pads = [draw(st.integers(0, r - 1)) for r in (*reach, *reach)]
    out = [
        (size + pads[i] + pads[i + 2] - reach[i]) // stride + 1
        for i, size in ((0, rows), (1, cols))
    ]
    if min(out) < 2:
        return tensor, rows, cols
    name = sketch.conv(tensor, channels, kernel, pads=pads, dilations=[dilation] * 2, **more)
    return name, out[0], out[1]


@st.composite
def _pool(
    draw: st.DrawFn, sketch: Sketch, tensor: str, rows: int, cols: int
) -> tuple[str, int, int]:
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel, stride = draw(st.sampled_from([(2, 2), (3, 2), (3, 1)]))
    pads = [draw(st.integers(0, kernel // 2)) for _ in range(4)]
    ceil = draw(st.integers(0, 1))
    more = {"count_include_pad": draw(st.integers(0, 1))} if op == "AveragePool" else {}
    if more.get("count_include_pad") and ceil:
        ceil = 0  # onnxruntime and the specification differ on the overhanging window
    for axis, size in ((0, rows), (1, cols)):
        beyond = -(-(size + pads[axis] + pads[axis + 2] - kernel) // stride) * stride
        if ceil and beyond >= size + pads[axis]:
            ceil = 0  # ONNX and onnxruntime disagree on a window that starts beyond the map
    name = sketch.add(
        op,
        [tensor],
        sketch.channels[tensor],
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=pads,
        ceil_mode=ceil,
        **more,
    )
    sizes = []
    for axis, size in ((0, rows), (1, cols)):
        span = size + pads[axis] + pads[axis + 2] - kernel
        sizes.append((-(-span // stride) if ceil else span // stride) + 1)
    return name, sizes[0], sizes[1]


def _residual(sketch: Sketch, tensor: str, project: bool) -> str:
    channels = sketch.channels[tensor]
    branch = sketch.conv(tensor, 3, (1, 1))
    branch = sketch.add("Relu", [branch], 3)
    branch = sketch.conv(branch, channels, (3, 3), pads=[1, 1, 1, 1])
    shortcut = sketch.conv(tensor, channels, (1, 1)) if project else tensor
    return sketch.add("Add", [branch, shortcut], channels)


def _concat(sketch: Sketch, tensor: str, size: int) -> str:
    channels = sketch.channels[tensor]
    wide = sketch.conv(tensor, 2, (2 * size + 1, 2 * size + 1), pads=[size] * 4)
    narrow = sketch.conv(tensor, 1, (1, 1))
    return sketch.add("Concat", [wide, tensor, narrow], channels + 3, axis=1)
