"""One proposal per operator of the table: random attributes, sensible or not."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.models.random_graphs import Draw, Drawing, Proposal, Proposed

Pick = st.sampled_from
ACTIVATIONS = (
    "Relu LeakyRelu Sigmoid HardSigmoid HardSwish Tanh Elu Selu Softplus Softsign Abs Neg Exp "
    "Erf Gelu Mish Celu Sin Cos Identity Dropout"
)
# Where these jump, the last bit of their input decides: they take the network's, which is exact.
JUMPING = "Floor Ceil Sign Round ThresholdedRelu"


def _spatial(drawing: Drawing, source: str) -> int:
    return drawing.values[source].ndim - 2


def _is_map(drawing: Drawing, source: str) -> bool:
    array = drawing.values[source]
    return array.ndim in (3, 4) and array.dtype == np.float32


def _window(draw: Draw, drawing: Drawing, source: str) -> dict[str, object]:
    """Kernel, strides, dilations and pads (or auto_pad) of a convolution or pool."""
    n = _spatial(drawing, source)
    several = st.tuples(*[st.integers(1, 4)] * n)
    attributes: dict[str, object] = {
        "kernel_shape": draw(several),
        "strides": draw(st.tuples(*[Pick([1, 1, 2, 3])] * n)),
    }
    if draw(st.integers(0, 3)) == 0:
        attributes["auto_pad"] = draw(Pick(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attributes["pads"] = draw(st.tuples(*[st.integers(0, 2)] * (2 * n)))
    return attributes


def conv(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    if not _is_map(drawing, source):
        return None
    channels = drawing.values[source].shape[1]
    window = _window(draw, drawing, source)
    group = draw(Pick([g for g in (1, 1, 2, 3, channels) if channels % g == 0]))
    out = group * draw(st.integers(1, 3))
    weights = drawing.floats(out, channels // group, *window["kernel_shape"])
    dilations = draw(st.tuples(*[Pick([1, 1, 2])] * _spatial(drawing, source)))
    inputs = [source, weights] + ([drawing.floats(out)] if draw(st.booleans()) else [])
    return Proposed("Conv", inputs, {**window, "group": group, "dilations": dilations})


def conv_transpose(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    if not _is_map(drawing, source):
        return None
    channels, n = drawing.values[source].shape[1], _spatial(drawing, source)
    window = _window(draw, drawing, source)
    group = draw(Pick([g for g in (1, 1, 2, channels) if channels % g == 0]))
    weights = drawing.floats(channels, draw(st.integers(1, 3)), *window["kernel_shape"])
    out = group * drawing.weights[weights].shape[1]
    window["dilations"] = draw(st.tuples(*[Pick([1, 1, 2])] * n))
    match draw(st.integers(0, 3)):
        case 0:
            window["output_padding"] = draw(st.tuples(*[st.integers(0, 1)] * n))
        case 1:
            sizes = drawing.values[source].shape[2:]
            full = [
                (size - 1) * stride + (k - 1) * d + 1
                for size, stride, k, d in zip(
                    sizes,
                    window["strides"],
                    window["kernel_shape"],
                    window["dilations"],
                    strict=True,
                )
            ]
            window.pop("pads", None)
            window["output_shape"] = [max(1, f - draw(st.integers(0, 2))) for f in full]
    inputs = [source, weights] + ([drawing.floats(out)] if draw(st.booleans()) else [])
    return Proposed("ConvTranspose", inputs, {**window, "group": group})


def pool(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    if not _is_map(drawing, source):
        return None
    op = draw(Pick(["MaxPool", "AveragePool", "LpPool"]))
    attributes = _window(draw, drawing, source)
    n = _spatial(drawing, source)
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    ceil = drawing.opset >= 10 and op != "LpPool" and draw(st.booleans())
    sizes, pads = drawing.values[source].shape[2:], attributes.get("pads", [0] * 2 * n)
    for axis in range(n if ceil else 0):
        # ONNX and onnxruntime disagree on a window that starts beyond the map, and on the
        # divisor of an average that hangs over.
        kernel, stride = attributes["kernel_shape"][axis], attributes["strides"][axis]
        room = sizes[axis] + pads[axis] + pads[axis + n] - kernel
        ceil &= -(-room // stride) * stride < sizes[axis] + pads[axis]
    ceil &= not attributes.get("count_include_pad") and "auto_pad" not in attributes
    if ceil:
        attributes["ceil_mode"] = 1
    elif op == "MaxPool" and drawing.opset >= 10 and draw(st.integers(0, 3)) == 0:
        attributes["dilations"] = [2] * n
    return Proposed(op, [source], attributes)


def activation(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    op = draw(Pick(ACTIVATIONS.split()))
    return Proposed(op, [source])


def jump(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    return Proposed(draw(Pick(JUMPING.split())), ["x"])


def clip(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    if drawing.opset < 11:
        return Proposed("Clip", [source], {"min": -0.5, "max": 0.7})
    low, high = drawing.weight(np.float32(-0.5)), drawing.weight(np.float32(0.7))
    return Proposed("Clip", [source, *draw(Pick([(low, high), ("", high), (low,)]))])


def prelu(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    shape = drawing.values[source].shape
    slope = draw(Pick([(1,), (shape[1], *[1] * (len(shape) - 2)), shape[1:]]))
    return Proposed("PRelu", [source, drawing.floats(*slope)])


def cast(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    return Proposed("Cast", [source], {"to": 1})


def batch_norm(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    channels = drawing.values[source].shape[1]
    parts = [drawing.floats(channels) for _ in range(3)]
    return Proposed(
        "BatchNormalization", [source, *parts, drawing.floats(channels, low=0.5, high=2.0)]
    )


def with_constant(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """An elementwise operator with a constant of any shape that broadcasts."""
    shape = list(drawing.values[source].shape)
    if drawing.values[source].dtype != np.float32:
        return None
    shape = [size if draw(st.booleans()) else 1 for size in shape][draw(st.integers(0, 4)) :]
    inputs = [source, drawing.floats(*shape, low=0.3, high=1.5)]
    op = draw(Pick(["Add", "Sub", "Mul", "Div", "Min", "Max"]))
    return Proposed(op, inputs if draw(st.booleans()) or op == "Div" else inputs[::-1])


def with_another(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A residual, or a gate: with any earlier tensor that broadcasts."""
    others = [
        name
        for name, array in drawing.values.items()
        if array.dtype == np.float32 and _broadcasts(drawing.values[source].shape, array.shape)
    ]
    other = draw(Pick(others or [source]))
    return Proposed(draw(Pick(["Add", "Mul", "Sub", "Max", "Sum"])), [source, other])


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(x == y or y == 1 for x, y in zip(a, b, strict=True))


