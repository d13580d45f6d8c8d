"""How tensors travel: as they are, or encoded by nodes of the very graphs that make and read them.

A tensor's encoding belongs to the network that is planned: planners count its bytes, the cutter
adds its nodes to every tile that reads (or makes) the tensor, and everything in between moves the
encoded elements without knowing what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from models.boxes import Span

# Adds a constant to the graph that is being made and returns its name.
Constant = Callable[[str, np.ndarray], str]


class Encoding(Protocol):
    """What travels in a tensor's place: equally many elements, of another type."""

    @property
    def data_type(self) -> int:
        """ONNX element type on the wire."""
        ...

    def decode(self, name: str, channels: Span, constant: Constant) -> list[NodeProto]:
        """Nodes that turn the encoded tensor `name`, of which the tile has `channels`, into the
        tensor that the network's nodes read. The last one's only output is that tensor.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image (N, 3, H, W) as its uint8 pixels: the tensor is (pixel * scale - mean) / std.

    Windows that reach beyond the map read zeros of the tensor, not of the pixels: pads stay in
    the nodes behind this.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    data_type: ClassVar[int] = TensorProto.UINT8

    def values(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The tensor of these pixels, each step rounded to float32."""
        values = pixels.astype(np.float32)
        for _, step, operand in self._steps(Span(0, len(self.mean))):
            values = step(values, operand)
        return values

    def decode(self, name: str, channels: Span, constant: Constant) -> list[NodeProto]:
        """See `Encoding`."""
        nodes = [helper.make_node("Cast", [name], [f"{name}__values"], to=TensorProto.FLOAT)]
        for op, _, operand in self._steps(channels):
            label = constant(f"{name}__{op}", operand)
            nodes.append(helper.make_node(op, [nodes[-1].output[0], label], [f"{name}__after{op}"]))
        return nodes

    def _steps(self, channels: Span) -> list[tuple[str, np.ufunc, np.ndarray]]:
        """What follows the conversion to float32; what would change nothing is left out."""
        steps: list[tuple[str, np.ufunc, np.ndarray]] = []
        if self.scale != 1:
            steps.append(("Mul", np.multiply, np.array(self.scale, np.float32)))
        for op, step, values, nothing in (
            ("Sub", np.subtract, self.mean, 0),
            ("Div", np.divide, self.std, 1),
        ):
            if set(values) != {nothing}:
                operand = np.array(values, np.float32)[None, :, None, None]
                steps.append((op, step, operand[:, channels.start : channels.stop]))
        return steps
