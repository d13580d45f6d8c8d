"""What requests that are in flight at a time know of each other."""

import asyncio
from dataclasses import replace

from coordinator.execution.flight import Flight
from coordinator.tasks.plan import Block, Tile
from coordinator.tasks.timeline import TaskTimes, Timeline
from tests.execution.sketches import HALVES, A, B, C, chain


def flight(*devices: str) -> Flight:
    """A request over these devices, each of which has computed a task."""
    graph = chain([HALVES])
    block = Block(0, 1, tuple(Tile(device, {}) for device in devices))  # type: ignore[arg-type]
    graph = replace(graph, plan=replace(graph.plan, blocks=(block,)))
    made = Flight(graph, {}, asyncio.get_running_loop().create_future(), Timeline(0.0))
    for task, device in enumerate(devices):
        made.computed(TaskTimes(task, 0, device, 1.0, 1.0, 2.0), 0)
    return made


async def test_devices_that_two_requests_use_are_shared_by_both() -> None:
    one, two, alone = flight(A, B), flight(B, C), flight(A, B)
    one.meet(two)
    assert [each.shared for each in one.times] == [False, True]
    assert [each.shared for each in two.times] == [True, False]
    assert not any(each.shared for each in alone.times)
