"""The encoding of tensors on the wire: none, or nodes added to the graphs that make and read them.

A tensor's encoding belongs to the planned network: planners count its bytes, the cutter adds its
nodes to every tile that makes or reads the tensor, and everything in between moves the encoded
elements without interpreting them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from models.tensors.boxes import Box, Span

# onnxruntime's own domain: its QuantizeLinear takes a scale per channel at every opset.
RUNTIME = "com.microsoft"

# Adds a constant to the graph under construction and returns its name.
Constant = Callable[[str, np.ndarray], str]


@dataclass(frozen=True, slots=True)
class Coded:
    """One tensor of a tile's graph in both forms: `plain` is what the network's nodes make or read,
    `wire` what is sent. The tile has this `box` of it.
    """

    plain: str
    wire: str
    box: Box
    constant: Constant


class Encoding(Protocol):
    """An encoding of a tensor: the same number of elements, of another type."""

    @property
    def data_type(self) -> int:
        """ONNX element type on the wire."""
        ...

    def encode(self, tensor: Coded) -> list[NodeProto]:
        """Nodes from the plain tensor to its encoded form."""
        ...

    def decode(self, tensor: Coded) -> list[NodeProto]:
        """Nodes from the encoded form to the plain tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Half:
    """float16: half of the bytes, 11 significant bits, at most 65504."""

    data_type: ClassVar[int] = TensorProto.FLOAT16

    def encode(self, tensor: Coded) -> list[NodeProto]:
        """See `Encoding`."""
        return [helper.make_node("Cast", [tensor.plain], [tensor.wire], to=TensorProto.FLOAT16)]

    def decode(self, tensor: Coded) -> list[NodeProto]:
        """See `Encoding`."""
        return [helper.make_node("Cast", [tensor.wire], [tensor.plain], to=TensorProto.FLOAT)]


