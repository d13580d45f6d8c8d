"""The interface of heads, and what they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from models.tensors.arrays import Shape
from models.tensors.selection import NO_SELECTION, Selections
from models.vision.image_input import Placement

VisionTask = Literal["classification", "detection", "segmentation", "image-to-image", "tensor"]
Values = NDArray[np.float32]
OutputValues = Mapping[str, Values]
OutputShapes = Mapping[str, Shape]
PictureSize = tuple[int, int]
ANY = -1  # a size that a head does not prescribe


@dataclass(frozen=True, slots=True)
class View:
    """The context of outputs: the classes, the model's input of `size` (height, width), and the
    placement of the picture in it.
    """

    labels: Sequence[str]
    size: PictureSize
    placement: Placement


class OutputReader:
    """Reads the outputs of a model for one task."""

    __slots__ = ()
    task: ClassVar[VisionTask]

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The outputs that it reads from a model with `classes` classes and an input of `size`
        (height, width); `shapes` are those of the model's outputs, at least one.
        """
        raise NotImplementedError

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """What it reads of the model's outputs, where that is not everything: zeros instead of the
        rest change no prediction.
        """
        return NO_SELECTION

    def read(self, outputs: OutputValues, view: View) -> Sequence[Any]:
        """Predictions, best first, of outputs of the wanted shapes."""
        raise NotImplementedError


def softmax(values: Values) -> Values:
    """exp(x) / sum exp(x) along the last axis, shifted so that the largest exponent is 0; NaN where
    the largest value is not finite.
    """
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float32)
