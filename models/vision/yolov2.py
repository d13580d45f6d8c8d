"""YOLOv2: one grid of anchored boxes, and the parts that YOLOv3 shares."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.arrays import Shape
from models.vision.detection import Candidates, Detector, cells, grown, likeliest, sigmoid
from models.vision.head import OutputShapes, OutputValues, PictureSize, Values, first, softmax
from models.vision.image_input import Side
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Positive, Share

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
        return {first(shapes): grid(len(self.anchors), self.stride, classes, size)}

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """Every anchor of every cell with its likeliest class.

        With raw values tx, ty, tw, th, to and the class logits t at channel a * (5 + classes) + k:
        x = (sigmoid(tx) + column) * stride, w = anchor_w * exp(tw) * stride,
        score = sigmoid(to) * softmax(t)                              [YOLO9000, section 2]
        """
        raw = per_anchor(outputs[first(outputs)], len(self.anchors))
        anchors = tuple((w * self.stride, h * self.stride) for w, h in self.anchors)
        scores = sigmoid(raw[..., 4:5]) * softmax(raw[..., 5:])
        return likeliest(*centre_and_size(raw, anchors, self.stride), scores)


def grid(anchors: int, stride: int, classes: int, size: PictureSize) -> Shape:
    """The shape of a grid over an input of `size` (height, width)."""
    return (1, anchors * (5 + classes), size[0] // stride, size[1] // stride)


def per_anchor(values: Values, anchors: int) -> Values:
    """(1, anchors * values, H, W) as (H, W, anchors, values)."""
    _, _, rows, columns = values.shape
    return values.reshape(anchors, -1, rows, columns).transpose(2, 3, 0, 1)


def centre_and_size(raw: Values, anchors: Anchors, stride: int) -> tuple[Values, Values]:
    """Of (H, W, anchors, values), in pixels; `anchors` too."""
    centre = (sigmoid(raw[..., 0:2]) + cells(*raw.shape[:2])[:, :, None, :]) * stride
    return centre, grown(raw[..., 2:4]) * np.asarray(anchors, dtype=np.float32)
