"""Networks with a tail, on real workers: outputs whose shape only the worker finds out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from coordinator.devices import children
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from tests.models.tails import NETWORKS
from tests.serving.real import running, started_workers
from tests.waiting import until
from tests.whole.cluster import settled


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[children.Child]]:
    with started_workers(tmp_path_factory.mktemp("workers"), 2) as started:
        yield started


@pytest.mark.parametrize("strategy", ["lw", "halo", "auto"])
@pytest.mark.parametrize("name", NETWORKS)
async def test_answers_are_those_of_the_whole_model(
    tmp_path: Path, workers: list[children.Child], name: str, strategy: str
) -> None:
    model, path = NETWORKS[name](), tmp_path / "tail.onnx"
    onnx.save(model, path)
    async with running(tmp_path / "host", workers, path, strategy=strategy, audit_every=1) as real:
        sizes = set()
        for seed in range(3):
            feeds = random_inputs(load_graph(model), seed)
            feeds["x"] *= 1 + seed
            whole = WholeModel(model, 1).run(feeds)
            answer = await real.coordinator.infer(str(path), feeds)
            assert compare(answer.outputs, whole).max_rel_error <= 1e-5
            sizes.add(tuple(array.shape for array in answer.outputs.values()))
        if name in ("suppression", "above"):
            assert len(sizes) > 1, "the shapes were always the same"
        await settled(real.coordinator)
        await until(
            lambda: all(each.state == "ready" for each in real.coordinator.device_statuses())
        )
        assert not any(each.wrong_tasks for each in real.coordinator.device_statuses())
        assert all(np.isfinite(array).all() for array in answer.outputs.values())
