"""YOLOv5, YOLOv8 and similar exports: boxes that the graph has decoded."""

from typing import Literal

from pydantic.dataclasses import dataclass

from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from models.vision.detection import Candidates, Detector, likeliest
from models.vision.head import ANY, OutputShapes, OutputValues, PictureSize, first
from protos.daemon.documents import DOCUMENT, Share


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloBoxes(Detector):
    """Decoded boxes in pixels of the model's input: centre x, y, width, height, then scores.

    `yolov5`: an output (1, boxes, 5 + classes), the fifth value the objectness. `yolov8`: an output
    (1, 4 + classes, boxes).
    """

    type: Literal["yolov5", "yolov8"]
    min_score: Share
    nms_iou: Share

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The boxes."""
        rows = (1, ANY, 5 + classes) if self.type == "yolov5" else (1, 4 + classes, ANY)
        return {first(shapes): rows}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        if self.type == "yolov5":
            return {first(shapes): Selection(1, 2, Span(5, 5 + classes), self.min_score, factor=4)}
        return {first(shapes): Selection(2, 1, Span(4, 4 + classes), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The boxes, with their likeliest classes."""
        values = outputs[first(outputs)][0]
        if self.type == "yolov5":
            return likeliest(values[:, 0:2], values[:, 2:4], values[:, 4:5] * values[:, 5:])
        rows = values.T
        return likeliest(rows[:, 0:2], rows[:, 2:4], rows[:, 4:])
