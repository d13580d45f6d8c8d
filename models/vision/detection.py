"""What detectors share: candidates, non-maximum suppression, the sent image's pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from models.vision.head import Outputs, Reader, Size, Task, Values, View
from models.vision.placement import Boxes, Placement

# Suppression compares candidates pairwise; a picture of 1000 boxes is noise.
MOST_CANDIDATES = 1000
# exp of a raw size stays finite in float32; boxes are clipped to the image afterwards.
LARGEST_RAW = 20.0


@dataclass(frozen=True, slots=True)
class Detection:
    """A detected object: `box` is x_min, y_min, x_max, y_max in pixels of the sent image."""

    label: str
    index: int
    score: float
    box: tuple[float, float, float, float]

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it."""
        return {
            "label": self.label,
            "index": self.index,
            "score": round(self.score, 6),
            "box": [round(edge, 2) for edge in self.box],
        }


@dataclass(frozen=True, slots=True)
class Candidates:
    """N boxes in the model's pixels (N, 4), the class of each (N,) and its score (N,)."""

    boxes: Boxes
    classes: NDArray[np.int64]
    scores: Values

    def take(self, chosen: NDArray[np.int64]) -> Candidates:
        """The candidates at the indices `chosen`, in that order."""
        return Candidates(self.boxes[chosen], self.classes[chosen], self.scores[chosen])


class Detector(Reader):
    """A head that finds boxes. If it `overlaps`, boxes that overlap a better one of their class by
    more than `nms_iou` are dropped.
    """

    __slots__ = ()
    task: ClassVar[Task] = "detection"
    overlaps: ClassVar[bool] = True
    min_score: float
    nms_iou: float

    def candidates(self, outputs: Outputs, classes: int, size: Size) -> Candidates:
        """Every box with its likeliest class, of a model input of `size` (height, width)."""
        raise NotImplementedError

    def read(self, outputs: Outputs, view: View) -> list[Detection]:
        """The candidates that pass the thresholds."""
        candidates = self.candidates(outputs, len(view.labels), view.size)
        return detections(candidates, self, view.labels, view.placement)


def detections(
    candidates: Candidates, head: Detector, labels: Sequence[str], placement: Placement
) -> list[Detection]:
    """The candidates that pass the head's thresholds, best first."""
    found = best(candidates, head.min_score)
    if head.overlaps:
        found = suppressed(found, head.nms_iou)
    boxes = placement.to_image(found.boxes)
    return [
        Detection(labels[index], int(index), float(score), _corners(box))
        for box, index, score in zip(boxes, found.classes, found.scores, strict=True)
        if box[0] < box[2] and box[1] < box[3]
    ]


def best(candidates: Candidates, min_score: float) -> Candidates:
    """Those of at least `min_score`, best first, at most `MOST_CANDIDATES`; NaN never qualifies."""
    scores = candidates.scores
    enough = np.flatnonzero(scores >= min_score)
    order = np.argsort(-scores[enough], kind="stable")[:MOST_CANDIDATES]
    return candidates.take(enough[order])


def suppressed(candidates: Candidates, max_iou: float) -> Candidates:
    """Of candidates sorted by score, those not overlapping a better one of the same class.

    A candidate goes when its IoU with one that stays is greater than `max_iou`.
    """
    rivals = iou(candidates.boxes, candidates.boxes) > max_iou
    rivals &= candidates.classes[:, None] == candidates.classes[None, :]
    alive = np.ones(len(candidates.scores), dtype=bool)
    for index in range(len(alive)):
        if alive[index]:
            alive[index + 1 :] &= ~rivals[index, index + 1 :]
    return candidates.take(np.flatnonzero(alive))


def iou(one: Boxes, other: Boxes) -> Values:
    """Intersection over union of every pair (N, M); 0 where both boxes are empty."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(axis=-1)
    union = _areas(one)[:, None] + _areas(other)[None, :] - both
    ratio: Values = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return ratio


def likeliest(centre: Values, size: Values, scores: Values) -> Candidates:
    """Boxes (..., 2), (..., 2) and the scores (..., classes) of each, with its best class."""
    corners = np.concatenate((centre - size / 2, centre + size / 2), axis=-1)
    return Candidates(
        corners.reshape(-1, 4).astype(np.float32),
        scores.argmax(axis=-1).ravel(),
        scores.max(axis=-1).ravel(),
    )


def grown(raw: Values) -> Values:
    """exp of raw sizes, finite in float32."""
    sizes: Values = np.exp(np.clip(raw, -LARGEST_RAW, LARGEST_RAW))
    return sizes


def cells(rows: int, columns: int) -> NDArray[np.int64]:
    """Column and row of every cell of a grid: (rows, columns, 2)."""
    return np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1)


def sigmoid(values: Values) -> Values:
    """1 / (1 + exp(-x)) without overflow: tanh saturates where exp would not."""
    gate: Values = np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1.0))
    return gate


def _areas(boxes: Boxes) -> Values:
    areas: Values = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=-1)
    return areas


def _corners(box: Values) -> tuple[float, float, float, float]:
    x_min, y_min, x_max, y_max = (float(edge) for edge in box)
    return x_min, y_min, x_max, y_max
