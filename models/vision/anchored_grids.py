"""YOLOv2 and YOLOv3: grids of anchored boxes."""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from models.graph.sizes import LARGEST_SIDE
from models.tensors.arrays import Shape
from models.vision.detection import Candidates, Detector, cells, grown, likeliest, sigmoid
from models.vision.head import OutputShapes, OutputValues, PictureSize, Values, softmax
from models.vision.image_input import Side
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Positive, Share, wrong

Anchors = Annotated[
    tuple[tuple[Positive, Positive], ...], Field(min_length=1, max_length=MOST_ITEMS)
]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloV2(Detector):
    """An output grid (1, anchors * (5 + classes), H, W).

    Anchors are (width, height) in cells of `stride` pixels of the model's input.
    """

    type: Literal["yolov2"]
    anchors: Anchors
    stride: Side
    min_score: Share
    nms_iou: Share

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The grid."""
        return {next(iter(shapes)): grid(len(self.anchors), self.stride, classes, size)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """Every anchor of every cell with its likeliest class: classes exclude each other
        [YOLO9000, section 2].
        """
        anchors = tuple((w * self.stride, h * self.stride) for w, h in self.anchors)
        return boxes_of(next(iter(outputs.values())), anchors, self.stride, softmax)


def grid(anchors: int, stride: int, classes: int, size: PictureSize) -> Shape:
    """The shape of a grid over an input of `size` (height, width)."""
    return (1, anchors * (5 + classes), size[0] // stride, size[1] // stride)


def boxes_of(
    values: Values, anchors: Anchors, stride: int, share: Callable[[Values], Values]
) -> Candidates:
    """Every anchor of every cell of a grid (1, anchors * (5 + classes), H, W) with its likeliest
    class; `anchors` are in pixels, `share` makes probabilities of the logits of classes.

    With raw values tx, ty, tw, th, to and the class logits t at channel a * (5 + classes) + k:
    x = (sigmoid(tx) + column) * stride, w = anchor_w * exp(tw), score = sigmoid(to) * share(t)
    """
    _, _, rows, columns = values.shape
    raw = values.reshape(len(anchors), -1, rows, columns).transpose(2, 3, 0, 1)
    centre = (sigmoid(raw[..., 0:2]) + cells(rows, columns)[:, :, None, :]) * stride
    size = grown(raw[..., 2:4]) * np.asarray(anchors, dtype=np.float32)
    return likeliest(centre, size, sigmoid(raw[..., 4:5]) * share(raw[..., 5:]))


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloV3(Detector):
    """Grids (1, anchors * (5 + classes), H, W), one per stride and in the order of the outputs,
    before any sigmoid. `anchors[i]` are (width, height) in pixels of the model's input.
    """

    type: Literal["yolov3"]
    anchors: Annotated[tuple[Anchors, ...], Field(min_length=1, max_length=MOST_ITEMS)]
    strides: tuple[Side, ...]
    min_score: Share
    nms_iou: Share

    @field_validator("strides")
    @classmethod
    def _one_for_each_grid(cls, given: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        count = len(info.data.get("anchors", given))
        if len(given) != count:
            raise wrong(f"Write a list of {count} whole numbers from 1 to {LARGEST_SIDE}")
        return given

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The grids."""
        scales = zip(self.anchors, self.strides, strict=True)
        grids = [grid(len(anchors), stride, classes, size) for anchors, stride in scales]
        known = [*shapes, *(f"grid {n}" for n in range(len(shapes), len(grids)))]
        return dict(zip(known, grids, strict=False))

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """Every anchor of every cell of every grid with its likeliest class: classes do not exclude
        each other [YOLOv3, section 2].
        """
        grids = zip(outputs.values(), self.anchors, self.strides, strict=True)
        parts = [boxes_of(values, anchors, stride, sigmoid) for values, anchors, stride in grids]
        return Candidates(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.scores for part in parts]),
        )
