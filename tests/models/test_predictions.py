from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.digits import SIDECAR
from models.vision.classes import ClassProbability, ClassScores
from models.vision.image_input import Placement
from models.vision.predictions import OutputMismatch, RawOutput, check_outputs, predictions
from models.vision.sidecar import Sidecar, load

WHOLE = Placement(width=416, height=416, scale_x=1.0, scale_y=1.0, left=0, top=0)
DETECTOR = load(SIDECAR)
CLASSIFIER = replace(
    DETECTOR, task="classification", labels=("a", "b", "c"), head=ClassScores("logits", 2)
)


@pytest.mark.parametrize("shape", [(1, 3), (3,), (1, 3, 1, 1)])
def test_the_likeliest_classes_come_first(shape: tuple[int, ...]) -> None:
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32).reshape(shape)
    first, second = predictions(CLASSIFIER, {"scores": logits}, WHOLE)
    total = np.exp([1.0, 3.0, 2.0]).sum()
    assert isinstance(first, ClassProbability)
    assert isinstance(second, ClassProbability)
    assert (first.label, second.label) == ("b", "c")
    assert first.score == pytest.approx(np.exp(3.0) / total)
    assert first.as_json() == {"label": "b", "index": 1, "score": round(np.exp(3.0) / total, 6)}


def test_probabilities_are_not_normalised_twice() -> None:
    softmax = replace(CLASSIFIER, head=ClassScores("softmax", 1))
    (found,) = predictions(softmax, {"p": np.array([[0.2, 0.1, 0.7]], dtype=np.float32)}, WHOLE)
    assert isinstance(found, ClassProbability)
    assert (found.label, found.score) == ("c", pytest.approx(0.7))


def test_equal_scores_keep_the_order_of_the_labels() -> None:
    same = np.zeros((1, 3), dtype=np.float32)
    assert [item.as_json()["label"] for item in predictions(CLASSIFIER, {"s": same}, WHOLE)] == [
        "a",
        "b",
    ]


def test_an_empty_grid_finds_nothing() -> None:
    grid = np.full((1, 45, 26, 26), -20.0, dtype=np.float32)
    assert predictions(DETECTOR, {"grid": grid}, WHOLE) == []


def test_half_precision_outputs_are_read_too() -> None:
    grid = np.full((1, 45, 26, 26), -20.0, dtype=np.float16)
    grid[0, :6, 3, 3] = [0, 0, 0, 0, 20, 20]
    (found,) = predictions(DETECTOR, {"grid": grid}, WHOLE)
    assert found.as_json()["label"] == "0"


def test_a_tensor_model_gives_its_values() -> None:
    raw = replace(DETECTOR, task="tensor", labels=(), head=None)
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    (found,) = predictions(raw, {"y": values}, WHOLE)
    assert isinstance(found, RawOutput)
    assert found.as_json() == {"name": "y", "shape": [2, 2], "data": [0.0, 1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("sidecar", "shapes"),
    [
        (DETECTOR, {"grid": (1, 125, 13, 13)}),
        (DETECTOR, {"grid": (1, 45, 13, 13)}),
        (DETECTOR, {"grid": (1, 45, 26, 26), "other": (1,)}),
        (DETECTOR, {}),
        (CLASSIFIER, {"scores": (1, 1000)}),
    ],
)
def test_an_output_that_does_not_fit_is_refused_with_a_cure(
    sidecar: Sidecar, shapes: dict[str, tuple[int, ...]]
) -> None:
    with pytest.raises(OutputMismatch, match="digits") as caught:
        check_outputs(sidecar, shapes)
    assert caught.value.cure
    outputs = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
    with pytest.raises(OutputMismatch):
        predictions(sidecar, outputs, WHOLE)
