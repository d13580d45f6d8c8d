"""A layer of ncnn, and the line of text that describes it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# ncnn's sign for the end of an axis; no other index may have this value.
TO_THE_END = -233
CONVOLUTIONS = ("Convolution", "ConvolutionDepthWise")
# They compute into memory of their own.
_APART = (*CONVOLUTIONS, "Crop", "Deconvolution", "Interp", "Pooling")


class Unknown(Exception):
    """What of a program ncnn is not known to compute as ONNX does."""


@dataclass(slots=True)
class Layer:
    """A layer of ncnn; parameters by their number."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    parameters: dict[int, Any] = field(default_factory=dict)
    weights: list[np.ndarray] = field(default_factory=list)

    @property
    def copies(self) -> bool:
        """Whether it writes what it computes into memory of its own. Others may compute in place,
        and an input's memory is not theirs.
        """
        joins = self.kind in ("BinaryOp", "Concat") and len(self.inputs) > 1
        return joins or self.kind in _APART

    @property
    def joins_channels(self) -> bool:
        """Whether its inputs' channels follow each other in its output."""
        return self.kind == "Concat" and self.parameters[0] == 0

    @property
    def first_channel(self) -> int | None:
        """Of a layer that takes channels of a tensor, the first; None: it does something else."""
        if self.kind != "Crop" or self.parameters[11] != (0,):
            return None
        return int(self.parameters[9][0])

    def line(self, number: int, inputs: Sequence[str], outputs: Sequence[str]) -> str:
        """The text of the layer with this number, which reads and makes these blobs."""
        words = [self.kind, f"l{number}", str(len(inputs)), str(len(outputs)), *inputs, *outputs]
        for key, value in sorted(self.parameters.items()):
            if isinstance(value, tuple):
                words.append(f"{-23300 - key}={len(value)},{','.join(map(_number, value))}")
            else:
                words.append(f"{key}={_number(value)}")
        return " ".join(words)


def _number(value: float) -> str:
    """ncnn tells whole numbers from others by their form."""
    if isinstance(value, int):
        return str(value)
    if not np.isfinite(value):
        raise Unknown("a setting that is not finite")
    return f"{float(value):.9e}"
