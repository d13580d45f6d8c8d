"""What was assumed of a model is said with every answer and by the doctor until it is confirmed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.answers import ModelStatus
from coordinator.doctor.findings import LEAST_PICTURES, of_heads
from models.catalogue.installed import Store
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.vision.model_families import About, described, head_for
from tests.serving.in_place import picture
from tests.serving.real import Real, running, started_workers

WHY = "COCO's, by their number (80)"


def status(**changes: object) -> ModelStatus:
    return replace(ModelStatus("yard", True, "ready", "detection", True, 1), **changes)


def test_the_doctor_says_what_is_assumed_and_which_heads_find_nothing() -> None:
    assert of_heads([status()]) == []
    (note,) = of_heads([status(assumed={"labels": WHY})])
    assert (note.code, note.severity) == ("assumed", "note")
    assert WHY in note.cause
    assert "imbrex models confirm yard" in note.cure
    fewer, least = LEAST_PICTURES - 1, LEAST_PICTURES
    assert of_heads([status(pictures=fewer, empty_pictures=fewer)]) == []
    (warning,) = of_heads([status(pictures=least, empty_pictures=least)])
    assert (warning.code, warning.severity) == ("finds_nothing", "warning")
    assert "--task tensor" in warning.cure
    assert of_heads([status(pictures=least + 1, empty_pictures=least)]) == []


def add_detector(store: Path) -> None:
    """A detector of 80 classes that finds nothing, its labels assumed."""
    net = NetworkBuilder("yard", seed=2)
    x = net.input("image", (1, 3, 64, 64)).conv("conv", 1, square(3)).relu()
    low = x.global_average_pool("mean").flatten("flat")
    sizes = net.integers("sizes", (1, 84, 84))
    wide = net.node("Expand", "wide", [low.name, sizes], (1, 84, 84))
    model = net.model(net.node("Sub", "boxes", [wide.name, wide.name], (1, 84, 84)))
    graph = load_graph(model, "yard")
    labels = tuple(map(str, range(80)))
    head = head_for(graph, "detection", labels, "unit", {})
    about = About("yard", "yard.onnx")
    sidecar = described(graph, "detection", head, labels, "unit", about, assumed={"labels": WHY})
    Store(store).add("yard", model.SerializeToString(), sidecar)


@pytest.fixture
async def real(tmp_path: Path, store: str) -> AsyncIterator[Real]:
    add_detector(Path(store))
    with started_workers(tmp_path, 1) as workers:
        async with running(tmp_path, workers, Path("yard"), strategy="single") as started:
            yield started


async def test_answers_models_and_the_doctor_say_it_until_it_is_confirmed(real: Real) -> None:
    answer = (await real.http.post("/v1/models/yard/infer", content=picture())).json()
    assert answer["assumed"] == {"labels": WHY}
    (row,) = (await real.http.get("/v1/models")).json()["models"]
    assert row["assumed"] == {"labels": WHY}
    assert (row["pictures"], row["empty_pictures"]) == (1, 1)
    diagnosis = (await real.http.get("/v1/doctor")).json()
    assert "assumed" in {each["code"] for each in diagnosis["findings"]}
