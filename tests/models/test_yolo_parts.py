"""Masks, keypoints and rotated boxes: numbers worked out by hand, or one at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from models.vision.detection import DetectedBox
from models.vision.drawing import annotated, colour_of
from models.vision.head import View
from models.vision.image_input import Placement
from models.vision.yolo_parts import (
    YoloPose,
    YoloRotated,
    YoloSegments,
    corners_of,
    likeness,
)
from tests.models.test_heads import LABELS

SIZE = (64, 96)
# The picture is twice as large as the part of the input that it covers, beside bars of 8 pixels.
PLACED = Placement(width=160, height=128, scale_x=0.5, scale_y=0.5, left=8, top=0)
VIEW = View(LABELS, SIZE, PLACED)
BOX = [40.0, 30.0, 16.0, 20.0]


def columns(*rows: list[float]) -> np.ndarray:
    """(1, values, 3 entries): the first of these, and two that nobody reads."""
    array = np.zeros((1, len(rows[0]), 3), np.float32)
    for k, row in enumerate(rows):
        array[0, :, k] = row
    return array


def test_a_mask_is_where_its_sum_of_prototypes_is_positive_within_the_box() -> None:
    head = YoloSegments("yolov8-seg", "boxes", "shapes", 2, 0.25, 0.45)
    shapes = np.full((1, 2, 16, 24), -1.0, np.float32)  # a cell is 4 x 4 pixels of the input
    shapes[0, 0, 5:10, :] = 3.0
    shapes[0, 1] = 0.5
    outputs = {"boxes": columns([*BOX, 0.1, 0.9, 0.2, 1.0, 2.0]), "shapes": shapes}
    (found,) = head.read(outputs, VIEW)
    assert (found.label, found.box) == ("bee", (48.0, 40.0, 80.0, 80.0))
    assert found.mask is not None
    assert found.mask.covers == (0.0, 0.0, 160.0, 128.0)
    rows, cols = np.nonzero(found.mask.mask)
    # 16 x 20 cells cover 128 x 160 pixels: x from 48 to 80 is cells 6 to 9, y from 40 to 80 5 to 9.
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (5, 9, 6, 9)
    assert found.mask.mask.shape == (16, 20)
    told = found.as_json()["mask"]
    assert isinstance(told, dict)
    assert sum(told["counts"]) == 16 * 20
    flat = replace(head, prototypes="none")
    assert flat.wanted({}, 3, SIZE)["none"] == (1, 2, -1, -1)


@pytest.mark.parametrize("visible", [True, False])
def test_keypoints_are_in_pixels_of_the_sent_picture(visible: bool) -> None:
    head = YoloPose("yolov8-pose", "boxes", 2, visible, 0.25, 0.45)
    points = [38.0, 28.0, 0.75, 44.0, 90.0, 0.25] if visible else [38.0, 28.0, 44.0, 90.0]
    (found,) = head.read({"boxes": columns([*BOX, 0.9, 0.0, 0.0, *points])}, VIEW)
    sure = (0.75, 0.25) if visible else (1.0, 1.0)
    assert found.keypoints == ((60.0, 56.0, sure[0]), (72.0, 180.0, sure[1]))
    assert found.as_json()["keypoints"] == [[60.0, 56.0, sure[0]], [72.0, 180.0, sure[1]]]


def test_a_rotated_box_has_corners_and_bounds() -> None:
    head = YoloRotated("yolov8-obb", "boxes", 0.25, 0.45)
    (found,) = head.read({"boxes": columns([*BOX, 0.0, 0.0, 0.8, math.pi / 2])}, VIEW)
    # A quarter turn exchanges width and height.
    assert found.box == pytest.approx((44.0, 44.0, 84.0, 76.0), abs=1e-3)
    assert found.corners is not None
    expected = [(44.0, 44.0), (44.0, 76.0), (84.0, 44.0), (84.0, 76.0)]
    np.testing.assert_allclose(sorted(found.corners), expected, atol=1e-3)


def test_finished_boxes_have_the_same_parts() -> None:
    corners = [32.0, 20.0, 48.0, 40.0]
    outside = [*corners, 0.95, 7.0]  # of a class that there is not

    def rows(*given: list[float]) -> np.ndarray:
        return np.array([given], np.float32)

    points = [38.0, 28.0, 44.0, 90.0]
    twice = rows([*corners, 0.9, 1.0, *points], [*corners, 0.8, 1.0, *points], outside + points)
    found = YoloPose("end2end-pose", "boxes", 2, False, 0.25, 1.0).read({"boxes": twice}, VIEW)
    assert [each.score for each in found] == pytest.approx([0.9, 0.8])
    assert found[0].box == (48.0, 40.0, 80.0, 80.0)
    assert found[0].keypoints == ((60.0, 56.0, 1.0), (72.0, 180.0, 1.0))

    (turned,) = YoloRotated("end2end-obb", "boxes", 0.25, 1.0).read(
        {"boxes": rows([*BOX, 0.9, 0.0, math.pi / 2], [*outside, 0.0])}, VIEW
    )
    assert turned.box == pytest.approx((44.0, 44.0, 84.0, 76.0), abs=1e-3)

    shapes = np.full((1, 1, 16, 24), 1.0, np.float32)
    masked = rows([*corners, 0.9, 2.0, 1.0], [*corners, 0.8, 2.0, -1.0], [*outside, 1.0])
    head = YoloSegments("end2end-seg", "boxes", "shapes", 1, 0.25, 1.0)
    full, empty = head.read({"boxes": masked, "shapes": shapes}, VIEW)
    assert full.mask is not None
    assert empty.mask is not None
    assert full.mask.mask.any()
    assert not empty.mask.mask.any()
    assert head.wanted({}, 3, SIZE) == {"boxes": (1, -1, 7), "shapes": (1, 1, -1, -1)}


def test_corners_lie_half_a_side_from_the_centre() -> None:
    (corners,) = corners_of(np.array([[10, 20, 6, 8, 0.3]], np.float32))
    assert corners.mean(axis=0) == pytest.approx((10, 20), abs=1e-5)
    assert np.linalg.norm(corners - [10, 20], axis=1) == pytest.approx([5] * 4, abs=1e-5)
    assert np.linalg.norm(corners[0] - corners[1]) == pytest.approx(8, abs=1e-5)


def scalar_likeness(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """By 2 x 2 matrices: 1 - sqrt(1 - Bhattacharyya's coefficient) of both distributions."""

    def spread(box: tuple[float, ...]) -> np.ndarray:
        turn = np.array(
            [[math.cos(box[4]), -math.sin(box[4])], [math.sin(box[4]), math.cos(box[4])]]
        )
        return turn @ np.diag([box[2] ** 2 / 12, box[3] ** 2 / 12]) @ turn.T

    first, second = spread(one), spread(other)
    mean, apart = (first + second) / 2, np.array(one[:2]) - np.array(other[:2])
    distance = apart @ np.linalg.inv(mean) @ apart / 8
    root = math.sqrt(np.linalg.det(first) * np.linalg.det(second))
    distance += math.log(np.linalg.det(mean) / root) / 2
    return 1 - math.sqrt(1 - math.exp(-distance))


def test_likeness_equals_its_formula_one_pair_at_a_time() -> None:
    rng = np.random.default_rng(3)
    boxes = [tuple(rng.uniform((0, 0, 4, 4, -2), (30, 30, 20, 20, 2))) for _ in range(8)]
    alike = likeness(np.array(boxes, np.float32))
    for k, one in enumerate(boxes):
        for j, other in enumerate(boxes):
            assert alike[k, j] == pytest.approx(scalar_likeness(one, other), abs=2e-3)


def test_rotated_boxes_at_one_place_but_across_are_both_kept() -> None:
    head = YoloRotated("yolov8-obb", "boxes", 0.25, 0.45)
    one, across = [40.0, 30.0, 40.0, 4.0, 0.9, 0, 0, 0.0], [40.0, 30.0, 40.0, 4.0, 0.8, 0, 0, 1.57]
    again = [40.5, 30.0, 40.0, 4.0, 0.7, 0, 0, 0.0]
    found = head.read({"boxes": columns(one, across, again)}, VIEW)
    assert [each.score for each in found] == pytest.approx([0.9, 0.8])


def test_boxes_points_and_corners_are_drawn() -> None:
    picture = Image.new("RGB", (160, 128))
    head = YoloPose("yolov8-pose", "boxes", 1, True, 0.25, 0.45)
    (found,) = head.read({"boxes": columns([*BOX, 0.9, 0, 0, 38.0, 28.0, 0.9])}, VIEW)
    drawn = annotated(picture, [found])
    assert drawn.getpixel((60, 56)) == colour_of(0)
    square = DetectedBox("ant", 0, 0.9, (20, 20, 60, 60), corners=((20, 20), (60, 20), (60, 60)))
    edge = [annotated(picture, [square]).getpixel((x, 45)) for x in range(57, 64)]
    assert colour_of(0) in edge
