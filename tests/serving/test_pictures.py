"""Pictures travel to real workers as uint8; the model's own tensors are served by the same plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from coordinator.answers import Answer
from coordinator.devices import children
from coordinator.serving.common.tensors import write_tensors
from models.run.reference import EQUAL, WholeModel, compare
from models.vision.image_input import ImageInput
from models.vision.sidecar import Sidecar, dump, sidecar_path
from protos.errors import BadRequest
from tests.serving.real import Real, running, save_tiny

FORM = ImageInput(
    "image", (64, 64), "stretch", "RGB", 1 / 255, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 114
)
PIXELS = np.random.default_rng(6).integers(0, 256, (1, 3, 64, 64), np.uint8)
VALUES = FORM.pixels.values(PIXELS)
NO_PIXELS = np.random.default_rng(7).random((1, 3, 64, 64), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_tiny(tmp_path_factory.mktemp("model"))
    beside = Sidecar("tiny", "tensor", "a test", "none", "a test", False, (), FORM, None)
    sidecar_path(path).write_text(dump(beside))
    return path


@pytest.fixture
async def real(tmp_path: Path, workers: list[children.Child], model: Path) -> AsyncIterator[Real]:
    async with running(tmp_path, workers, model, strategy="efl") as made:
        yield made


async def ask(real: Real, model: Path, image: np.ndarray) -> Answer:
    return await real.coordinator.infer(str(model), {"image": image})


async def test_pixels_and_tensors_get_the_same_answer(real: Real, model: Path) -> None:
    whole = WholeModel(onnx.load(model), threads=1)
    pixels, made = await ask(real, model, PIXELS), await ask(real, model, VALUES)
    assert compare(pixels.outputs, whole.run({"image": VALUES})).max_rel_error <= 1e-5
    assert compare(pixels.outputs, made.outputs) == EQUAL
    # A tensor that is made of pixels travels as these.
    assert made.traffic == pixels.traffic
    values = await ask(real, model, NO_PIXELS)
    assert compare(values.outputs, whole.run({"image": NO_PIXELS})).max_rel_error <= 1e-5
    assert pixels.plan_version == made.plan_version == values.plan_version
    plan, _ = await real.coordinator.plans.current(str(model))
    assert len(pixels.devices) == 2
    assert pixels.traffic == plan.traffic
    # The image goes once to each tile of the first block; nothing else is scattered in one block.
    assert len(plan.blocks) == 1
    assert values.traffic.scatter == 4 * pixels.traffic.scatter
    assert values.traffic.gather == pixels.traffic.gather


async def test_pictures_and_tensors_at_once_are_not_mixed_up(real: Real, model: Path) -> None:
    expected = (await ask(real, model, PIXELS)).outputs
    other = (await ask(real, model, np.zeros_like(PIXELS))).outputs
    answers = await asyncio.gather(
        *(
            ask(real, model, image)
            for image in (PIXELS, VALUES, np.zeros_like(PIXELS), PIXELS, VALUES)
        )
    )
    for answer, wanted in zip(
        answers, (expected, expected, other, expected, expected), strict=True
    ):
        assert compare(answer.outputs, wanted) == EQUAL
    assert compare(other, expected) != EQUAL


async def test_tensors_of_pixels_travel_as_pixels_without_a_sidecar(
    tmp_path: Path, workers: list[children.Child]
) -> None:
    path = save_tiny(tmp_path)
    whole = WholeModel(onnx.load(path), threads=1)
    plain = PIXELS.astype(np.float32)
    one_off = plain / 255
    one_off[0, 2, 63, 63] = np.nextafter(one_off[0, 2, 63, 63], np.float32(2))
    async with running(tmp_path, workers, path, strategy="efl") as real:
        for image, share in ((plain / 255, 4), (plain, 4), (one_off, 1), (NO_PIXELS, 1)):
            answer = await ask(real, path, image)
            expected = whole.run({"image": image})
            assert compare(answer.outputs, expected).max_rel_error <= 1e-5
            plan, _ = await real.coordinator.plans.current(str(path))
            assert plan.traffic.scatter == share * answer.traffic.scatter


async def test_tensors_of_other_types_are_refused(real: Real, model: Path) -> None:
    with pytest.raises(BadRequest, match="float64"):
        await ask(real, model, VALUES.astype(np.float64))
    body = write_tensors({"image": PIXELS.astype(np.int8)})
    headers = {"Content-Type": "application/x-npz"}
    response = await real.http.post("/v1/models/tiny/infer", content=body, headers=headers)
    assert response.status_code == 400
    assert "int8" in response.json()["error"]["cause"]
