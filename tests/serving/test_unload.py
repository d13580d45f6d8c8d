"""An unloaded model leaves nothing on the devices, and comes back from its file as it is then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from coordinator.devices import children
from coordinator.devices.announcements import Announcements
from coordinator.library import loaded
from coordinator.library.naming import Names
from models.run.reference import WholeModel, compare
from protos.errors import NotFound
from tests.serving.real import Real, running, started_workers
from tests.waiting import until

FEEDS = {"image": np.random.default_rng(4).standard_normal((1, 3, 64, 64), np.float32)}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[children.Child]]:
    """They hold nothing for anybody else."""
    with started_workers(tmp_path_factory.mktemp("workers"), 2) as started:
        yield started


@pytest.fixture
async def real(tmp_path: Path, workers: list[children.Child], model: Path) -> AsyncIterator[Real]:
    async with running(tmp_path, workers, model) as made:
        yield made


def mapped(workers: list[children.Child]) -> int:
    """Bytes of weights that the workers' sessions map."""
    return sum(
        each.rss
        for worker in workers
        for each in psutil.Process(worker.process.pid).memory_maps()
        if str(worker.ready_file.parent) in each.path
    )


def test_reloaded_models_are_not_refused_any_more_when_others_hear_of_it(tmp_path: Path) -> None:
    announcements, refused = Announcements(), []
    library = loaded.Library(Names(()), tmp_path, 10**9, announcements)
    library.unload("digits")
    announcements.on(
        loaded.ModelForgotten, lambda news: refused.append(library.is_unloaded(news.model))
    )
    library.reload("digits")
    assert refused == [False]


async def test_sessions_of_an_unloaded_model_are_freed_and_made_again(
    real: Real, workers: list[children.Child], model: Path
) -> None:
    coordinator, name = real.coordinator, str(model)
    expected = WholeModel(onnx.load(model), threads=1).run(FEEDS)
    await coordinator.infer(name, FEEDS)
    assert mapped(workers) > 0
    coordinator.library.unload(name)
    with pytest.raises(NotFound, match="unloaded"):
        await coordinator.infer(name, FEEDS)
    await until(lambda: mapped(workers) == 0)
    await coordinator.served.load(name)
    answer = await coordinator.infer(name, FEEDS)
    assert compare(answer.outputs, expected).max_rel_error <= 1e-5
    assert answer.retried_tasks == 0
    assert mapped(workers) > 0


async def test_a_model_that_changed_is_answered_by_its_new_file(
    real: Real, model: Path, tmp_path: Path
) -> None:
    coordinator, name = real.coordinator, str(model)
    before = (await coordinator.infer(name, FEEDS)).outputs
    kept, changed = onnx.load(model), onnx.load(model)
    for weight in changed.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype == np.float32:
            weight.CopyFrom(onnx.numpy_helper.from_array(values * 2, weight.name))
    try:
        onnx.save(changed, model)
        await coordinator.served.load(name)
        expected = WholeModel(changed, threads=1).run(FEEDS)
        answer = await coordinator.infer(name, FEEDS)
        assert compare(answer.outputs, expected).max_rel_error <= 1e-5
        assert compare(answer.outputs, before).max_rel_error > 0.1
    finally:
        onnx.save(kept, model)


async def test_of_the_sizes_of_one_model_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may ask for any number of them."""
    gone: list[str] = []

    def load(name: str, *_: object) -> Any:
        return SimpleNamespace(weight_bytes=1, served=None)

    monkeypatch.setattr(loaded, "load", load)
    news = Announcements()
    news.on(loaded.ModelForgotten, lambda forgotten: gone.append(forgotten.model))
    library = loaded.Library(Names(()), Path(), 1000, news)
    news.on(loaded.ModelLoaded, lambda new: library.make_room(new.model, lambda _: False))
    names = ["net", "other@8x8", *(f"net@{8 * k}x8" for k in range(1, loaded.MOST_SIZES + 4))]
    for name in names:
        await library.get(name)
    assert gone == ["net@8x8", "net@16x8", "net@24x8"]
