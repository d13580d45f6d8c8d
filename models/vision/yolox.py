"""YOLOX: a box in each cell of several grids."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections
from models.vision.detection import Candidates, Detector, cells, grown, likeliest
from models.vision.head import OutputShapes, OutputValues, PictureSize, first
from models.vision.image_input import Side
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Share


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class YoloX(Detector):
    """An output (1, cells, 5 + classes): the cells of one grid after the other, row by row, with
    likelihoods after their sigmoid. `strides` are of the grids, in pixels of the model's input.
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
        return {first(shapes): (1, self.cells(size), 5 + classes)}

    def selections(self, shapes: OutputShapes, classes: int) -> Selections:
        """The likely boxes."""
        return {first(shapes): Selection(1, 2, Span(5, 5 + classes), self.min_score, factor=4)}

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
        raw, stride_of = outputs[first(outputs)][0], np.concatenate(strides)
        centre = (raw[:, 0:2] + np.concatenate(corners)) * stride_of
        return likeliest(centre, grown(raw[:, 2:4]) * stride_of, raw[:, 4:5] * raw[:, 5:])
