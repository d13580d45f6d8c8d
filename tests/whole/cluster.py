"""A coordinator in this process and workers in processes of their own, for tests that harm them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np

from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.runs import RunPhase
from models.catalogue.catalogue import load
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from tests.waiting import until

Feeds = dict[str, np.ndarray]


def question(model: str, inputs: Callable[[Graph], Feeds] = random_inputs) -> tuple[Feeds, Feeds]:
    """An input and the whole model's answer."""
    proto = load(model).proto
    feeds = inputs(load_graph(proto))
    return feeds, WholeModel(proto, 1).run(feeds)


def assert_right(answer, whole: Feeds) -> None:
    assert compare(answer.outputs, whole).max_rel_error <= 1e-5


@contextlib.asynccontextmanager
async def coordinator(
    state: Path,
    addresses: list[str],
    strategy: str = "ofl",
    at_least: int = 0,
    **changes: object,
) -> AsyncIterator[Coordinator]:
    """Serves nothing yet; all of the workers (or `at_least` so many) are ready."""
    settings = CoordinatorSettings(
        state_dir=state,
        workers=tuple(addresses),
        models=(),
        strategy=strategy,
        host_computes=False,
        **({"profile": False, "mdns": False, "share_port": 0} | changes),
    )
    made = Coordinator(settings)
    await made.start()
    try:
        await until(lambda: ready(made) >= (at_least or len(addresses)))
        yield made
    finally:
        await made.stop()


def ready(of: Coordinator) -> int:
    return sum(device.state == "ready" for device in of.device_statuses())


async def settled(host: Coordinator) -> None:
    """Exams and audits that were begun have ended."""
    await until(lambda: not host.auditor._at_work and not host.examiner._at_work)


def state_of(of: Coordinator, device: str) -> str:
    """Empty where the device is not known."""
    return next((each.state for each in of.device_statuses() if each.id == device), "")


def running(of: Coordinator) -> set[str]:
    """Devices that compute something now."""
    return {
        attempt.device
        for run in of.requests.scheduler.requests.values()
        for task in run.tasks
        if task.phase is RunPhase.RUNNING
        for attempt in task.attempts.values()
    }


def plan_devices(of: Coordinator, model: str) -> tuple[str, ...]:
    graph = of.plans.book.graph(model)
    return graph.plan.devices if graph else ()
