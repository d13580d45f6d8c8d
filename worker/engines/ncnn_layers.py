"""ONNX's operators in ncnn's layers. What ncnn is not known to compute as ONNX defines it is
refused, and onnxruntime computes the program.
"""

from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from models.cut.program import Program
from models.tensors.arrays import Arrays, Shape
from models.tensors.memory import LARGEST_MATRIX_BYTES
from protos.failures import BadInput
from worker.engines.ncnn_graph import (
    PLAIN,
    MapShapes,
    NcnnGraph,
    Operators,
    Translation,
    attributes,
    float32,
    inferred,
)
from worker.engines.ncnn_layer import CONVOLUTIONS, TO_THE_END, Unknown
from worker.programs.graphs import checked_model

_ALIASES = ("Identity", "Dropout")
# ncnn's numbers for operations on two tensors, and for the same with exchanged operands.
_BINARY = {"Add": (0, 0), "Sub": (1, 7), "Mul": (2, 2), "Div": (3, 8), "Max": (4, 4), "Min": (5, 5)}
_UNARY = {"Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5, "Exp": 7, "Log": 8, "Tanh": 16}
# ncnn's numbers of those powers that it does not compute by logarithms.
_POWERS = {0.5: 5, 2.0: 4}
# Of one tensor, without settings, by the same name.
_SIMPLE = ("Erf", "Mish", "Sigmoid", "Softplus")
_ACTIVATIONS = ("HardSwish", "LeakyRelu", "Relu")


def translate(
    program: Program, weights: Arrays, shapes: MapShapes, threads: int, room_bytes: float
) -> NcnnGraph:
    """The program for inputs of these shapes, so many threads and a net with so many bytes for its
    weights, which are given by name.

    Raises:
        BadInput: an operator, or a form of it, that is not translated.
        ImbrexError: the program is refused.
    """
    model = checked_model(program)
    try:
        sizes = inferred(model, program, shapes)
        return Translation(model, weights, sizes, shapes).graph(_OPERATORS, threads, room_bytes)
    except Unknown as error:
        raise BadInput(cause=f"ncnn does not take {error}", cure="Use onnxruntime") from None


# ---------------------------------------------------------------- windows


def _window(node: NodeProto, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads (top, left, bottom, right)."""
    given = attributes(node)
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or len(kernel) != 2:
        raise Unknown(f"{node.op_type} in this form")
    strides, dilations = given.get("strides", [1, 1]), given.get("dilations", [1, 1])
    pads = given.get("pads", [0, 0, 0, 0])
    if min(pads) < 0:
        raise Unknown(f"{node.op_type} with negative pads")
    return strides, dilations, pads


def _convolved(node: NodeProto, weight: np.ndarray, bias: np.ndarray | None) -> dict[int, Any]:
    """What both directions of a convolution say of their windows and weights."""
    strides, dilations, pads = _window(node, weight.shape[2:])
    return {
        **{1: weight.shape[3], 11: weight.shape[2]},
        **{2: dilations[1], 12: dilations[0]},
        **{3: strides[1], 13: strides[0]},
        **{14: pads[0], 4: pads[1], 16: pads[2], 15: pads[3]},
        **{5: int(bias is not None), 6: weight.size},
    }


def _conv(to: Translation, node: NodeProto) -> None:
    weight, bias = float32(to.constant(node, 1)), float32(to.constant(node, 2))
    assert weight is not None
    if weight.ndim != 4:
        raise Unknown("Conv along one or three axes")
    group = int(attributes(node).get("group", 1))
    parameters: dict[int, Any] = {0: weight.shape[0], **_convolved(node, weight, bias)}
    if group > 1:
        parameters[7] = group
    weights = [PLAIN, weight] if bias is None else [PLAIN, weight, bias]
    kind = CONVOLUTIONS[group > 1]
    to.add(kind, node.input[:1], node.output[0], parameters, weights)


def _conv_transpose(to: Translation, node: NodeProto) -> None:
    weight, bias = float32(to.constant(node, 1)), float32(to.constant(node, 2))
    assert weight is not None
    given = attributes(node)
    if weight.ndim != 4 or given.get("group", 1) != 1 or given.get("output_shape"):
        raise Unknown("ConvTranspose in this form")
    beyond = given.get("output_padding", [0, 0])
    parameters: dict[int, Any] = {0: weight.shape[1], **_convolved(node, weight, bias)}
    parameters |= {18: beyond[1], 19: beyond[0]}
    by_output = np.ascontiguousarray(weight.swapaxes(0, 1))
    weights = [PLAIN, by_output] if bias is None else [PLAIN, by_output, bias]
    to.add("Deconvolution", node.input[:1], node.output[0], parameters, weights)


def _lrn(to: Translation, node: NodeProto) -> None:
    given = attributes(node)
    size = int(given["size"])
    if len(to.dims(node.input[0])) != 3:
        raise Unknown("LRN in this form")
    alpha, beta = float(given.get("alpha", 1e-4)), float(given.get("beta", 0.75))
    parameters = {0: 0, 1: size, 2: alpha, 3: beta, 4: float(given.get("bias", 1.0))}
    to.add("LRN", node.input[:1], node.output[0], parameters)


def _batch_normalization(to: Translation, node: NodeProto) -> None:
    scale, bias, mean, variance = (np.asarray(to.constant(node, place)) for place in range(1, 5))
    epsilon = float(attributes(node).get("epsilon", 1e-5))
    with np.errstate(invalid="ignore"):  # NaN by every engine; random weights have such variances
        factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    offset = bias - mean * factor
    layer = to.convolution_before(node.input[0])
    if layer is None:
        ones, zeros = np.ones(len(factor), np.float32), np.zeros(len(factor), np.float32)
        weights = [factor.astype(np.float32), zeros, ones, offset.astype(np.float32)]
        to.add("BatchNorm", node.input[:1], node.output[0], {0: len(factor)}, weights)
        return
    _, weight, *rest = layer.weights
    old = rest[0] if rest else np.zeros(len(factor))
    weight = weight * factor.reshape(-1, 1, 1, 1)
    layer.weights = [PLAIN, weight.astype(np.float32), (old * factor + offset).astype(np.float32)]
    layer.parameters[5] = 1
    to.becomes(layer, node.output[0])


def _pool(to: Translation, node: NodeProto) -> None:
    given, (_, height, width) = attributes(node), to.dims(node.input[0])
    kernel = given["kernel_shape"]
    strides, dilations, pads = _window(node, kernel)
    if dilations != [1, 1] or given.get("storage_order"):
        raise Unknown(f"{node.op_type} with dilations")
    average = node.op_type == "AveragePool"
    ends = []
    for place, size in enumerate((height, width)):
        out = to.dims(node.output[0])[1 + place]
        short = (out - 1) * strides[place] + kernel[place] - size - pads[place]
        # ceil_mode reads beyond the pads, which is as if there were more of them.
        if short > pads[2 + place] and average:
            raise Unknown("AveragePool with ceil_mode")
        ends.append(max(short, pads[2 + place]) if not average else pads[2 + place])
    parameters: dict[int, Any] = {
        0: int(average),
        **{1: kernel[1], 11: kernel[0], 2: strides[1], 12: strides[0]},
        **{13: pads[0], 3: pads[1], 15: ends[0], 14: ends[1]},
        5: 1,
        6: int(given.get("count_include_pad", 0)),
    }
    to.add("Pooling", node.input[:1], node.output[0], parameters)


def _global_pool(to: Translation, node: NodeProto) -> None:
    channels = to.dims(node.input[0])[0]
    pooled = f"{node.output[0]}__pooled"
    if len(to.dims(node.input[0])) != 3:
        raise Unknown(f"{node.op_type} of this rank")
    to.add("Pooling", node.input[:1], pooled, {0: int("Max" not in node.op_type), 4: 1})
    to.reshape(pooled, to.dims(node.output[0]), node.output[0])
    assert prod(to.dims(node.output[0])) == channels


def _reduce_mean(to: Translation, node: NodeProto) -> None:
    axes, rank = to.setting(node, "axes", 1), len(to.dims(node.input[0])) + 1
    inner = sorted(axis % rank for axis in axes or ())
    if not inner or inner[0] == 0:
        raise Unknown("ReduceMean of the batch")
    if (rank, inner) == (4, [2, 3]):
        _global_pool(to, node)
        return
    keeps = int(attributes(node).get("keepdims", 1))
    parameters: dict[int, Any] = {0: 3, 1: 0, 3: tuple(axis - 1 for axis in inner), 4: keeps}
    to.add("Reduction", node.input[:1], node.output[0], {**parameters, 5: 1})


def _pad(to: Translation, node: NodeProto) -> None:
    given, rank = attributes(node), len(to.dims(node.input[0])) + 1
    pads, value = to.setting(node, "pads", 1), given.get("value", 0.0)
    if len(node.input) > 2 and (array := to.constant(node, 2)) is not None:
        value = float(array.reshape(-1)[0])
    mode = given.get("mode", b"constant")
    if pads is None or len(pads) != 2 * rank or rank != 4 or min(pads) < 0:
        raise Unknown("Pad in this form")
    if any(pads[axis] or pads[rank + axis] for axis in (0, 1)):
        raise Unknown("Pad of channels")
    kinds = {b"constant": 0, b"edge": 1, b"reflect": 2}
    if mode not in kinds:
        raise Unknown(f"Pad of mode {mode!r}")
    parameters: dict[int, Any] = {0: pads[2], 1: pads[6], 2: pads[3], 3: pads[7]}
    parameters |= {4: kinds[mode], 5: float(value)}
    to.add("Padding", node.input[:1], node.output[0], parameters)


def _resize(to: Translation, node: NodeProto) -> None:
    """Nearest, by powers of two along rows and columns: those are exact."""
    given = attributes(node)
    before, after = to.dims(node.input[0]), to.dims(node.output[0])
    if len(before) != 3 or before[0] != after[0] or given.get("mode", b"nearest") != b"nearest":
        raise Unknown("Resize in this form")
    factors = [after[axis] // before[axis] for axis in (1, 2)]
    for axis, factor in zip((1, 2), factors, strict=True):
        if after[axis] != factor * before[axis] or factor not in (1, 2, 4, 8):
            raise Unknown(f"Resize from {before} to {after}")
    coordinates = given.get("coordinate_transformation_mode", b"half_pixel")
    nearest = given.get("nearest_mode", b"round_prefer_floor")
    halves = coordinates in (b"half_pixel", b"half_pixel_symmetric", b"pytorch_half_pixel")
    rounds = nearest in (b"round_prefer_floor", b"round_prefer_ceil")
    is_plain = coordinates == b"asymmetric" and nearest == b"floor"
    # The former Upsample, and Resize of opset 10, repeat elements.
    if not (is_plain or (halves and rounds) or to.opset < 11):
        raise Unknown("Resize with these coordinates")
    if before == after:
        to.rename(node.input[0], node.output[0])
        return
    parameters = {0: 1, 1: float(factors[0]), 2: float(factors[1])}
    to.add("Interp", node.input[:1], node.output[0], parameters)


# ---------------------------------------------------------------- elements


def _activation(to: Translation, node: NodeProto) -> None:
    match node.op_type:
        case "Relu":
            to.activate(node, 1, "ReLU")
        case "LeakyRelu":
            to.activate(node, 2, "ReLU", float(attributes(node).get("alpha", 0.01)))
        case "HardSwish":
            to.activate(node, 6, "HardSwish", 1 / 6, 0.5)


def _clip(to: Translation, node: NodeProto) -> None:
    given, limits = attributes(node), []
    for place, (name, most) in enumerate((("min", -3.4028235e38), ("max", 3.4028235e38)), 1):
        limit = given.get(name)
        if limit is None and (array := to.constant(node, place)) is not None:
            limit = array.reshape(-1)[0]
        limits.append(most if limit is None else float(limit))
    to.activate(node, 3, "Clip", *limits)


def _prelu(to: Translation, node: NodeProto) -> None:
    slope, dims = float32(to.constant(node, 1)), to.dims(node.input[0])
    assert slope is not None
    if slope.size != 1 and slope.shape[-len(dims) :] != (dims[0], *(1 for _ in dims[1:])):
        raise Unknown("PRelu with these slopes")
    flat = np.ascontiguousarray(slope.reshape(-1))
    to.add("PReLU", node.input[:1], node.output[0], {0: slope.size}, [flat])


def _hard_sigmoid(to: Translation, node: NodeProto) -> None:
    given = attributes(node)
    alpha, beta = float(given.get("alpha", 0.2)), float(given.get("beta", 0.5))
    to.add("HardSigmoid", node.input[:1], node.output[0], {0: alpha, 1: beta})


def _unary(to: Translation, node: NodeProto) -> None:
    to.add("UnaryOp", node.input[:1], node.output[0], {0: _UNARY[node.op_type]})


def _power(to: Translation, node: NodeProto) -> None:
    power = to.constant(node, 1)
    assert power is not None
    if power.size != 1 or power.item() not in _POWERS:
        raise Unknown("Pow with this exponent")
    to.add("UnaryOp", node.input[:1], node.output[0], {0: _POWERS[power.item()]})


def _simple(to: Translation, node: NodeProto) -> None:
    to.add(node.op_type, node.input[:1], node.output[0])


def _cast(to: Translation, node: NodeProto) -> None:
    is_last = attributes(node)["to"] == TensorProto.FLOAT16 and to.is_result(node.output[0])
    if attributes(node)["to"] != TensorProto.FLOAT and not is_last:
        raise Unknown("Cast to another type")
    to.rename(node.input[0], node.output[0])


def _alias(to: Translation, node: NodeProto) -> None:
    to.rename(node.input[0], node.output[0])


def _softmax(to: Translation, node: NodeProto) -> None:
    dims = to.dims(node.input[0])
    axis = int(attributes(node).get("axis", -1 if to.opset >= 13 else 1))
    axis %= len(dims) + 1
    # Before opset 13, all axes from this one on count as one.
    if axis == 0 or (to.opset < 13 and axis != len(dims)):
        raise Unknown("Softmax along these axes")
    to.add("Softmax", node.input[:1], node.output[0], {0: axis - 1, 1: 1})


# ---------------------------------------------------------------- two tensors


def _binary(to: Translation, node: NodeProto) -> None:
    if len(node.input) != 2:
        raise Unknown(f"{node.op_type} of {len(node.input)} tensors")
    if node.op_type == "Mul" and _swish(to, node):
        return
    forth, back = _BINARY[node.op_type]
    for name, other, code in (
        (node.input[1], node.input[0], forth),
        (node.input[0], node.input[1], back),
    ):
        array = to.constant_of(name)
        if array is not None and array.size == 1:
            scalar = float(array.reshape(-1)[0])
            if to.dims(other) != to.dims(node.output[0]):
                raise Unknown(f"{node.op_type} that adds axes")
            to.add("BinaryOp", [other], node.output[0], {0: code, 1: 1, 2: scalar})
            return
    out = to.dims(node.output[0])
    names = [to.operand(name, out) for name in node.input]
    if all(to.dims(name) != out for name in names):
        raise Unknown(f"{node.op_type} that repeats both tensors")
    to.add("BinaryOp", names, node.output[0], {0: forth})


def _swish(to: Translation, node: NodeProto) -> bool:
    """x * Sigmoid(x) is one layer."""
    for name, gate in (tuple(node.input), tuple(reversed(node.input))):
        layer = to.maker(gate)
        if (
            layer is not None
            and layer.kind == "Sigmoid"
            and layer.inputs == [to.blob(name)]
            and to.blob(gate) == gate
            and to.is_read_once(gate)
        ):
            to.drop(layer)
            to.add("Swish", [name], node.output[0])
            return True
    return False


def _mat_mul(to: Translation, node: NodeProto) -> None:
    matrix = to.constant_of(node.input[1])
    if matrix is not None and node.input[0] not in to.names_of_constants():
        _product(to, node, matrix.T if matrix.ndim == 2 else None, None)
        return
    before = [to.dims(name) for name in node.input]
    if any(name in to.names_of_constants() for name in node.input) or not (
        len(before[0]) == len(before[1]) in (2, 3) and before[0][:-2] == before[1][:-2]
    ):
        raise Unknown("MatMul of these shapes")
    to.add("MatMul", node.input, node.output[0])


def _gemm(to: Translation, node: NodeProto) -> None:
    given, matrix = attributes(node), to.constant(node, 1)
    if given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0 or given.get("transA"):
        raise Unknown("Gemm with factors")
    assert matrix is not None
    bias = float32(to.constant(node, 2))
    if bias is not None and bias.size != to.dims(node.output[0])[-1]:
        raise Unknown("Gemm with this bias")
    _product(to, node, matrix if given.get("transB") else matrix.T, bias)


def _product(
    to: Translation, node: NodeProto, rows: np.ndarray | None, bias: np.ndarray | None
) -> None:
    """A product with a constant matrix, of which `rows` are the columns of the result."""
    before, after = to.dims(node.input[0]), to.dims(node.output[0])
    if float32(rows) is None or len(before) > 2:
        raise Unknown(f"{node.op_type} of these shapes")
    assert rows is not None
    held_bytes = rows.nbytes + (bias.nbytes if bias is not None else 0)
    if held_bytes > LARGEST_MATRIX_BYTES["ncnn"]:
        raise Unknown(f"a matrix of {held_bytes >> 20} MB, which onnxruntime maps")
    weights = [PLAIN, np.ascontiguousarray(rows)]
    if bias is not None:
        weights.append(np.ascontiguousarray(bias.reshape(-1)))
    parameters: dict[int, Any] = {0: len(rows), 1: int(bias is not None), 2: rows.size}
    # One row would lose its axis.
    name = f"{node.output[0]}__row" if len(after) == 2 and after[0] == 1 else node.output[0]
    to.add("InnerProduct", node.input[:1], name, parameters, weights)
    if name != node.output[0]:
        to.reshape(name, after, node.output[0])


# ---------------------------------------------------------------- arrangement


def _concat(to: Translation, node: NodeProto) -> None:
    axis = int(attributes(node)["axis"])
    axis %= len(to.dims(node.output[0])) + 1
    if axis == 0 or any(name in to.names_of_constants() for name in node.input):
        raise Unknown("Concat in this form")
    to.add("Concat", node.input, node.output[0], {0: axis - 1})


def _slice(to: Translation, node: NodeProto) -> None:
    before, after = to.dims(node.input[0]), to.dims(node.output[0])
    starts, ends = to.setting(node, "starts", 1), to.setting(node, "ends", 2)
    assert starts is not None
    assert ends is not None
    axes = to.setting(node, "axes", 3) or list(range(len(starts)))
    steps = to.setting(node, "steps", 4) or [1] * len(starts)
    cuts: list[tuple[int, int, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        at = axis % (len(before) + 1) - 1
        if step != 1 or (at < 0 and (start, end > 0) != (0, True)):
            raise Unknown("Slice with steps")
        if at < 0:
            continue
        size = before[at]
        first = max(0, start + size if start < 0 else start)
        left = size - first - after[at]
        # Counted from both ends, as the program does, one text serves every size of a tile.
        if first or left:
            cuts.append((at, first, -left if left else TO_THE_END))
        if left == -TO_THE_END:
            raise Unknown("Slice of this many elements")
    if not cuts:
        to.rename(node.input[0], node.output[0])
        return
    columns = tuple(zip(*cuts, strict=True))
    parameters = {9: columns[1], 10: columns[2], 11: columns[0]}
    to.add("Crop", node.input[:1], node.output[0], parameters)


def _split(to: Translation, node: NodeProto) -> None:
    before = to.dims(node.input[0])
    axis = int(attributes(node).get("axis", 0)) % (len(before) + 1)
    if axis == 0:
        raise Unknown("Split of the batch")
    start = 0
    for name in node.output:
        size = to.size_along(name, axis)
        if to.is_needed(name) and size == before[axis - 1]:
            to.rename(node.input[0], name)
        elif to.is_needed(name):
            left = before[axis - 1] - start - size
            to.add(
                "Crop",
                node.input[:1],
                name,
                {9: (start,), 10: (-left if left else TO_THE_END,), 11: (axis - 1,)},
            )
        start += size


def _reshape(to: Translation, node: NodeProto) -> None:
    if to.dims(node.input[0]) == to.dims(node.output[0]):
        to.rename(node.input[0], node.output[0])
    else:
        to.reshape(node.input[0], to.dims(node.output[0]), node.output[0])


def _transpose(to: Translation, node: NodeProto) -> None:
    rank = len(to.dims(node.input[0])) + 1
    order = attributes(node).get("perm", list(reversed(range(rank))))
    if order[0] != 0:
        raise Unknown("Transpose of the batch")
    inner = tuple(axis - 1 for axis in order[1:])
    if inner == tuple(range(rank - 1)):
        to.rename(node.input[0], node.output[0])
    else:
        kind = _permutation(inner)
        to.add("Permute", node.input[:1], node.output[0], {0: kind})


def _permutation(order: Shape) -> int:
    """ncnn's number of a transposition: it counts those of the axes from the last one on, of which
    the last of the result changes fastest.
    """
    rank = len(order)
    backwards = tuple(rank - 1 - axis for axis in reversed(order))
    numbers = sorted(permutations(range(rank)), key=lambda axes: axes[::-1], reverse=True)
    return numbers.index(backwards)


def _space_to_depth(to: Translation, node: NodeProto) -> None:
    size = int(attributes(node)["blocksize"])
    to.add("Reorg", node.input[:1], node.output[0], {0: size, 1: 1})


def _depth_to_space(to: Translation, node: NodeProto) -> None:
    given = attributes(node)
    size, mode = int(given["blocksize"]), given.get("mode", b"DCR")
    to.add("PixelShuffle", node.input[:1], node.output[0], {0: size, 1: int(mode == b"DCR")})


_OPERATORS: Operators = {
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(_ALIASES, _alias),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_SIMPLE, _simple),
    **dict.fromkeys(_UNARY, _unary),
    "AveragePool": _pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space,
    "Flatten": _reshape,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "HardSigmoid": _hard_sigmoid,
    "LRN": _lrn,
    "MatMul": _mat_mul,
    "MaxPool": _pool,
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _power,
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _softmax,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    "Upsample": _resize,
}
