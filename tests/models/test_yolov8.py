"""The catalogue's YOLOv8n ends like an Ultralytics export."""

from __future__ import annotations

import numpy as np
import pytest

from models.catalogue import catalogue
from models.run.reference import WholeModel
from models.vision.box_lists import YoloBoxes
from models.vision.image_input import Placement
from models.vision.predictions import predictions
from models.zoo.yolov8 import yolov8n, yolov8n_maps

SIDE = 64
IMAGE = np.random.default_rng(3).random((1, 3, SIDE, SIDE), dtype=np.float32)


def decoded(raw: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (4, cells) and raw scores (80, cells) of one map, by their definition."""
    _, _, rows, columns = raw.shape
    flat = raw[0].reshape(144, -1).astype(np.float64)
    likely = np.exp(flat[:64].reshape(4, 16, -1))
    distances = (likely * np.arange(16)[:, None]).sum(axis=1) / likely.sum(axis=1)
    y, x = np.divmod(np.arange(rows * columns), columns)
    middle = np.stack([x, y]) + 0.5
    low, high = middle - distances[:2], middle + distances[2:]
    return np.concatenate([(low + high) / 2, high - low]) * stride, flat[64:]


def test_list_of_boxes_is_what_the_maps_mean() -> None:
    raw = WholeModel(yolov8n_maps(SIDE).complete()).run({"image": IMAGE})
    found = WholeModel(yolov8n(SIDE).complete()).run({"image": IMAGE})["output0"][0]
    parts = [decoded(raw[f"head{k}"], 2**k) for k in (3, 4, 5)]
    np.testing.assert_allclose(found[:4], np.concatenate([p[0] for p in parts], axis=1), rtol=1e-4)
    # Before training, five objects are expected in a picture of 640 x 640.
    priors = [np.log(5 / 80 / (640 / stride) ** 2) for stride in (8, 16, 32)]
    logits = [scores + prior for (_, scores), prior in zip(parts, priors, strict=True)]
    expected = 1 / (1 + np.exp(-np.concatenate(logits, axis=1)))
    np.testing.assert_allclose(found[4:], expected, atol=1e-6)


def test_yolov8n_answers_with_labelled_boxes() -> None:
    loaded = catalogue.load("yolov8n")
    assert loaded.sidecar is not None
    assert isinstance(loaded.sidecar.head, YoloBoxes)
    assert loaded.sidecar.input.size == (640, 640)
    assert not loaded.sidecar.trained
    output = np.zeros((1, 84, 8400), np.float32)
    output[0, :4, 700] = 320, 200, 100, 80
    output[0, 4 + 15, 700] = 0.9
    placement = Placement(640, 640, 1.0, 1.0, 0, 0)
    (cat,) = predictions(loaded.sidecar, {"output0": output}, placement)
    assert (cat.label, cat.score) == ("cat", pytest.approx(0.9))
    assert cat.box == (270.0, 160.0, 370.0, 240.0)