@dataclass(frozen=True, slots=True)
class PerChannel:
    """uint8 with a scale and a zero point per channel: a quarter of the bytes. Values beyond the
    ranges are clipped.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]

    data_type: ClassVar[int] = TensorProto.UINT8

    @classmethod
    def covering(cls, least: NDArray[np.float32], most: NDArray[np.float32]) -> "PerChannel":
        """For values from `least` to `most` of each channel (C,); zero stays exact."""
        low = np.minimum(least, 0).astype(np.float64)
        high = np.maximum(most, 0).astype(np.float64)
        # Ranges of subnormal numbers have no step that float32 can divide by.
        scales = np.maximum((high - low) / 255, np.finfo(np.float32).tiny)
        zeros = np.clip(np.rint(-low / scales), 0, 255).astype(int)
        return cls(tuple(scales.tolist()), tuple(zeros.tolist()))

    def encode(self, tensor: Coded) -> list[NodeProto]:
        """See `Encoding`."""
        return [self._node("QuantizeLinear", tensor.plain, tensor.wire, tensor)]

    def decode(self, tensor: Coded) -> list[NodeProto]:
        """See `Encoding`."""
        return [self._node("DequantizeLinear", tensor.wire, tensor.plain, tensor)]

    def _node(self, op: str, source: str, target: str, tensor: Coded) -> NodeProto:
        chosen = tensor.box.slices()[1]
        scale = np.array(self.scales[chosen], np.float32)
        zero = np.array(self.zero_points[chosen], np.uint8)
        inputs = [
            source,
            tensor.constant(f"{target}__scale", scale),
            tensor.constant(f"{target}__zero", zero),
        ]
        return helper.make_node(op, inputs, [target], domain=RUNTIME, axis=1)


# Of a picture, at a time.
_ROWS = 32


@dataclass(frozen=True, slots=True)
class Pixels:
    """A picture (N, C, H, W) as its uint8 pixels: the tensor is (pixel * scale - mean) / std, in
    float32, and rounded to float16 then if it is `half`. With `channels_last` it is (N, H, W, C),
    or without its first dimension.

    Windows that reach beyond the map read zeros of the tensor, not of the pixels: pads stay in the
    nodes after this. Only inputs use it; no node makes pixels.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    half: bool = False
    channels_last: bool = False

    data_type: ClassVar[int] = TensorProto.UINT8

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tensor: float32 or float16."""
        return np.dtype(np.float16 if self.half else np.float32)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape is a picture with these channels."""
        return len(shape) in (3, 4) and shape[self._axis] == len(self.mean)

    def values(self, pixels: NDArray[np.uint8]) -> NDArray[np.floating[Any]]:
        """The tensor of these pixels, each step rounded to float32."""
        values: NDArray[np.floating[Any]] = pixels.astype(np.float32)
        for _, step, operand in self._steps(Span(0, len(self.mean))):
            values = step(values, operand)
        return values.astype(self.dtype, copy=False)

    def pixels(self, values: NDArray[np.floating[Any]]) -> NDArray[np.uint8] | None:
        """The pixels of which this is the tensor, to the bit; None if there are none."""
        every = Span(0, len(self.mean))
        mean, std = (self._operand(array, every) for array in (self.mean, self.std))
        pixels = np.empty(values.shape, np.uint8)
        rows_axis = values.ndim + self._axis + (-2 if self.channels_last else 1)
        # In parts that fit into a cache. Most tensors that are none show it in the first.
        for top in range(0, values.shape[rows_axis], _ROWS):
            rows = (*[slice(None)] * rows_axis, slice(top, top + _ROWS))
            part = np.ascontiguousarray(values[rows])
            with np.errstate(all="ignore"):
                steps = np.rint((part * std + mean) / np.float32(self.scale))
                pixels[rows] = np.fmin(np.fmax(steps, 0), 255)
            again = self.values(np.ascontiguousarray(pixels[rows]))
            if not np.array_equal(again.view(np.uint8), part.view(np.uint8)):
                return None
        return pixels

    def decode(self, tensor: Coded) -> list[NodeProto]:
        """Nodes from pixels to the tensor that the network's nodes read."""
        steps = self._steps(tensor.box[len(tensor.box) + self._axis])
        last = f"{tensor.wire}__float32" if self.half else tensor.plain
        names = [*(f"{tensor.wire}__before{op}" for op, _, _ in steps), last]
        nodes = [helper.make_node("Cast", [tensor.wire], names[:1], to=TensorProto.FLOAT)]
        for (op, _, operand), source, target in zip(steps, names, names[1:], strict=False):
            label = tensor.constant(f"{tensor.wire}__{op}", operand)
            nodes.append(helper.make_node(op, [source, label], [target]))
        if self.half:
            nodes.append(helper.make_node("Cast", [last], [tensor.plain], to=TensorProto.FLOAT16))
        return nodes

    @property
    def _axis(self) -> int:
        """Of the channels, counted from the last."""
        return -1 if self.channels_last else -3

    def _operand(self, values: Sequence[float], channels: Span) -> NDArray[np.float32]:
        """One value for each channel, in a shape that is broadcast to the picture's."""
        operand = np.array(values[channels.start : channels.stop], np.float32)
        return operand if self.channels_last else operand[:, None, None]

    def _steps(self, channels: Span) -> list[tuple[str, np.ufunc, np.ndarray]]:
        """The steps after the conversion to float32; those without effect are left out."""
        steps: list[tuple[str, np.ufunc, np.ndarray]] = []
        if self.scale != 1:
            steps.append(("Mul", np.multiply, np.array(self.scale, np.float32)))
        for op, step, values, nothing in (
            ("Sub", np.subtract, self.mean, 0),
            ("Div", np.divide, self.std, 1),
        ):
            if set(values) != {nothing}:
                steps.append((op, step, self._operand(values, channels)))
        return steps


@dataclass(frozen=True, slots=True)
class Quantised:
    """A float32 input as the 8-bit numbers that the network's own QuantizeLinear makes of it, with
    one scale and zero point for all. No node makes an input.
    """

    scale: float
    zero_point: int
    data_type: int = TensorProto.UINT8

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 or int8."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.data_type))

    def numbers(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """The encoded values [ONNX, QuantizeLinear]: halves are rounded to even, values beyond the
        range are clipped. NaN becomes either end.
        """
        span = np.iinfo(self.dtype)
        with np.errstate(all="ignore"):
            steps = np.rint(values / np.float32(self.scale))
        np.fmax(steps, np.float32(span.min - self.zero_point), out=steps)
        np.fmin(steps, np.float32(span.max - self.zero_point), out=steps)
        numbers: NDArray[Any] = (steps + np.float32(self.zero_point)).astype(self.dtype)
        return numbers

    def decode(self, tensor: Coded) -> list[NodeProto]:
        """Nodes from the encoded form to values that QuantizeLinear maps to the same numbers."""
        scale = tensor.constant(f"{tensor.wire}__scale", np.array(self.scale, np.float32))
        zero = tensor.constant(f"{tensor.wire}__zero", np.array(self.zero_point, self.dtype))
        inputs = [tensor.wire, scale, zero]
        return [helper.make_node("DequantizeLinear", inputs, [tensor.plain], domain=RUNTIME)]
