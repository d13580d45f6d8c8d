"""YOLOv10, YOLO26: boxes after non-maximum suppression."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from models.boxes import Span
from models.documents import DOCUMENT, Share
from models.selection import Selection, Selections
from models.vision.detection import Candidates, Detector
from models.vision.head import ANY, Outputs, Shapes, Size, first


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class EndToEnd(Detector):
    """An output (1, boxes, 6), from which the graph has removed overlapping boxes (YOLOv10,
    YOLO26): x_min, y_min, x_max, y_max in pixels of the model's input, score, index of the class.
    """

    type: Literal["end2end"]
    min_score: Share
    overlaps: ClassVar[bool] = False

    def wanted(self, shapes: Shapes, classes: int, size: Size) -> Shapes:
        """The rows."""
        return {first(shapes): (1, ANY, 6)}

    def selections(self, shapes: Shapes, classes: int) -> Selections:
        """The likely boxes."""
        return {first(shapes): Selection(1, 2, Span(4, 5), self.min_score)}

    def candidates(self, outputs: Outputs, classes: int, size: Size) -> Candidates:
        """The rows; those outside `classes` are not boxes."""
        rows = outputs[first(outputs)][0]
        index = np.rint(rows[:, 5])
        rows = rows[(index >= 0) & (index < classes)]
        return Candidates(
            rows[:, :4].astype(np.float32), np.rint(rows[:, 5]).astype(np.int64), rows[:, 4]
        )
