"""Every head on tensors whose answer was worked out by hand, or one value at a time."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from models.digits import SIDECAR
from models.vision.anchored_grids import YoloV3
from models.vision.box_lists import RtDetr, YoloBoxes, YoloX
from models.vision.classes import ClassMap, ClassSegment, mask_of, run_lengths
from models.vision.detection import Candidates
from models.vision.drawing import annotated, colour_of
from models.vision.head import VisionTask
from models.vision.heads import Head
from models.vision.image_input import Placement
from models.vision.predictions import OutputMismatch, VisionPrediction, check_outputs, predictions
from models.vision.preprocess import image_to_pixels
from models.vision.repainted import Repainted, Repainting
from models.vision.sidecar import Sidecar, load
from models.vision.ssd import Ssd

LABELS = ("ant", "bee", "cat")
WHOLE = Placement(width=128, height=96, scale_x=1.0, scale_y=1.0, left=0, top=0)


def sidecar(task: VisionTask, head: Head, labels: tuple[str, ...] = LABELS) -> Sidecar:
    base = load(SIDECAR)
    form = replace(base.input, size=(96, 128))
    return replace(base, name="net", task=task, labels=labels, input=form, head=head)


def found(
    task: VisionTask, head: Head, *outputs: np.ndarray, placement: Placement = WHOLE
) -> list[VisionPrediction]:
    named = {f"output{n}": each.astype(np.float32) for n, each in enumerate(outputs)}
    return predictions(sidecar(task, head), named, placement)


def told(each: VisionPrediction) -> dict[str, object]:
    return each.as_json()


YOLO3 = YoloV3("yolov3", (((20, 30),), ((40, 60), (80, 20))), (16, 32), 0.25, 0.45)


def grids_of(grids: list[np.ndarray]) -> Candidates:
    return YOLO3.candidates({str(n): each for n, each in enumerate(grids)}, 3, (96, 128))


def test_yolov3_equals_its_formula_one_value_at_a_time() -> None:
    rng = np.random.default_rng(3)
    grids = [
        rng.normal(0, 1.5, (1, len(anchors) * 8, 96 // stride, 128 // stride)).astype(np.float32)
        for anchors, stride in zip(YOLO3.anchors, YOLO3.strides, strict=True)
    ]
    expected = []
    for grid, anchors, stride in zip(grids, YOLO3.anchors, YOLO3.strides, strict=True):
        for row in range(grid.shape[2]):
            for column in range(grid.shape[3]):
                for index, (wide, high) in enumerate(anchors):
                    v = [float(one) for one in grid[0, index * 8 : index * 8 + 8, row, column]]
                    s = [1 / (1 + math.exp(-one)) for one in v]
                    x, y = (s[0] + column) * stride, (s[1] + row) * stride
                    w, h = wide * math.exp(v[2]), high * math.exp(v[3])
                    expected.append([x - w / 2, y - h / 2, x + w / 2, y + h / 2, s[4] * max(s[5:])])
    made = grids_of(grids)
    assert np.column_stack((made.boxes, made.scores)) == pytest.approx(
        np.array(expected), rel=1e-4, abs=1e-3
    )
    swapped = grids_of([grids[0], grids[1][:, ::-1]])
    assert swapped.boxes != pytest.approx(made.boxes, rel=1e-2, abs=1)


YOLOX = YoloX("yolox", (16, 32), 0.25, 0.45)
CELLS = 6 * 8 + 3 * 4


def test_yolox_equals_its_formula_one_cell_at_a_time() -> None:
    output = np.random.default_rng(4).normal(0, 1.0, (1, CELLS, 8)).astype(np.float32)
    expected = []
    cells = iter(output[0].astype(float))
    for stride in YOLOX.strides:
        for row in range(96 // stride):
            for column in range(128 // stride):
                v = next(cells)
                x, y = (v[0] + column) * stride, (v[1] + row) * stride
                w, h = math.exp(v[2]) * stride, math.exp(v[3]) * stride
                score = max(v[4] * each for each in v[5:])
                expected.append([x - w / 2, y - h / 2, x + w / 2, y + h / 2, score])
    made = YOLOX.candidates({"output": output}, 3, (96, 128))
    assert np.column_stack((made.boxes, made.scores)) == pytest.approx(
        np.array(expected), rel=1e-4, abs=1e-3
    )
    turned = YOLOX.candidates({"output": output}, 3, (128, 96))
    assert turned.boxes != pytest.approx(made.boxes, rel=1e-2, abs=1)


def test_a_yolox_cell_lies_where_its_grid_has_it() -> None:
    cells = np.zeros((1, CELLS, 8))
    cells[0, 6 * 8 + 5] = [0.5, 0.5, 0, math.log(2), 0.9, 0.1, 0.8, 0.3]  # row 1, column 1 of 32
    (one,) = found("detection", YOLOX, cells)
    assert told(one) == {"label": "bee", "index": 1, "score": 0.72, "box": [32, 16, 64, 80]}


def test_a_yolov5_row_is_centre_size_certainty_classes() -> None:
    rows = np.zeros((1, 4, 8))
    rows[0, 2] = [64, 48, 20, 10, 0.9, 0.1, 0.8, 0.3]
    rows[0, 3] = [30, 30, 20, 10, 0.1, 0.9, 0.9, 0.9]  # likely a class, unlikely an object
    (one,) = found("detection", YoloBoxes("yolov5", 0.25, 0.45), rows)
    assert told(one) == {"label": "bee", "index": 1, "score": 0.72, "box": [54, 43, 74, 53]}


def test_a_yolov8_column_is_centre_size_classes() -> None:
    columns = np.zeros((1, 7, 9))
    columns[0, :, 4] = [64, 48, 20, 10, 0.1, 0.2, 0.7]
    columns[0, :, 5] = [65, 48, 20, 10, 0.1, 0.2, 0.6]  # the same thing again
    columns[0, :, 6] = [20, 20, 8, 8, 0.5, 0.2, 0.1]
    first, second = found("detection", YoloBoxes("yolov8", 0.25, 0.45), columns)
    assert told(first) == {"label": "cat", "index": 2, "score": 0.7, "box": [54, 43, 74, 53]}
    assert told(second) == {"label": "ant", "index": 0, "score": 0.5, "box": [16, 16, 24, 24]}


SSD = Ssd("ssd", "output0", "output1", False, "xyxy", (), (0.1, 0.2), 0.25, 0.45)


def test_an_ssd_s_corners_are_shares_and_its_first_class_is_the_background() -> None:
    boxes = np.array([[[0.25, 0.5, 0.5, 1.0], [0, 0, 1, 1]]])
    scores = np.array([[[0.1, 0.0, 0.9, 0.0], [0.8, 0.2, 0.0, 0.0]]])
    (one,) = found("detection", SSD, boxes, scores)
    assert told(one) == {"label": "bee", "index": 1, "score": 0.9, "box": [32, 48, 64, 96]}
    (turned,) = found("detection", replace(SSD, corners="yxyx"), boxes, scores)
    assert told(turned)["box"] == [64, 24, 128, 48]


def test_an_ssd_s_offsets_are_from_its_priors() -> None:
    head = replace(SSD, logits=True, priors=((0.5, 0.5, 0.25, 0.5), (0.25, 0.25, 0.5, 0.5)))
    boxes = np.array([[[1.0, -1.0, 2.0, -2.0], [0, 0, 0, 0]]])
    scores = np.array([[[0.0, 3.0, 0.0, 0.0], [9.0, 0, 0, 0]]])
    (one,) = found("detection", head, boxes, scores)
    x, y = 0.5 + 0.1 * 0.25, 0.5 - 0.1 * 0.5
    w, h = 0.25 * math.exp(0.4), 0.5 * math.exp(-0.4)
    corners = [(x - w / 2) * 128, (y - h / 2) * 96, (x + w / 2) * 128, (y + h / 2) * 96]
    assert told(one)["box"] == pytest.approx(corners, abs=0.01)
    assert told(one)["score"] == pytest.approx(math.exp(3) / (math.exp(3) + 3), abs=1e-5)
    wild = np.full((1, 2, 4), 1e4, np.float32)
    assert np.isfinite(
        head.candidates({"output0": wild, "output1": scores.astype(np.float32)}, 3, (96, 128)).boxes
    ).all()


def test_an_rt_detr_s_boxes_are_shares_of_the_input() -> None:
    rows = np.array([[[0.5, 0.25, 0.25, 0.5, 0.1, 0.9, 0.2], [0.5, 0.25, 0.25, 0.5, 0, 0.8, 0]]])
    first, second = found("detection", RtDetr("rtdetr", 0.25), rows)
    assert told(first) == {"label": "bee", "index": 1, "score": 0.9, "box": [48, 0, 80, 48]}
    assert told(second)["score"] == 0.8  # at the same place: every query is an object


ARGMAX = ClassMap("argmax", 0.0, "ant")


def class_map() -> np.ndarray:
    values = np.zeros((1, 3, 12, 16))
    values[0, 0] = 1.0
    values[0, 1, 2:6, 4:8] = 2.0
    values[0, 2, 6:12, 0:12] = 3.0
    return values


def test_segments_are_largest_first_without_the_background() -> None:
    first, second = found("segmentation", ARGMAX, class_map())
    assert isinstance(first, ClassSegment)
    assert (first.label, first.share) == ("cat", pytest.approx(72 / 192))
    assert told(second) == {
        "label": "bee",
        "index": 1,
        "share": round(16 / 192, 6),
        "box": [32, 16, 64, 48],
        "mask": {
            "box": [0, 0, 128, 96],
            "size": [12, 16],
            "counts": [36, 4, 12, 4, 12, 4, 12, 4, 104],
        },
    }


def test_above_a_threshold_a_pixel_is_of_several_classes() -> None:
    shares = [
        (each.label, each.share)
        for each in found("segmentation", ClassMap("threshold", 0.5, None), class_map())
        if isinstance(each, ClassSegment)
    ]
    assert shares == [("ant", 1.0), ("cat", 72 / 192), ("bee", pytest.approx(16 / 192))]


def test_the_bars_of_a_letterbox_are_no_part_of_a_mask() -> None:
    base = replace(load(SIDECAR).input, size=(96, 128), resize="letterbox")
    _, bars = image_to_pixels(Image.new("RGB", (256, 96)), base)  # 24 rows above and below
    first, _ = found("segmentation", ARGMAX, class_map(), placement=bars)
    assert isinstance(first, ClassSegment)
    assert first.overlay.mask.shape == (6, 16)
    assert first.overlay.covers == pytest.approx((0, 0, 256, 96))
    assert first.box == pytest.approx((0, 48, 192, 96))


@pytest.mark.parametrize("bits", ["", "0", "1", "0110", "1001", "111000", "0101"])
def test_run_lengths_are_read_back(bits: str) -> None:
    mask = np.array([[bit == "1" for bit in bits]])
    assert (mask_of(run_lengths(mask), (1, len(bits))) == mask).all()


def test_a_segment_tints_its_pixels_only() -> None:
    seen = found("segmentation", ARGMAX, class_map())
    drawn = np.asarray(annotated(Image.new("RGB", (128, 96)), seen)).astype(int)
    assert np.abs(drawn[80, 50] - np.array(colour_of(2)) * 128 / 255).max() < 1
    assert not drawn[80, 120].any()


def test_a_repainted_picture_is_the_answer() -> None:
    values = np.zeros((1, 3, 24, 32))
    values[0, 0], values[0, 1], values[0, 2] = 0.5, 2.0, -1.0
    (one,) = found("image-to-image", Repainted("pixels", 100.0, 10.0), values)
    assert isinstance(one, Repainting)
    assert one.picture.size == (32, 24)
    assert one.picture.getpixel((3, 3)) == (60, 210, 0)
    assert annotated(Image.new("RGB", (128, 96)), [one]) is one.picture
    sent = told(one)
    png = Image.open(BytesIO(base64.b64decode(str(sent["png"]))))
    assert (png.size, png.getpixel((0, 0))) == ((32, 24), (60, 210, 0))
    (grey,) = found("image-to-image", Repainted("pixels", 1.0, 0.0), np.full((1, 1, 4, 4), 77.4))
    assert isinstance(grey, Repainting)
    assert grey.picture.getpixel((0, 0)) == (77, 77, 77)


@pytest.mark.parametrize(
    ("task", "head", "shapes"),
    [
        ("detection", YOLO3, {"a": (1, 8, 6, 8)}),
        ("detection", YOLO3, {"a": (1, 16, 3, 4), "b": (1, 8, 6, 8)}),
        ("detection", YoloBoxes("yolov5", 0.3, 0.5), {"a": (1, 7, 100)}),
        ("detection", YoloBoxes("yolov8", 0.3, 0.5), {"a": (1, 100, 7)}),
        ("detection", YOLOX, {"a": (1, CELLS - 1, 8)}),
        ("detection", SSD, {"output0": (1, 10, 4), "other": (1, 10, 4)}),
        ("detection", SSD, {"output0": (1, 10, 4), "output1": (1, 10, 3)}),
        ("segmentation", ARGMAX, {"a": (1, 4, 10, 10)}),
        ("segmentation", ARGMAX, {"a": (1, 3, 100)}),
        ("image-to-image", Repainted("pixels", 1.0, 0.0), {"a": (1, 2, 10, 10)}),
    ],
)
def test_outputs_that_do_not_fit_a_head_are_refused(
    task: VisionTask, head: Head, shapes: dict[str, tuple[int, ...]]
) -> None:
    with pytest.raises(OutputMismatch, match="net") as caught:
        check_outputs(sidecar(task, head), shapes)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("task", "head", "shapes"),
    [
        ("detection", YOLO3, {"a": (1, 8, 6, 8), "b": (1, 16, 3, 4)}),
        ("detection", YoloBoxes("yolov5", 0.3, 0.5), {"a": (1, 100, 8)}),
        ("detection", YOLOX, {"a": (1, CELLS, 8)}),
        ("detection", SSD, {"output1": (1, 10, 4), "output0": (1, 10, 4)}),
        ("segmentation", ARGMAX, {"a": (1, 3, 10, 10)}),
        ("image-to-image", Repainted("pixels", 1.0, 0.0), {"a": (1, 1, 10, 10)}),
    ],
)
def test_outputs_that_fit_are_taken(
    task: VisionTask, head: Head, shapes: dict[str, tuple[int, ...]]
) -> None:
    check_outputs(sidecar(task, head), shapes)
