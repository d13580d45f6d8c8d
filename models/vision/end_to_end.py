"""YOLOv10, YOLO26: boxes after non-maximum suppression."""

from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from models.vision.detection import Candidates, Detector, numbered
from models.vision.head import ANY, OutputShapes, OutputValues, PictureSize, Values, first
from protos.daemon.documents import DOCUMENT, Share

# Values of a finished box: its place, its score and its class.
FINISHED = 6


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class EndToEnd(Detector):
    """An output (1, boxes, 6), from which the graph has removed overlapping boxes (YOLOv10,
    YOLO26): x_min, y_min, x_max, y_max in pixels of the model's input, score, index of the class.
    """

    type: Literal["end2end"]
    min_score: Share
    overlaps: ClassVar[bool] = False

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The rows."""
        return {first(shapes): (1, ANY, FINISHED)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        return {first(shapes): Selection(1, 2, Span(4, 5), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The rows."""
        return finished(outputs[first(outputs)][0], classes)


def finished(rows: Values, classes: int) -> Candidates:
    """Boxes from rows (N, 6 + K) of four numbers for the place, score, index of the class, and what
    else is known of them; those outside `classes` are not boxes.
    """
    index = np.rint(rows[:, 5])
    rows = rows[~np.isfinite(index) | ((index >= 0) & (index < classes))]
    return numbered(rows[:, :4], rows[:, 5], rows[:, 4], rows[:, FINISHED:])
