"""The interface of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from models.tensors.selection import NO_SELECTION, Selections
from models.vision.placement import Placement

Task = Literal["classification", "detection", "segmentation", "image-to-image", "tensor"]
Values = NDArray[np.float32]
Outputs = Mapping[str, Values]
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Size = tuple[int, int]
ANY = -1  # a size that a head does not prescribe


@dataclass(frozen=True, slots=True)
class View:
    """The context of outputs: the classes, the model's input of `size` (height, width), and the
    placement of the picture in it.
    """

    labels: Sequence[str]
    size: Size
    placement: Placement


class Reader:
    """Reads the outputs of a model for one task."""

    __slots__ = ()
    task: ClassVar[Task]

    def wanted(self, shapes: Shapes, classes: int, size: Size) -> Shapes:
        """The outputs that it reads from a model with `classes` classes and an input of `size`
        (height, width); `shapes` are those of the model's outputs, at least one.
        """
        raise NotImplementedError

    def selections(self, shapes: Shapes, classes: int) -> Selections:
        """What it reads of the model's outputs, where that is not everything: zeros instead of the
        rest change no prediction.
        """
        return NO_SELECTION

    def read(self, outputs: Outputs, view: View) -> Sequence[Any]:
        """Predictions, best first, of outputs of the wanted shapes."""
        raise NotImplementedError


def first(outputs: Mapping[str, Any]) -> str:
    """The name of the first output."""
    return next(iter(outputs))
