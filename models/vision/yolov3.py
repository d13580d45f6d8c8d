"""YOLOv3: several grids of anchored boxes."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from models.graph.sizes import LARGEST_SIDE
from models.vision.detection import Candidates, Detector, likeliest, sigmoid
from models.vision.head import OutputShapes, OutputValues, PictureSize
from models.vision.image_input import Side
from models.vision.yolov2 import Anchors, centre_and_size, grid, per_anchor
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Share, wrong


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
        """Every anchor of every cell of every grid: as YOLOv2, with anchors in pixels and
        score = sigmoid(to) * sigmoid(t): classes do not exclude each other [YOLOv3, section 2].
        """
        parts = []
        for values, anchors, stride in zip(
            outputs.values(), self.anchors, self.strides, strict=True
        ):
            raw = per_anchor(values, len(anchors))
            scores = sigmoid(raw[..., 4:5]) * sigmoid(raw[..., 5:])
            parts.append(likeliest(*centre_and_size(raw, anchors, stride), scores))
        return Candidates(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.scores for part in parts]),
        )
