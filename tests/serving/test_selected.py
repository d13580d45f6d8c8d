"""Of a detector's output only the likely boxes travel, and the predictions are the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from coordinator.answers import ServedModel
from coordinator.devices import children
from coordinator.serving.common.names import ANSWER_HEADER
from coordinator.serving.common.pictures import at_least
from models.catalogue import catalogue
from models.catalogue.catalogue import load
from models.run.reference import WholeModel, compare
from models.vision import sidecar
from models.vision.box_lists import EndToEnd, YoloBoxes
from models.vision.heads import Head
from models.vision.image_input import ImageInput
from models.vision.predictions import predictions
from models.vision.preprocess import decode_image, image_to_pixels
from protos.errors import BadRequest
from tests.models import picking
from tests.serving.camera import LABELS
from tests.serving.in_place import picture
from tests.serving.real import Real, running

SIZE = 64
VALUES = 4 + len(LABELS)


def save_detector(folder: Path) -> Path:
    """`boxes.onnx`: two maps, flattened and joined to (1, 4 + classes, 5/4 x 32 x 32)."""
    rng = np.random.default_rng(5)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        return numpy_helper.from_array(array, name)

    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    ints = {"flat": [1, VALUES, -1], "split": [4, len(LABELS)]}
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], **conv),
        helper.make_node("Relu", ["c1"], ["near"]),
        helper.make_node("Conv", ["near", "w2"], ["c2"], **conv),
        helper.make_node("Relu", ["c2"], ["far"]),
    ]
    for name in ("near", "far"):
        nodes += [
            helper.make_node("Conv", [name, f"{name}_w"], [f"{name}_map"], kernel_shape=[1, 1]),
            helper.make_node("Reshape", [f"{name}_map", "flat"], [f"{name}_flat"]),
        ]
    nodes += [
        helper.make_node("Concat", ["near_flat", "far_flat"], ["raw"], axis=2),
        helper.make_node("Sigmoid", ["raw"], ["likely"]),
        helper.make_node("Split", ["likely", "split"], ["shares", "scores"], axis=1),
        helper.make_node("Mul", ["shares", "size"], ["places"]),
        helper.make_node("Concat", ["places", "scores"], ["boxes"], axis=1),
    ]
    constants = [weights("w1", 16, 3, 3, 3), weights("w2", 16, 16, 3, 3)]
    constants += [weights("near_w", VALUES, 16, 1, 1), weights("far_w", VALUES, 16, 1, 1)]
    constants += [
        helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        for name, values in ints.items()
    ]
    constants.append(helper.make_tensor("size", TensorProto.FLOAT, [], [SIZE]))
    entries = (SIZE // 2) ** 2 + (SIZE // 4) ** 2
    graph = helper.make_graph(
        nodes,
        "boxes",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, VALUES, entries])],
        initializer=constants,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "boxes.onnx")
    describe(folder, "image", YoloBoxes("yolov8", 0.66, 0.9))
    return folder / "boxes.onnx"


def save_picking(folder: Path) -> Path:
    """`boxes.onnx`: a detector that picks its boxes itself, of as many as the other one."""
    onnx.save(picking.detector(scores=len(LABELS), side=SIZE), folder / "boxes.onnx")
    describe(folder, "x", EndToEnd("end2end", 0.825))
    return folder / "boxes.onnx"


def describe(folder: Path, name: str, head: Head) -> None:
    """Writes the sidecar of a detector with this input."""
    digits = catalogue.load("digits").sidecar
    assert digits is not None
    form = ImageInput(name, (SIZE, SIZE), "letterbox", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3, 114)
    described = replace(digits, name="boxes", labels=LABELS, input=form, head=head)
    (folder / "boxes.json").write_text(sidecar.dump(described))


@pytest.fixture(scope="module", params=[save_detector, save_picking])
def detector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("detector"))


@pytest.fixture
async def real(
    tmp_path: Path, workers: list[children.Child], detector: Path
) -> AsyncIterator[Real]:
    async with running(tmp_path, workers, detector, strategy="lw") as started:
        yield started


async def test_predictions_are_those_of_the_whole_output(real: Real, detector: Path) -> None:
    loaded, body = load(str(detector)), picture()
    assert loaded.sidecar is not None
    form = loaded.sidecar.picture
    pixels, placement = image_to_pixels(decode_image(body), form)
    whole = WholeModel(loaded.proto, 1).run({form.name: form.pixels.values(pixels)})
    expected = [each.as_json() for each in predictions(loaded.sidecar, whole, placement)]
    assert len(expected) > 3
    url, headers = "/v1/models/boxes/infer", {"Content-Type": "image/png"}
    answer = await real.http.post(url, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert len(told["devices"]) == 2
    for one, other in zip(told["predictions"], expected, strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=2e-6)
        assert one["box"] == pytest.approx(other["box"], abs=0.02)
    least = expected[1]["score"]
    assert isinstance(least, float)
    fewer = await real.http.post(f"{url}?min_score={least}", content=body, headers=headers)
    assert 0 < len(fewer.json()["predictions"]) < len(expected)
    assert fewer.json()["bytes"]["gather"] < told["bytes"]["gather"]
    more = await real.http.post(f"{url}?min_score=0.01", content=body, headers=headers)
    assert len(more.json()["predictions"]) > len(expected)
    for wrong in ("0", "1.5", "-1", "nan", "much"):
        refused = await real.http.post(f"{url}?min_score={wrong}", content=body, headers=headers)
        assert refused.status_code in (400, 422), wrong
    raw = await real.http.post(url, content=body, headers=headers | {"Accept": "application/x-npz"})
    with np.load(BytesIO(raw.content)) as arrays:
        outputs = {name: arrays[name] for name in arrays}
    assert compare(outputs, whole).max_rel_error <= 1e-5
    list_bytes = VALUES * ((SIZE // 2) ** 2 + (SIZE // 4) ** 2) * 4
    of_all = json.loads(raw.headers[ANSWER_HEADER])["bytes"]["gather"]
    assert of_all - told["bytes"]["gather"] > list_bytes / 2
    sparse = await real.http.post(
        f"{url}?sparse=true", content=body, headers=headers | {"Accept": "application/x-npz"}
    )
    assert json.loads(sparse.headers[ANSWER_HEADER])["bytes"] == told["bytes"]
    with np.load(BytesIO(sparse.content)) as arrays:
        few = {name: arrays[name] for name in arrays}
    again = [each.as_json() for each in predictions(loaded.sidecar, few, placement)]
    assert [each["label"] for each in again] == [each["label"] for each in expected]


def test_a_model_without_boxes_takes_no_least_score() -> None:
    served = ServedModel("numbers", "numbers", Mock(), None, False)
    with pytest.raises(BadRequest, match="numbers finds no boxes"):
        at_least(served, 0.5)
