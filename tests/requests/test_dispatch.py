"""What can begin is described and sent first; the rest follows, unless it is no longer wanted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.devices.announcements import Announcements
from coordinator.devices.outbox import HOLD_S, Letter, Outbox
from coordinator.devices.pings import ClockEstimate
from coordinator.requests.driver import Driver
from coordinator.tasks.events import Assign, Finished, Send, Submitted
from coordinator.tasks.scheduler import FEW_TASKS, MESSAGE_TASKS, dispatch
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import Infeasible
from tests.requests.sketches import HALVES, WIDTH, A, B, R, direct_chain, scheduler

LONG = direct_chain([HALVES] * 40)
# A program that no device has.
NONE = SimpleNamespace(sha256=None)


def test_small_plan_is_described_at_once() -> None:
    actions = scheduler("a", "b").step(Submitted(R, direct_chain([HALVES] * (FEW_TASKS + 1))))
    assert dispatch(actions) == (actions, [])


def test_of_many_tasks_the_first_are_described_first_and_to_each_device() -> None:
    actions = scheduler("a", "b").step(Submitted(R, LONG))
    now, later = dispatch(actions)
    assert [each.task for each in now if isinstance(each, Assign)] == [0, 1]
    assert [each.task for each in now if isinstance(each, Send)] == [0, 1]
    assert [{each.device for each in part} for part in later] == [{A}, {B}] * 2
    assert [len(part) for part in later] == [MESSAGE_TASKS, MESSAGE_TASKS, 33, 33]
    tasks = [[each.task for part in later[place::2] for each in part] for place in (0, 1)]
    assert tasks == [list(range(2, 80, 2)), list(range(3, 80, 2))]


class Link:
    """A connected device: its messages are taken from its outbox at once."""

    clock = ClockEstimate()

    def __init__(self, device: str, devices: Devices) -> None:
        self.address = f"{device}:1"
        self.programs = self.ready = self
        self.outbox = Outbox(self)
        self.writing = asyncio.create_task(self.write(device, devices))

    def __contains__(self, program: object) -> bool:
        return program is not NONE.sha256

    async def ensure(self, programs, blobs):
        raise Infeasible(cause="its disk is full", cure="make room")

    async def write(self, device: str, devices: Devices) -> None:
        while True:
            items, _ = await self.outbox.next()
            tasks = [item.task.task for item in items if item.HasField("task")]
            fed = [item.tensor.task for item in items if item.HasField("tensor")]
            devices.messages.append((device, tasks, fed))
            for item in items:
                if item.HasField("release"):
                    devices.released.setdefault(device, []).extend(item.release.requests)


class Devices:
    """Takes messages: of each, its device, and the numbers of its tasks and fed tasks; and the
    requests that each device may drop.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, list[int], list[int]]] = []
        self.released: dict[str, list[str]] = {}
        self.links = {device: Link(device, self) for device in (A, B)}

    def connection(self, device):
        return self.links[device]

    get = connection

    async def close(self) -> None:
        for link in self.links.values():
            link.writing.cancel()


@asynccontextmanager
async def begun(graph: TaskGraph):
    """A driver, the devices, and a request that waits for its results; at first none of the tasks
    that are described later is.
    """
    devices = Devices()
    driver = Driver(devices, Announcements())
    driver.devices([A, B])
    request = asyncio.create_task(driver.run(graph, {"t0": np.zeros(WIDTH, np.float32)}, R))
    await asyncio.sleep(0)
    yield driver, devices, request
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await driver.close()
    await devices.close()


@pytest.fixture
async def flying():
    """The same, as soon as the event loop comes to it."""
    async with begun(LONG) as found:
        yield found


async def test_every_task_is_described_once_and_its_inputs_first(flying) -> None:
    _, devices, _ = flying
    await asyncio.sleep(0.05)
    assert devices.messages[:2] == [(A, [0], [0]), (B, [1], [1])]
    described = [task for _, tasks, _ in devices.messages for task in tasks]
    assert sorted(described) == list(range(80))
    assert not any(fed for _, _, fed in devices.messages[2:])


async def test_readers_of_a_task_that_has_ended_are_described() -> None:
    """Devices may be faster than a busy host."""
    # Of a new graph: what is described once is kept.
    async with begun(direct_chain([HALVES] * 40)) as (driver, devices, request):
        for task in (0, 1):
            driver.step(Finished(R, task, 0))
        await asyncio.sleep(0.05)
        assert not request.done()
        described = [task for _, tasks, _ in devices.messages for task in tasks]
        assert sorted(described) == list(range(80))


async def test_tasks_of_a_cancelled_request_are_not_described(flying) -> None:
    _, devices, request = flying
    request.cancel()
    await asyncio.sleep(0.05)
    assert sum(len(tasks) for _, tasks, _ in devices.messages) < len(LONG.tasks)


async def test_tasks_that_left_a_lost_device_are_not_described_to_it(flying) -> None:
    driver, devices, _ = flying
    await asyncio.sleep(0)  # what could begin has left
    before = len(devices.messages)
    driver.devices([A])
    await asyncio.sleep(0.05)
    assert {device for device, tasks, _ in devices.messages[before:] if tasks} == {A}


async def test_a_request_whose_tasks_cannot_be_described_fails(flying, monkeypatch) -> None:
    driver, _, request = flying

    def broken(*_):
        raise RuntimeError("a fault of imbrex")

    monkeypatch.setattr(driver, "_post", broken)
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError):
            await request


async def test_a_device_that_is_set_aside_drops_what_it_has_of_a_request(flying) -> None:
    driver, devices, request = flying
    await asyncio.sleep(0.05)
    driver.devices([A])
    request.cancel()
    await asyncio.sleep(2 * HOLD_S)
    assert devices.released == {A: [R], B: [R]}


async def test_a_program_that_cannot_be_prepared_takes_no_release_with_it(flying) -> None:
    driver, devices, _ = flying
    await asyncio.sleep(0.05)
    driver.release("earlier", [B])
    with pytest.raises(Infeasible):
        await devices.links[B].outbox.post(Letter(programs=[(NONE, None)]))
    await asyncio.sleep(2 * HOLD_S)
    assert devices.released[B] == ["earlier"]
