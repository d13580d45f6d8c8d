"""Many images at once on real workers: groups take over, answers stay right, none is lost."""

import asyncio
import os
import signal
from collections.abc import Callable

import numpy as np

from benchmarks.local import LocalCluster, local_cluster
from coordinator.answers import Answer
from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs

MODEL = "digits"


def question() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    proto = load(MODEL).proto
    feeds = random_inputs(load_graph(proto))
    return feeds, WholeModel(proto, 1).run(feeds)


def groups(cluster: LocalCluster) -> int:
    return next(m.load.groups for m in cluster.coordinator.served.statuses() if m.name == MODEL)


async def crowd(
    cluster: LocalCluster,
    feeds: dict[str, np.ndarray],
    clients: int,
    enough: Callable[[list[Answer]], bool],
) -> list[Answer]:
    """A closed loop of clients until the answers are enough."""
    answers: list[Answer] = []

    async def client() -> None:
        while not enough(answers):
            answers.append(await cluster.coordinator.infer(MODEL, feeds))

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def on_all(cluster: LocalCluster, feeds: dict[str, np.ndarray]) -> Answer:
    """The first answer of all devices: links that were measured while daemons started look slow."""
    count = len(cluster.workers)
    return (
        await crowd(cluster, feeds, 1, lambda got: bool(got) and len(got[-1].devices) == count)
    )[-1]


def on_fewer_than(devices: int, answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if len(answer.devices) < devices]


async def test_a_crowd_is_shared_out_to_groups_and_a_lone_image_gets_all_devices() -> None:
    feeds, whole = question()
    async with local_cluster(3, pace=0.1, strategy="efl", profile=False) as cluster:
        alone = await on_all(cluster, feeds)
        assert groups(cluster) == 1
        answers = await crowd(cluster, feeds, 9, lambda got: len(on_fewer_than(3, got)) >= 20)
        grouped = on_fewer_than(3, answers)
        assert {name for answer in grouped for name in answer.devices} == set(alone.devices)
        await crowd(cluster, feeds, 1, lambda _: groups(cluster) == 1)
        await on_all(cluster, feeds)
        # A device that is gone takes its groups with it, and no request.
        ending = asyncio.create_task(crowd(cluster, feeds, 9, lambda got: len(got) >= 30))
        await crowd(cluster, feeds, 1, lambda got: len(got) >= 1)
        os.kill(cluster.workers[0].process.pid, signal.SIGKILL)
        answers += await ending
        assert all(compare(each.outputs, whole).max_rel_error <= 1e-5 for each in answers)


async def test_a_model_that_is_loaded_anew_has_no_groups_of_the_old_one() -> None:
    feeds, whole = question()
    async with local_cluster(2, pace=0.1, strategy="efl", profile=False) as cluster:
        await cluster.coordinator.infer(MODEL, feeds)
        await crowd(cluster, feeds, 6, lambda _: groups(cluster) > 1)
        cluster.coordinator.library.unload(MODEL)
        await cluster.coordinator.served.load(MODEL)
        assert groups(cluster) == 1
        answer = await cluster.coordinator.infer(MODEL, feeds)
        assert compare(answer.outputs, whole).max_rel_error <= 1e-5


async def test_the_objective_latency_keeps_every_image_on_all_devices() -> None:
    feeds, _ = question()
    settings = {"objective": "latency", "profile": False, "strategy": "efl"}
    async with local_cluster(2, pace=0.1, **settings) as cluster:
        await on_all(cluster, feeds)
        answers = await crowd(cluster, feeds, 6, lambda got: len(got) >= 30)
    assert {len(answer.devices) for answer in answers} == {2}
