from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.vision.anchored_grids import YoloV2
from models.vision.detection import (
    MOST_CANDIDATES,
    Candidates,
    DetectedBox,
    best,
    iou,
    sigmoid,
    suppressed,
)
from models.vision.head import View, softmax
from models.vision.image_input import Placement
from protos.errors import NotFiniteAnswer
from tests.examples import examples

HEAD = YoloV2("yolov2", ((1.5, 2.0), (3.0, 4.5)), stride=16, min_score=0.3, nms_iou=0.45)
LABELS = ("a", "b", "c")
WHOLE = Placement(width=80, height=64, scale_x=1.0, scale_y=1.0, left=0, top=0)


def random_grid(seed: int, spread: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, (1, 2 * (5 + len(LABELS)), 4, 5)).astype(np.float32)


def decode_grid(grid: np.ndarray, head: YoloV2) -> Candidates:
    return head.candidates({"grid": grid}, len(LABELS), (64, 80))


def read(grid: np.ndarray, placement: Placement) -> list[DetectedBox]:
    return HEAD.read({"grid": grid}, View(LABELS, (64, 80), placement))


def scalar_decode(grid: np.ndarray, head: YoloV2) -> list[tuple[list[float], int, float]]:
    """The formula written out, one value at a time, in double precision."""
    found = []
    per_anchor = grid.shape[1] // len(head.anchors)
    for row in range(grid.shape[2]):
        for column in range(grid.shape[3]):
            for index, (anchor_w, anchor_h) in enumerate(head.anchors):
                values = [
                    float(grid[0, index * per_anchor + k, row, column]) for k in range(per_anchor)
                ]
                x = (1 / (1 + math.exp(-values[0])) + column) * head.stride
                y = (1 / (1 + math.exp(-values[1])) + row) * head.stride
                w = anchor_w * math.exp(values[2]) * head.stride
                h = anchor_h * math.exp(values[3]) * head.stride
                powers = [math.exp(value) for value in values[5:]]
                chances = [power / sum(powers) for power in powers]
                best_class = max(range(len(chances)), key=chances.__getitem__)
                score = chances[best_class] / (1 + math.exp(-values[4]))
                found.append(([x - w / 2, y - h / 2, x + w / 2, y + h / 2], best_class, score))
    return found


def scalar_iou(one: list[float], other: list[float]) -> float:
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    both = width * height
    areas = sum(max(0.0, b[2] - b[0]) * max(0.0, b[3] - b[1]) for b in (one, other))
    return both / (areas - both) if areas > both else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_decoding_equals_the_formula_one_value_at_a_time(seed: int) -> None:
    grid = random_grid(seed)
    made, expected = decode_grid(grid, HEAD), scalar_decode(grid, HEAD)
    assert len(made.scores) == len(expected) == 4 * 5 * 2
    assert made.boxes == pytest.approx(
        np.array([box for box, _, _ in expected]), rel=1e-4, abs=1e-2
    )
    assert made.classes.tolist() == [index for _, index, _ in expected]
    assert made.scores == pytest.approx([score for _, _, score in expected], rel=1e-5)


def test_the_comparison_notices_swapped_rows_and_columns() -> None:
    grid = random_grid(0)
    swapped = decode_grid(np.ascontiguousarray(grid.transpose(0, 1, 3, 2)), HEAD)
    expected = np.array([box for box, _, _ in scalar_decode(grid, HEAD)])
    assert not np.allclose(swapped.boxes, expected, rtol=1e-4, atol=1e-2)


def test_huge_values_stay_quiet_and_undefined_ones_are_refused() -> None:
    grid = random_grid(0)
    grid[0, :, 0, 0] = 1e30
    grid[0, :, 1, 1] = -1e30
    found = read(grid, WHOLE)
    assert found
    assert all(math.isfinite(value) for item in found for value in (item.score, *item.box))
    grid[0, 4, 2, 2] = np.nan
    with pytest.raises(NotFiniteAnswer):
        read(grid, WHOLE)


def test_an_extreme_logit_saturates() -> None:
    values = np.array([-1e4, -90.0, 0.0, 90.0, 1e4], dtype=np.float32)
    assert sigmoid(values).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert softmax(values).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


