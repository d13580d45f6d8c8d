"""What the coordinator holds of models and plans has an end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from coordinator.devices import children
from coordinator.tasks.task_graph import TaskGraph
from models.onnx_file.builder import NetworkBuilder, square
from models.run.reference import WholeModel, compare
from tests.serving.real import Real, running
from tests.waiting import until

FEEDS = {"image": np.random.default_rng(4).standard_normal((1, 3, 64, 64), np.float32)}


@pytest.fixture
async def real(tmp_path: Path, workers: list[children.Child], model: Path) -> AsyncIterator[Real]:
    # Room for the configured model, and for one more.
    async with running(tmp_path / "state", workers, model, max_models_bytes=60_000) as made:
        yield made


def another(folder: Path, seed: int) -> str:
    """A network whose weights take 37 kB."""
    net = NetworkBuilder(f"net{seed}", seed)
    x = net.input("image", (1, 3, 64, 64)).conv("conv1", 16, square(3)).relu()
    path = folder / f"net{seed}.onnx"
    onnx.save(net.model(x.conv("conv2", 64, square(3))), path)
    return str(path)


async def right(real: Real, source: str) -> bool:
    answer = await real.coordinator.infer(source, FEEDS)
    expected = WholeModel(onnx.load(source), threads=1).run(FEEDS)
    return compare(answer.outputs, expected).max_rel_error <= 1e-5


async def test_a_plan_ends_with_its_last_request(real: Real, model: Path) -> None:
    coordinator, name = real.coordinator, str(model)
    graphs: list[weakref.ref[TaskGraph]] = []
    for strategy in ("lw", "single", "halo", "lw"):
        reply = await real.http.post(f"/v1/models/tiny/plan?strategy={strategy}")
        put = await real.http.put("/v1/plans/tiny", content=reply.content)
        assert put.status_code == 200
        graph = coordinator.plans.book.graph(name)
        assert graph is not None
        graphs.append(weakref.ref(graph))
        del graph
        assert await right(real, name)

    def ended() -> bool:
        gc.collect()
        return not any(graph() for graph in graphs[:-1])

    # What is learnt from an answer, after it, still knows its plan.
    await until(ended)
    assert graphs[-1]() is not None


def mapped(worker: children.Child) -> int:
    """Bytes of weights that a worker's sessions map."""
    return sum(
        each.rss
        for each in psutil.Process(worker.process.pid).memory_maps()
        if str(worker.ready_file.parent) in each.path
    )


async def test_models_that_nobody_asks_for_are_let_go_of(
    real: Real, model: Path, tmp_path: Path
) -> None:
    first, second = another(tmp_path, 1), another(tmp_path, 2)
    assert await right(real, first)
    assert set(real.coordinator.library.loaded()) == {str(model), first}
    assert await right(real, second)
    assert set(real.coordinator.library.loaded()) == {str(model), second}
    told = (await real.http.get("/v1/models")).json()
    assert told["max_models_bytes"] == 60_000
    assert 37_000 < told["weight_bytes"] < 60_000
    assert sum(each["weight_bytes"] for each in told["models"]) == told["weight_bytes"]
    metrics = (await real.http.get("/metrics")).text
    assert f"imbrex_models_weight_bytes {float(told['weight_bytes'])}" in metrics
    assert "imbrex_models_max_bytes 60000.0" in metrics
    held = {
        sha
        for device in real.coordinator.devices.pool.ready().values()
        for sha in device.programs.ready
    }
    await until(lambda: real.coordinator.plans.book.graph(first) is None)
    assert real.coordinator.plans.book.programs() <= held
    assert await right(real, first)
    assert await right(real, str(model))


async def test_a_model_in_use_stays_whatever_it_takes(
    real: Real, model: Path, tmp_path: Path
) -> None:
    sources = [another(tmp_path, seed) for seed in range(3, 9)]
    assert all(await asyncio.gather(*(right(real, each) for each in sources * 2)))
    assert await right(real, another(tmp_path, 9))
    assert real.coordinator.library.weight_bytes < 60_000
