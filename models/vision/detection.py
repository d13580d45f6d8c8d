"""What detectors share: candidates, non-maximum suppression, the sent image's pixels."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from models.tensors.arrays import require_finite, require_no_nan
from models.vision.classes import Overlay
from models.vision.head import OutputReader, OutputValues, PictureSize, Values, View, VisionTask
from models.vision.image_input import PixelBoxes

# Suppression compares candidates pairwise; a picture of 1000 boxes is noise.
MOST_CANDIDATES = 1000
# exp of a raw size stays finite in float32; boxes are clipped to the image afterwards.
LARGEST_RAW = 20.0


@dataclass(frozen=True, slots=True)
class DetectedBox:
    """A detected object: `box` is x_min, y_min, x_max, y_max in pixels of the sent image. Some
    heads find more: its `mask`, `keypoints` of x, y and likelihood, `corners` of a rotated box.
    """

    label: str
    index: int
    score: float
    box: tuple[float, float, float, float]
    mask: Overlay | None = None
    keypoints: tuple[tuple[float, float, float], ...] | None = None
    corners: tuple[tuple[float, float], ...] | None = None

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it."""
        told: dict[str, object] = {
            "label": self.label,
            "index": self.index,
            "score": round(self.score, 6),
            "box": [round(edge, 2) for edge in self.box],
        }
        if self.mask is not None:
            told["mask"] = self.mask.as_json()
        if self.keypoints is not None:
            told["keypoints"] = [
                [round(x, 2), round(y, 2), round(s, 4)] for x, y, s in self.keypoints
            ]
        if self.corners is not None:
            told["corners"] = [[round(x, 2), round(y, 2)] for x, y in self.corners]
        return told


@dataclass(frozen=True, slots=True)
class Candidates:
    """N boxes in the model's pixels (N, 4), the class of each (N,), its score (N,), and what else a
    head reads of them (N, K).
    """

    boxes: PixelBoxes
    classes: NDArray[np.int64]
    scores: Values
    more: Values = field(default_factory=np.zeros((0, 0), np.float32).copy)

    def take(self, chosen: NDArray[np.int64]) -> "Candidates":
        """The candidates at the indices `chosen`, in that order."""
        more = self.more[chosen] if self.more.size else self.more
        return Candidates(self.boxes[chosen], self.classes[chosen], self.scores[chosen], more)


class Detector(OutputReader):
    """A head that finds boxes. If it `overlaps`, boxes that overlap a better one of their class by
    more than `nms_iou` are dropped.
    """

    __slots__ = ()
    task: ClassVar[VisionTask] = "detection"
    overlaps: ClassVar[bool] = True
    min_score: float
    nms_iou: float

    def candidates(self, outputs: OutputValues, classes: int, size: PictureSize) -> Candidates:
        """Every box with its likeliest class, of a model input of `size` (height, width)."""
        raise NotImplementedError

    def overlap(self, found: Candidates) -> Values:
        """How much every pair (N, N) of candidates overlaps, from 0 to 1."""
        return iou(found.boxes, found.boxes)

    def read(self, outputs: OutputValues, view: View) -> list[DetectedBox]:
        """The candidates that pass the thresholds, best first."""
        found = best(self.candidates(outputs, len(view.labels), view.size), self.min_score)
        if self.overlaps:
            found = suppressed(found, self.overlap(found), self.nms_iou)
        return self.described(found, outputs, view)

    def described(self, found: Candidates, outputs: OutputValues, view: View) -> list[DetectedBox]:
        """The detections of these candidates."""
        return [detection for _, detection in self.kept(found, view)]

    def kept(
        self, found: Candidates, view: View, boxes: PixelBoxes | None = None
    ) -> Iterator[tuple[int, DetectedBox]]:
        """The candidates that have an area in the sent picture, with their positions; `boxes` are
        theirs in its pixels, if these are known.
        """
        boxes = view.placement.to_image(found.boxes) if boxes is None else boxes
        for k, (box, index, score) in enumerate(
            zip(boxes, found.classes, found.scores, strict=True)
        ):
            if box[0] < box[2] and box[1] < box[3]:
                x_min, y_min, x_max, y_max = map(float, box)
                place = (x_min, y_min, x_max, y_max)
                yield k, DetectedBox(view.labels[index], int(index), float(score), place)


def best(candidates: Candidates, min_score: float) -> Candidates:
    """Those of at least `min_score`, best first, at most `MOST_CANDIDATES`.

    Raises:
        NotFiniteAnswer: a score is NaN, or one of these has no finite score, place or more.
    """
    scores = candidates.scores
    require_no_nan(scores, "the scores of its boxes")
    enough = np.flatnonzero(scores >= min_score)
    order = np.argsort(-scores[enough], kind="stable")[:MOST_CANDIDATES]
    found = candidates.take(enough[order])
    require_finite(found.scores, "the scores of its boxes")
    require_finite(found.boxes, "its boxes")
    require_finite(found.more, "its boxes")
    return found


def suppressed(
    candidates: Candidates, overlap: Values, most: float, *, across_classes: bool = False
) -> Candidates:
    """Of candidates sorted by score, those not overlapping a better one of the same class, or of
    any class.

    A candidate goes when its `overlap` (N, N) with one that stays is greater than `most`.
    """
    rivals = overlap > most
    if not across_classes:
        rivals &= candidates.classes[:, None] == candidates.classes[None, :]
    alive = np.ones(len(candidates.scores), dtype=bool)
    for index in range(len(alive)):
        if alive[index]:
            alive[index + 1 :] &= ~rivals[index, index + 1 :]
    return candidates.take(np.flatnonzero(alive))


def iou(one: PixelBoxes, other: PixelBoxes) -> Values:
    """Intersection over union of every pair (N, M); 0 where both boxes are empty."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(axis=-1)
    areas, others = (
        np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1) for boxes in (one, other)
    )
    union = areas[:, None] + others[None, :] - both
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


def numbered(
    boxes: PixelBoxes, classes: Values, scores: Values, more: Values | None = None
) -> Candidates:
    """Boxes (N, 4) whose classes are numbers; one whose class is not finite has no place either."""
    known = np.isfinite(classes)
    places = np.where(known[:, None], boxes, np.nan).astype(np.float32)
    index = np.rint(np.where(known, classes, 0)).astype(np.int64)
    return Candidates(places, index, scores.astype(np.float32), *(() if more is None else (more,)))


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
