"""Heads of lists of boxes: one output, whose rows (or columns) are a box each."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from models.vision.detection import Candidates, Detector, cells, grown, likeliest, numbered
from models.vision.head import ANY, OutputShapes, OutputValues, PictureSize, Values
from models.vision.image_input import Side
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Share

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
        return {next(iter(shapes)): (1, ANY, FINISHED)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        return {next(iter(shapes)): Selection(1, 2, Span(4, 5), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The rows."""
        return finished(next(iter(outputs.values()))[0], classes)


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class RtDetr(Detector):
    """One box for each query, none of which repeats another: an output (1, queries, 4 + classes):
    centre x, y, width and height as shares of the model's input, then a likelihood for each class
    [RT-DETR, section 4.3, as Ultralytics exports it].
    """

    type: Literal["rtdetr"]
    min_score: Share
    overlaps: ClassVar[bool] = False

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The queries."""
        return {next(iter(shapes)): (1, ANY, 4 + classes)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        return {next(iter(shapes)): Selection(1, 2, Span(4, 4 + classes), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The boxes, with their likeliest classes."""
        rows, (height, width) = next(iter(outputs.values()))[0], size
        pixels = rows[:, :4] * np.array([width, height, width, height], np.float32)
        return likeliest(pixels[:, 0:2], pixels[:, 2:4], rows[:, 4:])


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloX(Detector):
    """A box in each cell of several grids: an output (1, cells, 5 + classes): the cells of one grid
    after the other, row by row, with likelihoods after their sigmoid. `strides` are of the grids,
    in pixels of the model's input.
    """

    type: Literal["yolox"]
    strides: Annotated[tuple[Side, ...], Field(min_length=1, max_length=MOST_ITEMS)]
    min_score: Share
    nms_iou: Share

    def cells(self, size: PictureSize) -> int:
        """The number of cells of all grids, for an input of `size` (height, width)."""
        return sum((size[0] // stride) * (size[1] // stride) for stride in self.strides)

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """A row for each cell."""
        return {next(iter(shapes)): (1, self.cells(size), 5 + classes)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        return {next(iter(shapes)): Selection(1, 2, Span(5, 5 + classes), self.min_score, factor=4)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """A box for every cell of every grid.

        With raw values tx, ty, tw, th of a cell: x = (tx + column) * stride, w = exp(tw) * stride,
        score = objectness * class                                    [YOLOX, section 2.1]
        """
        corners, strides = [], []
        for stride in self.strides:
            grid = cells(size[0] // stride, size[1] // stride).reshape(-1, 2)
            corners.append(grid.astype(np.float32))
            strides.append(np.full((len(grid), 1), stride, np.float32))
        raw, stride_of = next(iter(outputs.values()))[0], np.concatenate(strides)
        centre = (raw[:, 0:2] + np.concatenate(corners)) * stride_of
        return likeliest(centre, grown(raw[:, 2:4]) * stride_of, raw[:, 4:5] * raw[:, 5:])


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloBoxes(Detector):
    """YOLOv5, YOLOv8 and similar exports: boxes that the graph has decoded, in pixels of the
    model's input: centre x, y, width, height, then scores.

    `yolov5`: an output (1, boxes, 5 + classes), the fifth value the objectness. `yolov8`: an output
    (1, 4 + classes, boxes).
    """

    type: Literal["yolov5", "yolov8"]
    min_score: Share
    nms_iou: Share

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The boxes."""
        rows = (1, ANY, 5 + classes) if self.type == "yolov5" else (1, 4 + classes, ANY)
        return {next(iter(shapes)): rows}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        if self.type == "yolov5":
            return {
                next(iter(shapes)): Selection(1, 2, Span(5, 5 + classes), self.min_score, factor=4)
            }
        return {next(iter(shapes)): Selection(2, 1, Span(4, 4 + classes), self.min_score)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """The boxes, with their likeliest classes."""
        values = next(iter(outputs.values()))[0]
        if self.type == "yolov5":
            return likeliest(values[:, 0:2], values[:, 2:4], values[:, 4:5] * values[:, 5:])
        rows = values.T
        return likeliest(rows[:, 0:2], rows[:, 2:4], rows[:, 4:])


def finished(rows: Values, classes: int) -> Candidates:
    """Boxes from rows (N, 6 + K) of four numbers for the place, score, index of the class, and what
    else is known of them; those outside `classes` are not boxes.
    """
    index = np.rint(rows[:, 5])
    rows = rows[~np.isfinite(index) | ((index >= 0) & (index < classes))]
    return numbered(rows[:, :4], rows[:, 5], rows[:, 4], rows[:, FINISHED:])