def concat(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, 1, 2, -1]))
    shape = list(drawing.values[source].shape)
    shape[axis] = 0
    others = []
    for name, array in drawing.values.items():
        other = list(array.shape)
        if len(other) == len(shape) and array.dtype == drawing.values[source].dtype:
            other[axis] = 0
            others += [name] if other == shape else []
    return Proposed("Concat", [source, *draw(st.lists(Pick(others), max_size=2))], {"axis": axis})


def split(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, 1, 2, 3]))
    if axis >= drawing.values[source].ndim:
        return None
    size = drawing.values[source].shape[axis]
    parts = draw(Pick([n for n in (2, 3, 4) if size % n == 0 or n == 2]))
    first = draw(st.integers(1, max(1, size - 1)))
    sizes = [size // parts] * parts if size % parts == 0 else [first, size - first]
    if drawing.opset < 13:
        return Proposed("Split", [source], {"axis": axis, "split": sizes}, outputs=len(sizes))
    return Proposed("Split", [source, drawing.ints(*sizes)], {"axis": axis}, outputs=len(sizes))


def slice_(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    axes = draw(st.lists(st.integers(1, rank - 1), min_size=1, max_size=2, unique=True))
    starts = [draw(st.integers(-4, 5)) for _ in axes]
    ends = [draw(Pick([2**31 - 1, -1, 3, 8, -(2**31)])) for _ in axes]
    if drawing.opset < 10:
        return Proposed("Slice", [source], {"starts": starts, "ends": ends, "axes": axes})
    lists = [starts, ends, axes, [draw(Pick([1, 1, 2, 3, -1, -2])) for _ in axes]]
    return Proposed("Slice", [source, *(drawing.ints(*each) for each in lists)])


def gather(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, 2, -1]))
    size = drawing.values[source].shape[axis]
    picks = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=6))
    return Proposed("Gather", [source, drawing.ints(*picks)], {"axis": axis})


