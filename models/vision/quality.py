"""The quality of a detector: average precision of its detections against the ground truth."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.vision import Corners
from models.vision.detection import DetectedBox, iou

# Of the detections that quality is measured with: low, so that the whole precision-recall curve is
# seen.
MIN_SCORE = 0.01


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """A ground-truth object: x_min, y_min, x_max, y_max in the picture's pixels."""

    label: str
    box: Corners


@dataclass(frozen=True, slots=True)
class EvaluatedPicture:
    """One picture's detections, in any order, and its truth."""

    found: Sequence[DetectedBox]
    truth: Sequence[GroundTruth]

    def only(self, label: str) -> "EvaluatedPicture":
        """The picture restricted to one label."""
        return EvaluatedPicture(
            [item for item in self.found if item.label == label],
            [item for item in self.truth if item.label == label],
        )


def mean_average_precision(
    pictures: Sequence[EvaluatedPicture], min_iou: float = 0.5
) -> tuple[float, Mapping[str, float]]:
    """mAP and the average precision of every label that occurs in the truth.

    Raises:
        ValueError: no picture holds any truth.
    """
    labels = sorted({item.label for picture in pictures for item in picture.truth})
    if not labels:
        raise ValueError("without truth there is no precision")
    by_label = {
        label: average_precision([picture.only(label) for picture in pictures], min_iou)
        for label in labels
    }
    return sum(by_label.values()) / len(by_label), by_label


def average_precision(pictures: Sequence[EvaluatedPicture], min_iou: float = 0.5) -> float:
    """Area under the precision-recall curve of one label, interpolated at all points.

    AP = sum over recall steps of (step * best precision at this recall or a higher one)
                                                                  [Pascal VOC 2010 and later]
    Detections are taken best first; each truth is found once, by the first that overlaps it by
    at least `min_iou`, and a detection claims the truth it overlaps most among those left.
    """
    wanted = sum(len(picture.truth) for picture in pictures)
    if wanted == 0:
        raise ValueError("without truth there is no precision")
    hits = _hits(pictures, min_iou)
    if hits.size == 0:
        return 0.0
    right = np.cumsum(hits)
    precision = right / np.arange(1, len(hits) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    return float((best_from_here * hits).sum() / wanted)


def matched(picture: EvaluatedPicture, min_iou: float = 0.5) -> list[tuple[DetectedBox, bool]]:
    """The detections best first, each with whether it found a truth of its own label."""
    left = list(picture.truth)
    outcome = []
    for item in sorted(picture.found, key=lambda detection: -detection.score):
        target = _target(item, left, min_iou)
        if target is not None:
            left.remove(target)
        outcome.append((item, target is not None))
    return outcome


def boxes_agree(
    pairs: Sequence[tuple[Sequence[DetectedBox], Sequence[DetectedBox]]], min_iou: float = 0.5
) -> float:
    """The share of boxes that two detectors both have, given what each found in every picture; 1 if
    there are none.
    """
    every = sum(len(one) + len(other) for one, other in pairs)
    both = sum(
        hit
        for one, other in pairs
        for _, hit in matched(
            EvaluatedPicture(
                one, [GroundTruth(detection.label, detection.box) for detection in other]
            ),
            min_iou,
        )
    )
    return 2 * both / every if every else 1.0


def exactly_right(pictures: Iterable[EvaluatedPicture], min_iou: float = 0.5) -> int:
    """The number of pictures in which every object, and nothing else, is found."""
    return sum(
        len(picture.found) == len(picture.truth)
        and all(hit for _, hit in matched(picture, min_iou))
        for picture in pictures
    )


def _hits(pictures: Sequence[EvaluatedPicture], min_iou: float) -> NDArray[np.bool_]:
    """Whether each detection of all pictures, best first, found a truth."""
    outcome = [pair for picture in pictures for pair in matched(picture, min_iou)]
    outcome.sort(key=lambda pair: -pair[0].score)
    return np.array([hit for _, hit in outcome], dtype=bool)


def _target(item: DetectedBox, left: Sequence[GroundTruth], min_iou: float) -> GroundTruth | None:
    same = [truth for truth in left if truth.label == item.label]
    if not same:
        return None
    boxes = np.array([truth.box for truth in same], dtype=np.float32)
    overlaps = iou(np.array([item.box], dtype=np.float32), boxes)[0]
    most = int(overlaps.argmax())
    return same[most] if overlaps[most] >= min_iou else None
