"""Convolutions and pools."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from


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
    if op == "LpPool":
        attributes["p"] = draw(st.integers(1, 3))
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


WINDOWED = {
    # Most of what a network does.
    "conv": conv,
    "conv again": conv,
    "conv once more": conv,
    "conv transpose": conv_transpose,
    "pool": pool,
}
