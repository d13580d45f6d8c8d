"""What a detector found: candidates, non-maximum suppression, the sent image's pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.heads import Detector, EndToEnd
from models.preprocess import Boxes, Placement

Values = NDArray[np.float32]

# Suppression compares candidates pairwise; a picture of 1000 boxes is noise.
MOST_CANDIDATES = 1000
# exp of a raw size stays finite in float32; boxes are clipped to the image afterwards.
LARGEST_RAW = 20.0


@dataclass(frozen=True, slots=True)
class Detection:
    """Something found: `box` is x_min, y_min, x_max, y_max in pixels of the sent image."""

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


def detections(
    candidates: Candidates, head: Detector, labels: Sequence[str], placement: Placement
) -> list[Detection]:
    """What the head's thresholds leave of the candidates, best first."""
    found = best(candidates, head.min_score)
    if not isinstance(head, EndToEnd):
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


def sigmoid(values: Values) -> Values:
    """1 / (1 + exp(-x)) without overflow: tanh saturates where exp would not."""
    gate: Values = np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1.0))
    return gate


def softmax(values: Values) -> Values:
    """exp(x) / sum exp(x) along the last axis, shifted so that the largest exponent is 0."""
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float32)


def _areas(boxes: Boxes) -> Values:
    areas: Values = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=-1)
    return areas


def _corners(box: Values) -> tuple[float, float, float, float]:
    x_min, y_min, x_max, y_max = (float(edge) for edge in box)
    return x_min, y_min, x_max, y_max
