"""Answers with NaN or infinities are refused as what they are, wherever they would be read."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.serving.frigate.outputs import rows_of
from coordinator.serving.oip.tensors import classes, to_values
from models.vision.anchored_grids import YoloV2, YoloV3
from models.vision.box_lists import EndToEnd, RtDetr, YoloBoxes, YoloX
from models.vision.classes import ClassMap, ClassScores
from models.vision.head import VisionTask
from models.vision.heads import Head
from models.vision.repainted import Repainted
from models.vision.ssd import Ssd
from models.vision.yolo_parts import YoloPose, YoloRotated, YoloSegments
from protos.errors import NotFiniteAnswer
from tests.models.test_heads import found

nan, inf = np.nan, np.inf
Case = tuple[VisionTask, Head, list[tuple[int, ...]]]
# Task, head, shapes of outputs for three classes and an input of 96x128.
CASES: dict[str, Case] = {
    "softmax": ("classification", ClassScores("softmax", 2), [(1, 3)]),
    "logits": ("classification", ClassScores("logits", 2), [(1, 3)]),
    "argmax": ("segmentation", ClassMap("argmax", 0.0, None), [(1, 3, 12, 16)]),
    "threshold": ("segmentation", ClassMap("threshold", 0.5, None), [(1, 3, 12, 16)]),
    "pixels": ("image-to-image", Repainted("pixels", 255.0, 0.0), [(1, 3, 12, 16)]),
    "yolov2": ("detection", YoloV2("yolov2", ((1, 1),), 32, 0.2, 0.4), [(1, 8, 3, 4)]),
    "yolov3": ("detection", YoloV3("yolov3", (((9, 9),),), (32,), 0.2, 0.4), [(1, 8, 3, 4)]),
    "yolov5": ("detection", YoloBoxes("yolov5", 0.2, 0.4), [(1, 12, 8)]),
    "yolov8": ("detection", YoloBoxes("yolov8", 0.2, 0.4), [(1, 7, 12)]),
    "yolox": ("detection", YoloX("yolox", (32,), 0.2, 0.4), [(1, 12, 8)]),
    "rtdetr": ("detection", RtDetr("rtdetr", 0.2), [(1, 12, 7)]),
    "end2end": ("detection", EndToEnd("end2end", 0.2), [(1, 12, 6)]),
    "ssd": (
        "detection",
        Ssd("ssd", "output0", "output1", False, "xyxy", (), (0.1, 0.2), 0.2, 0.4),
        [(1, 12, 4), (1, 12, 4)],
    ),
    "ssd logits": (
        "detection",
        Ssd("ssd", "output0", "output1", True, "xyxy", (), (0.1, 0.2), 0.2, 0.4),
        [(1, 12, 4), (1, 12, 4)],
    ),
    "segments": (
        "detection",
        YoloSegments("yolov8-seg", "output0", "output1", 2, 0.2, 0.4),
        [(1, 9, 12), (1, 2, 24, 32)],
    ),
    "pose": ("detection", YoloPose("yolov8-pose", "output0", 1, True, 0.2, 0.4), [(1, 10, 12)]),
    "rotated": ("detection", YoloRotated("yolov8-obb", "output0", 0.2, 0.4), [(1, 8, 12)]),
    "rows": ("detection", YoloRotated("end2end-obb", "output0", 0.2, 1.0), [(1, 12, 7)]),
}


def answer(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    outputs = [rng.uniform(0.3, 1, shape).astype(np.float32) for shape in CASES[name][2]]
    if name.startswith("ssd"):
        outputs[0][..., 2:] += 1
    if name == "segments":
        outputs[0][:, :4] *= 60
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_every_head_refuses_an_answer_of_nan_and_reads_a_finite_one(name: str) -> None:
    task, head, _ = CASES[name]
    assert found(task, head, *answer(name))
    for position in range(len(answer(name))):
        outputs = answer(name)
        outputs[position][...] = nan
        with pytest.raises(NotFiniteAnswer, match=r"has NaN in .*\(f32\)"):
            found(task, head, *outputs)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"threshold", "yolov3", "ssd", "pixels"}))
def test_infinities_everywhere_say_nothing(name: str) -> None:
    task, head, _ = CASES[name]
    outputs = [np.full_like(each, inf) for each in answer(name)]
    with pytest.raises(NotFiniteAnswer, match="the model's answer has"):
        found(task, head, *outputs)


def test_an_infinite_pixel_or_box_is_refused() -> None:
    for name, place in (("pixels", (0, 1, 2, 3)), ("yolov8", (0, 2, 4)), ("ssd", (0, 3, 1))):
        outputs = answer(name)
        outputs[0][place] = inf
        with pytest.raises(NotFiniteAnswer):
            found(*CASES[name][:2], *outputs)


def test_undefined_score_is_refused_rather_than_no_object() -> None:
    for name, place in (
        ("yolov8", (0, 5, 3)),
        ("yolov5", (0, 3, 4)),
        ("yolov3", (0, 6, 1, 1)),
        ("end2end", (0, 2, 4)),
        ("end2end", (0, 2, 5)),
        ("rows", (0, 2, 6)),
        ("pose", (0, 9, 2)),
    ):
        outputs = answer(name)
        outputs[0][place] = nan
        with pytest.raises(NotFiniteAnswer, match="has NaN in"):
            found(*CASES[name][:2], *outputs)


def test_infinities_that_a_head_understands_are_read() -> None:
    task, head, _ = CASES["logits"]
    best, second = found(task, head, np.array([[-inf, 1.0, 2.0]]))
    assert (best.label, second.label) == ("cat", "bee")
    assert found(task, head, np.array([[-inf, 1.0, -inf]]))[1].score == 0
    task, head, _ = CASES["yolov3"]  # sigmoid(inf) is 1, and no size is infinite
    (grid,) = answer("yolov3")
    grid[0, :, 0, 0] = inf
    assert max(each.score for each in found(task, head, grid)) == 1
    grid[0, 4] = -inf
    assert found(task, head, grid) == []
    task, head, _ = CASES["threshold"]
    (values,) = answer("threshold")
    values[0, 0], values[0, 1] = inf, -inf
    assert {each.label for each in found(task, head, values)} == {"ant", "cat"}
    task, head, _ = CASES["argmax"]
    values[0, 0] = -inf
    assert {each.label for each in found(task, head, values)} == {"cat"}
    task, head, _ = CASES["yolov8"]
    (boxes,) = answer("yolov8")
    boxes[0, 4:] = -inf
    assert found(task, head, boxes) == []
    boxes[0, :4] = nan  # of boxes that nobody reads
    boxes[0, 4:] = 0
    assert found(task, head, boxes) == []


def test_infinite_logit_leaves_no_probabilities() -> None:
    task, head, _ = CASES["logits"]
    for logits in ([inf, 0, 0], [nan, 0, 0], [-inf, -inf, -inf]):
        with pytest.raises(NotFiniteAnswer, match="has NaN in the scores"):
            found(task, head, np.array([logits]))


@pytest.mark.parametrize(
    ("kind", "shapes", "place"),
    [
        ("yologeneric", [(1, 7, 12)], (0, 5, 3)),
        ("yolox", [(1, 84, 8)], (0, 3, 4)),
        ("yolonas", [(12, 7)], (2, 5)),
        ("yolonas", [(12, 7)], (2, 6)),
        ("rfdetr", [(1, 12, 4), (1, 12, 4)], (0, 2, 1)),
        ("dfine", [(1, 12), (1, 12, 4), (1, 12)], (0, 2)),
        ("ssd", [(1, 1, 12, 7)], (0, 0, 2, 2)),
        ("ssd", [(1, 1, 12, 7)], (0, 0, 2, 1)),
        ("ssd", [(1, 12, 4), (1, 12), (1, 12), (1,)], (0, 2)),
    ],
)
def test_frigate_s_rows(kind: str, shapes: list[tuple[int, ...]], place: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    outputs = [rng.uniform(0.5, 1, shape).astype(np.float32) for shape in shapes]
    if kind == "rfdetr":
        outputs[1][..., 1] += 5
    assert len(rows_of(kind, outputs, (64, 64)))
    for position, output in enumerate(outputs):
        if len(output.shape) == len(place):
            changed = [each.copy() for each in outputs]
            changed[position][place] = nan
            with pytest.raises(NotFiniteAnswer, match="has NaN in"):
                rows_of(kind, changed, (64, 64))


def test_numbers_in_json_and_triton_s_classes() -> None:
    for values, kinds in (([nan, 1], "NaN"), ([inf, 1], "infinities"), ([nan, inf], "NaN and inf")):
        with pytest.raises(NotFiniteAnswer, match=f"has {kinds}.*binary"):
            to_values("y", np.array(values, np.float32))
        with pytest.raises(NotFiniteAnswer):
            classes(np.array(values, np.float32), 1, ())
    assert classes(np.array([-inf, 1]), 2, ()).tolist() == [b"1.000000:1", b"-inf:0"]
    assert classes(np.array([3, 5], np.uint8), 1, ()).tolist() == [b"5.000000:1"]
