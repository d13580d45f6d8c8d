"""Sliding windows of convolutions and pools, with all of ONNX's padding modes made explicit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.tensors.boxes import Span
from protos.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension, in elements."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_start: int = 0
    pad_end: int = 0

    @property
    def reach(self) -> int:
        """Elements from the first to the last tap."""
        return (self.kernel - 1) * self.dilation + 1

    def _unclipped(self, output: Span) -> Span:
        start = output.start * self.stride - self.pad_start
        return Span(start, (output.stop - 1) * self.stride - self.pad_start + self.reach)

    def input_span(self, output: Span, size: int) -> Span:
        """Input range that an output range reads, clipped to a map of `size`; at least one
        element, since no operator takes an empty map.
        """
        if output.stop <= output.start:
            return Span(0, 0)
        start, stop = self._unclipped(output)
        start = min(max(start, 0), size - 1)
        return Span(start, max(start + 1, min(stop, size)))

    def touching(self, output: Span, size: int, outputs: int) -> Span:
        """`output`, extended where all of its windows lie beyond the map: a tile needs at least
        one window that reads something, if there is any among the `outputs` windows.
        """
        first = max(0, -(-(self.pad_start - self.reach + 1) // self.stride))
        last = (size + self.pad_start - 1) // self.stride
        if output.stop <= first:
            return Span(output.start, min(first + 1, outputs))
        return output if output.start <= last else Span(last, output.stop)

    def pads(self, output: Span, size: int) -> tuple[int, int]:
        """Padding that remains before and after the input range of `output`.

        Inside the map it is zero. At the end of a map whose size was rounded up (ceil_mode) the
        last window may hang over by more than `pad_end`; the node's own ceil_mode covers that.
        """
        span = self._unclipped(output)
        return max(0, -span.start), min(max(0, span.stop - size), self.pad_end)


def explicit_windows(
    attributes: Mapping[str, Any],
    kernel: Sequence[int],
    sizes: Sequence[int],
    outputs: Sequence[int],
) -> tuple[Window, ...]:
    """One window per spatial dimension of a Conv or pool (ONNX operator specification).

    `kernel` is the kernel's shape, `sizes` and `outputs` the spatial shapes of input and output.
    """
    ones = [1] * len(kernel)
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    pads = attributes.get("pads", [0] * (2 * len(kernel)))
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    result = []
    for axis, taps in enumerate(kernel):
        start, end = pads[axis], pads[axis + len(kernel)]
        if auto.startswith("SAME"):
            reach = (taps - 1) * dilations[axis] + 1
            total = max(0, (outputs[axis] - 1) * strides[axis] + reach - sizes[axis])
            small = total // 2
            start, end = (small, total - small) if auto == "SAME_UPPER" else (total - small, small)
        elif auto == "VALID":
            start = end = 0
        window = Window(int(taps), int(strides[axis]), int(dilations[axis]), start, end)
        beyond = (outputs[axis] - 1) * window.stride >= sizes[axis] + window.pad_start
        if beyond and attributes.get("ceil_mode"):
            raise BadRequest(
                cause="a pool rounds its size up to a window that starts beyond the map",
                cure="ONNX and onnxruntime disagree on such windows: export with ceil_mode=0.",
            )
        result.append(window)
    return tuple(result)


def transposed_windows(
    attributes: Mapping[str, Any],
    kernel: Sequence[int],
    sizes: Sequence[int],
    outputs: Sequence[int],
) -> tuple[Window, ...]:
    """One window per spatial dimension of a ConvTranspose: `pad_start` and `pad_end` are what it
    cuts off its full output (negative at the end: what it pads there).
    """
    ones = [1] * len(kernel)
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    pads = attributes.get("pads", [0] * (2 * len(kernel)))
    extra = attributes.get("output_padding", [0] * len(kernel))
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    result = []
    for axis, taps in enumerate(kernel):
        window = Window(int(taps), int(strides[axis]), int(dilations[axis]))
        full = (sizes[axis] - 1) * window.stride + window.reach
        start = pads[axis]
        if auto == "VALID" and "output_shape" not in attributes:
            start = 0
        elif auto.startswith("SAME") or "output_shape" in attributes:
            total = max(0, full + extra[axis] - outputs[axis])
            start = total // 2 if auto == "SAME_UPPER" else total - total // 2
        result.append(replace(window, pad_start=start, pad_end=full - start - outputs[axis]))
    return tuple(result)


# The index of an operator's weights among its inputs.
_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}


def weights_position(op: str) -> int:
    """The index of a convolution's weights among its inputs."""
    return _WEIGHTS[op]


_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "com.microsoft.QLinearAveragePool"})


def has_windows(op: str) -> bool:
    """Whether an operator slides windows over its first input."""
    return op in _WEIGHTS or op in _POOLS