corner = st.integers(0, 60)
boxes_of = st.tuples(corner, corner, st.integers(0, 30), st.integers(0, 30)).map(
    lambda box: [float(v) for v in (box[0], box[1], box[0] + box[2], box[1] + box[3])]
)
some_candidates = st.lists(
    st.tuples(boxes_of, st.integers(0, 2), st.integers(0, 20)), max_size=25
).map(
    lambda items: Candidates(
        np.array([box for box, _, _ in items], dtype=np.float32).reshape(-1, 4),
        np.array([index for _, index, _ in items], dtype=np.int64),
        np.array([score / 20 for _, _, score in items], dtype=np.float32),
    )
)


@given(some_candidates)
def test_overlaps_equal_the_scalar_ones(found: Candidates) -> None:
    made = iou(found.boxes, found.boxes)
    for i, one in enumerate(found.boxes.tolist()):
        for j, other in enumerate(found.boxes.tolist()):
            assert made[i, j] == pytest.approx(scalar_iou(one, other), abs=1e-6)


@settings(max_examples=examples(300))
@given(some_candidates, st.sampled_from([0.05, 0.3, 0.45, 0.7]))
def test_suppression_equals_brute_force(found: Candidates, max_iou: float) -> None:
    order = best(found, 0.2)
    kept: list[int] = []
    for i in range(len(order.scores)):
        rivals = [
            j
            for j in kept
            if order.classes[j] == order.classes[i]
            and scalar_iou(order.boxes[j].tolist(), order.boxes[i].tolist()) > max_iou + 1e-9
        ]
        if not rivals:
            kept.append(i)
    made = suppressed(order, iou(order.boxes, order.boxes), max_iou)
    assert np.array_equal(made.boxes, order.boxes[kept])
    assert np.array_equal(made.classes, order.classes[kept])
    assert np.array_equal(made.scores, order.scores[kept])
    assert (made.scores >= np.float32(0.2)).all()
    assert (np.diff(made.scores) <= 0).all()


def test_box_of_another_class_at_the_same_place_survives() -> None:
    box = [10.0, 10.0, 30.0, 30.0]
    three = Candidates(
        np.array([box, box, box], dtype=np.float32),
        np.array([0, 1, 0]),
        np.array([0.9, 0.8, 0.7], dtype=np.float32),
    )
    found = suppressed(three, iou(three.boxes, three.boxes), 0.45)
    assert found.classes.tolist() == [0, 1]


def test_the_number_of_candidates_is_capped() -> None:
    many = Candidates(
        np.zeros((5000, 4), dtype=np.float32),
        np.zeros(5000, dtype=np.int64),
        np.linspace(0.5, 1.0, 5000, dtype=np.float32),
    )
    kept = best(many, 0.1)
    assert len(kept.scores) == MOST_CANDIDATES
    assert kept.scores[0] == 1.0


def test_planted_object_is_found_in_the_sent_pictures_pixels() -> None:
    grid = np.full((1, 16, 4, 5), -12.0, dtype=np.float32)
    second = 8  # channels of the second anchor
    grid[0, second : second + 5, 2, 3] = [0.0, 0.0, 0.0, math.log(4 / 4.5), 12.0]
    grid[0, second + 5 + 1, 2, 3] = 12.0
    # Model pixels: centre (56, 40), 48 wide, 64 high; the picture is twice as large, minus bars.
    bars = Placement(width=140, height=128, scale_x=0.5, scale_y=0.5, left=5, top=0)
    (found,) = read(grid, bars)
    assert (found.label, found.index) == ("b", 1)
    assert found.score == pytest.approx(1.0, abs=1e-4)
    assert found.box == pytest.approx((54, 16, 140, 128), abs=1e-3)


def test_a_box_in_the_bars_is_dropped() -> None:
    grid = np.full((1, 16, 4, 5), -12.0, dtype=np.float32)
    grid[0, :5, 0, 0] = [0.0, 0.0, -2.0, -2.0, 12.0]
    assert len(read(grid, WHOLE)) == 1
    assert read(grid, replace(WHOLE, left=40)) == []


def test_the_json_is_rounded_to_what_means_something() -> None:
    found = DetectedBox("b", 1, 0.87654321, (1.23456, 2.0, 3.0, 4.999))
    assert found.as_json() == {
        "label": "b",
        "index": 1,
        "score": 0.876543,
        "box": [1.23, 2.0, 3.0, 5.0],
    }
