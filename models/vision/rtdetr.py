"""RT-DETR: one box for each query, none of which repeats another."""

from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from models.vision.detection import Candidates, Detector, likeliest
from models.vision.head import ANY, OutputShapes, OutputValues, PictureSize, first
from protos.daemon.documents import DOCUMENT, Share


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class RtDetr(Detector):
    """An output (1, queries, 4 + classes): centre x, y, width and height as shares of the model's
    input, then a likelihood for each class [RT-DETR, section 4.3, as Ultralytics exports it].
    """

    type: Literal["rtdetr"]
    min_score: Share
    overlaps: ClassVar[bool] = False

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The queries."""
        return {first(shapes): (1, ANY, 4 + classes)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        return {first(shapes): Selection(1, 2, Span(4, 4 + classes), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The boxes, with their likeliest classes."""
        rows, (height, width) = outputs[first(outputs)][0], size
        pixels = rows[:, :4] * np.array([width, height, width, height], np.float32)
        return likeliest(pixels[:, 0:2], pixels[:, 2:4], rows[:, 4:])