def tile(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    repeats = [1, *(draw(Pick([1, 1, 2])) for _ in drawing.values[source].shape[1:])]
    return Proposed("Tile", [source, drawing.ints(*repeats)])


def expand(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    shape = drawing.values[source].shape
    wanted = [size if size > 1 else draw(Pick([1, 3])) for size in shape]
    return Proposed("Expand", [source, drawing.ints(1, *wanted[1:])])


def pad(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    mode = draw(Pick(["constant", "reflect", "edge", "wrap"]))
    low = -1 if mode == "constant" else 0
    channels = draw(Pick([0, 0, 0, 1]))
    ends = [[0, channels, *(draw(st.integers(low, 3)) for _ in range(rank - 2))] for _ in "se"]
    pads = [*ends[0], *ends[1]]
    if drawing.opset < 11:
        return Proposed("Pad", [source], {"pads": pads, "mode": mode, "value": 0.25})
    value = [drawing.weight(np.float32(0.25))] if draw(st.booleans()) else []
    return Proposed("Pad", [source, drawing.ints(*pads), *value], {"mode": mode})


def resize(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    shape = drawing.values[source].shape
    rank = len(shape)
    mode = draw(Pick(["nearest", "linear"]))
    values = [1.0, 1.0, *(draw(Pick([2.0, 2.0, 1.0, 3.0, 0.5, 1.7, 4.0])) for _ in range(rank - 2))]
    scales = drawing.weight(np.array(values, dtype=np.float32))
    if drawing.opset < 9:
        return Proposed("Upsample", [source], {"mode": mode, "scales": values})
    if drawing.opset < 11:
        op = "Upsample" if drawing.opset < 10 else "Resize"
        return Proposed(op, [source, scales], {"mode": mode})
    how = [
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "half_pixel_symmetric",
    ]
    attributes: dict[str, object] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(Pick(how)),
    }
    if mode == "nearest":
        rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        attributes["nearest_mode"] = draw(Pick(rounding))
    roi = drawing.weight(np.zeros(0, np.float32))
    if draw(st.booleans()):
        return Proposed("Resize", [source, roi, scales], attributes)
    sizes = [max(1, int(size * v)) for size, v in zip(shape, values, strict=True)]
    extra = draw(st.integers(0, 2))
    sizes = [*sizes[:2], *(size + extra for size in sizes[2:])]
    empty = drawing.weight(np.zeros(0, np.float32))
    return Proposed("Resize", [source, roi, empty, drawing.ints(*sizes)], attributes)


def depth_space(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    attributes: dict[str, object] = {"blocksize": draw(Pick([2, 2, 3]))}
    op = draw(Pick(["SpaceToDepth", "DepthToSpace", "DepthToSpace"]))
    if op == "DepthToSpace" and drawing.opset >= 11:
        attributes["mode"] = draw(Pick(["DCR", "CRD"]))
    return Proposed(op, [source], attributes)


def over_channels(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    op = draw(Pick(["Softmax", "LogSoftmax", "LRN", "LpNormalization"]))
    if op == "LRN":
        return Proposed(op, [source], {"size": draw(Pick([3, 5])), "alpha": 0.1})
    return Proposed(op, [source], {"axis": draw(Pick([1, 1, 2, -1]))})


def statistics(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A normalisation over the map, or a reduction of it."""
    channels = drawing.values[source].shape[1]
    parts = [drawing.floats(channels), drawing.floats(channels)]
    op = draw(Pick(["InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"]))
    if op == "MeanVarianceNormalization":
        return Proposed(op, [source])
    attributes: dict[str, object] = {"epsilon": 1e-2}
    if op == "GroupNormalization":
        groups = draw(Pick([g for g in (1, 2, 3, channels) if channels % g == 0]))
        attributes["num_groups"] = groups
        if drawing.opset < 21:
            parts = [drawing.floats(groups), drawing.floats(groups)]
    return Proposed(op, [source, *parts], attributes)


def layer_norm(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    axis = draw(Pick([1, 1, -1, 2]))
    shape = drawing.values[source].shape[axis:]
    inputs = [source, drawing.floats(*shape), drawing.floats(*shape)]
    more = {"axis": axis, "epsilon": 1e-2}
    return Proposed("LayerNormalization", inputs[: draw(st.integers(2, 3))], more)


def reduction(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    op = draw(Pick(["Mean", "Max", "Min", "Sum", "L2", "LogSumExp", "SumSquare"]))
    axes = draw(Pick([[2, 3], [-1, -2], [1], [2], [3], [1, 2, 3]]))
    if max(axes) >= rank:
        return None
    keeps = {"keepdims": draw(Pick([1, 1, 1, 0]))}
    if drawing.opset >= (13 if op == "Sum" else 18):
        return Proposed(f"Reduce{op}", [source, drawing.ints(*axes)], keeps)
    return Proposed(f"Reduce{op}", [source], {"axes": axes, **keeps})


def arg(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    more = {"axis": draw(Pick([1, 1, 2])), "keepdims": draw(Pick([1, 0]))}
    return Proposed(draw(Pick(["ArgMax", "ArgMin"])), ["x"], more)


def global_pool(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    return Proposed(draw(Pick(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])), [source])


def reshape(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Channels, rows and columns taken apart or put together, as far as they divide."""
    shape = list(drawing.values[source].shape)
    for _ in range(draw(st.integers(1, 3))):
        axis = draw(st.integers(1, len(shape) - 1))
        factor = draw(Pick([2, 2, 3]))
        if draw(st.integers(0, 2)) and shape[axis] % factor == 0:
            parts = [factor, shape[axis] // factor]
            shape[axis : axis + 1] = parts if draw(st.booleans()) else parts[::-1]
        elif axis + 1 < len(shape):
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return Proposed("Reshape", [source, drawing.ints(*shape)])


def transpose(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    return Proposed("Transpose", [source], {"perm": [0, *draw(st.permutations(range(1, rank)))]})


def shuffle(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A channel shuffle, a detector's head or Darknet's reorg, whole."""
    shape = drawing.values[source].shape
    if len(shape) != 4:
        return None
    _, c, h, w = shape
    ways = []
    if c % 2 == 0:
        ways.append(([1, 2, c // 2, h, w], [0, 2, 1, 3, 4], [1, c, h, w]))
        ways.append(([1, 2, c // 2, h, w], [0, 1, 3, 4, 2], None))
    if c % 4 == 0 and h % 2 == 0 and w % 2 == 0:
        taken = [1, c // 4, h, 2, w, 2]
        ways.append((taken, [0, 3, 5, 1, 2, 4], [1, 4 * c, h // 2, w // 2]))
    if not ways:
        return None
    apart, perm, together = draw(Pick(ways))
    first = drawing.add(Proposed("Reshape", [source, drawing.ints(*apart)]))
    if first is None:
        return None
    moved = Proposed("Transpose", first, {"perm": perm})
    if together is None:
        return moved
    second = drawing.add(moved)
    return second and Proposed("Reshape", [second[0], drawing.ints(*together)])


def product(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A fully connected layer behind a Flatten, or a product along the last axis."""
    array = drawing.values[source]
    if draw(st.booleans()):
        return Proposed(
            "MatMul", [source, drawing.floats(array.shape[-1], draw(st.integers(1, 5)))]
        )
    flat = drawing.add(Proposed("Flatten", [source]))
    if flat is None:
        return None
    inner = drawing.values[flat[0]].shape[1]
    weights = drawing.floats(inner, 3)
    if draw(st.booleans()):
        return Proposed("MatMul", [flat[0], weights])
    return Proposed("Gemm", [flat[0], weights, drawing.floats(3)])


PROPOSALS: dict[str, Proposal] = {
    "conv": conv,
    "conv again": conv,
    "conv once more": conv,
    "conv transpose": conv_transpose,
    "pool": pool,
    "activation": activation,
    "clip": clip,
    "jump": jump,
    "prelu": prelu,
    "cast": cast,
    "batch norm": batch_norm,
    "with a constant": with_constant,
    "with another": with_another,
    "concat": concat,
    "split": split,
    "slice": slice_,
    "gather": gather,
    "tile": tile,
    "expand": expand,
    "pad": pad,
    "resize": resize,
    "depth and space": depth_space,
    "over channels": over_channels,
    "statistics": statistics,
    "layer norm": layer_norm,
    "reduction": reduction,
    "arg": arg,
    "global pool": global_pool,
    "reshape": reshape,
    "transpose": transpose,
    "shuffle": shuffle,
    "product": product,
}
