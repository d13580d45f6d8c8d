"""Real workers, real requests, and a worker that dies in the middle of one."""

import asyncio
import os
import signal

import numpy as np
import pytest

from benchmarks.local import LocalCluster, local_cluster
from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from tests.waiting import until
from tests.whole.cluster import running

MODEL = "vgg16-conv"


@pytest.fixture(scope="module")
def question() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """An input and the whole model's answer."""
    proto = load(MODEL).proto
    feeds = random_inputs(load_graph(proto))
    return feeds, WholeModel(proto, 1).run(feeds)


@pytest.mark.parametrize("strategy", [pytest.param("ofl", marks=pytest.mark.slow), "halo"])
async def test_a_worker_killed_in_mid_request_costs_no_request(question, strategy: str) -> None:
    feeds, whole = question
    async with local_cluster(3, pace=0.2, strategy=strategy, profile=False) as cluster:
        coordinator = cluster.coordinator
        first = await coordinator.infer(MODEL, feeds)
        assert compare(first.outputs, whole).max_rel_error <= 1e-5
        assert len(first.devices) == 3
        assert (first.traffic.halo > 0) == (strategy == "halo")
        assert first.traffic == cluster.coordinator.plans.book.graph(MODEL).plan.traffic
        victim = cluster.workers[1].process
        request = asyncio.create_task(coordinator.infer(MODEL, feeds))
        await until(lambda: len(running(cluster.coordinator)) >= 2)
        os.kill(victim.pid, signal.SIGKILL)
        answer = await request
        assert answer.retried_tasks >= 1
        assert compare(answer.outputs, whole).max_rel_error <= 1e-5
        # The plan is replaced by one without it, in the background.
        await until(lambda: _plan_devices(cluster) == 2)
        after = await coordinator.infer(MODEL, feeds)
        assert after.retried_tasks == 0
        assert after.plan_version > answer.plan_version
        assert compare(after.outputs, whole).max_rel_error <= 1e-5


def _plan_devices(cluster: LocalCluster) -> int:
    graph = cluster.coordinator.plans.book.graph(MODEL)
    return len(graph.plan.devices) if graph else 0


async def test_concurrent_requests_are_not_mixed_up(question) -> None:
    feeds, whole = question
    other = {name: array * 0.5 + 0.1 for name, array in feeds.items()}
    expected = [whole, WholeModel(load(MODEL).proto, 1).run(other)]
    async with local_cluster(2, pace=0.5, strategy="ofl", profile=False) as cluster:
        answers = await asyncio.gather(
            *(cluster.coordinator.infer(MODEL, [feeds, other][i % 2]) for i in range(6))
        )
    for index, answer in enumerate(answers):
        assert compare(answer.outputs, expected[index % 2]).max_rel_error <= 1e-5
        assert compare(answer.outputs, expected[1 - index % 2]).max_rel_error > 1e-3
