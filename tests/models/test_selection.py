"""A reader finds the same among the selected entries as among all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tensors.boxes import Box, Span
from models.tensors.selection import Selection, dense
from models.vision.box_lists import EndToEnd, RtDetr, YoloBoxes, YoloX
from models.vision.heads import Head
from models.vision.image_input import Placement
from models.vision.predictions import predictions
from models.vision.ssd import Ssd
from models.vision.yolo_parts import YoloPose, YoloRotated
from protos.errors import NotFiniteAnswer
from tests.models.test_heads import LABELS, sidecar

LEAST = 0.25
VIEW = Placement(width=64, height=64, scale_x=1.0, scale_y=1.0, left=0, top=0)
SSD = Ssd("ssd", "places", "y", False, "xyxy", (), (0.1, 0.2), LEAST, 0.45)
# Of an SSD, whose scores are an output of their own.
PLACES = np.random.default_rng(1).random((1, 40, 4), np.float32)
HEADS: dict[str, tuple[Head, tuple[int, ...]]] = {
    "yolov5": (YoloBoxes("yolov5", LEAST, 0.45), (1, 40, 8)),
    "yolov8": (YoloBoxes("yolov8", LEAST, 0.45), (1, 7, 40)),
    "rtdetr": (RtDetr("rtdetr", LEAST), (1, 40, 7)),
    "pose": (YoloPose("yolov8-pose", "y", 2, True, LEAST, 0.45), (1, 13, 40)),
    "rotated": (YoloRotated("yolov8-obb", "y", LEAST, 0.45), (1, 8, 40)),
    "end2end": (EndToEnd("end2end", LEAST), (1, 40, 6)),
    "ssd": (SSD, (1, 40, 4)),
    "yolox": (YoloX("yolox", (16, 32), LEAST, 0.45), (1, 20, 8)),
}


def output(seed: int, kind: str) -> np.ndarray:
    """Random values, with scores at the threshold, ties, and now and then one of NaN."""
    rng, shape = np.random.default_rng(seed), HEADS[kind][1]
    values = rng.choice([0, LEAST, np.nextafter(np.float32(LEAST), 0), 0.5, 1, 30], shape)
    values = np.where(rng.random(shape) < 0.5, rng.random(shape) * 2, values)
    values[rng.random(shape) < rng.choice([0, 0.001])] = np.nan
    return values.astype(np.float32)


def read(kind: str, values: np.ndarray) -> list[Any] | str:
    described = sidecar("detection", HEADS[kind][0])
    described = replace(described, input=replace(described.input, size=(64, 64)))
    outputs = {"places": PLACES, "y": values} if kind == "ssd" else {"y": values}
    try:
        return [each.as_json() for each in predictions(described, outputs, VIEW)]
    except NotFiniteAnswer as error:
        return str(error)


def narrowed(selection: Selection, values: np.ndarray) -> np.ndarray:
    chosen = selection.chosen(values)
    entries = chosen.tolist()
    return dense(values.take(chosen, selection.axis), entries, selection.axis, values.shape)


def selection_of(kind: str) -> Selection:
    head, shape = HEADS[kind]
    (selection,) = head.selections({"y": shape}, len(LABELS)).values()
    return selection


@pytest.mark.parametrize("kind", HEADS)
@given(seed=st.integers(0, 2**32))
def test_predictions_are_the_same(kind: str, seed: int) -> None:
    values, selection = output(seed, kind), selection_of(kind)
    assert selection.fits(Box.whole(values.shape))
    assert read(kind, narrowed(selection, values)) == read(kind, values)


@pytest.mark.parametrize("kind", HEADS)
def test_a_selection_by_other_scores_would_be_seen(kind: str) -> None:
    right = selection_of(kind)
    wrong = replace(right, scores=Span(right.scores.start, right.scores.stop - 1))
    if not len(wrong.scores):
        wrong = replace(right, scores=Span(0, 1))
    seen = [
        read(kind, narrowed(wrong, values)) != read(kind, values)
        for values in (output(seed, kind) for seed in range(20))
    ]
    assert any(seen)


def test_logits_are_never_selected_from() -> None:
    """A zero among them is a score."""
    assert not replace(SSD, logits=True).selections({"y": (1, 40, 4)}, len(LABELS))


@pytest.mark.parametrize(
    "box",
    [
        Box.of((0, 1), (0, 6), (0, 40)),  # one class is missing
        Box.of((0, 1), (1, 8), (0, 40)),
        Box.of((0, 2), (0, 7), (0, 40)),
        Box.of((0, 1), (0, 7)),
    ],
)
def test_selection_does_not_fit_a_box_without_all_scores(box: Box) -> None:
    assert not selection_of("yolov8").fits(box)


@pytest.mark.parametrize(
    ("entries", "axis"), [([1, 1], 2), ([2, 1], 2), ([0, 40], 2), ([0, 1], 3), ([-1, 3], 2)]
)
def test_entries_that_cannot_be_are_refused(entries: list[int], axis: int) -> None:
    with pytest.raises(ValueError, match="entries"):
        dense(np.ones((1, 7, 2), np.float32), entries, axis, (1, 7, 40))
