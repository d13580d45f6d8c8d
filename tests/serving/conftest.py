from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import onnx
import pytest
from fastapi import FastAPI

from coordinator.devices import children
from coordinator.serving.app import create_app
from tests.serving.in_place import InPlace, tiny_model
from tests.serving.processes import Service, serving
from tests.serving.real import save_tiny, started_workers


@pytest.fixture
def coordinator() -> InPlace:
    return InPlace()


@pytest.fixture
def app(coordinator: InPlace) -> FastAPI:
    return create_app(coordinator)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[children.Child]]:
    with started_workers(tmp_path_factory.mktemp("workers"), 2) as started:
        yield started


CONFIG = """
name: "stored"
backend: "onnxruntime"
max_batch_size: 0
output [{ name: "fc" data_type: TYPE_FP32 dims: [1, 3] label_filename: "labels.txt" }]
instance_group [{ count: 2 kind: KIND_CPU }]
"""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two workers and a coordinator with `digits` and a model repository."""
    folder = tmp_path_factory.mktemp("service")
    repository = folder / "repository"
    for version in (1, 3):
        (repository / "stored" / str(version)).mkdir(parents=True)
        onnx.save(tiny_model(), repository / "stored" / str(version) / "model.onnx")
    (repository / "stored" / "config.pbtxt").write_text(CONFIG)
    (repository / "stored" / "labels.txt").write_text("ant\nbee\ncat\n")
    (repository / "broken" / "1").mkdir(parents=True)
    # What Triton's client writes of a 416x416 image as JSON is 10 MB.
    (folder / "coordinator.toml").write_text("max_json_bytes = 16777216\n")
    flags = ["--model", "digits", "--model-repository", str(repository)]
    flags += ["--config", str(folder / "coordinator.toml")]
    with serving(folder, flags) as running:
        yield running
