"""Whoever waits is woken when the machines say so, and leaves nothing when it goes."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from coordinator.control.choice import Choice
from coordinator.costs.devices import Cluster
from coordinator.library.loaded import Library
from coordinator.runtime.controller import Controller
from coordinator.runtime.plan_making import PlanMaker
from coordinator.runtime.planners import planner_of
from coordinator.settings import CoordinatorSettings
from protos.errors import NotFound, Overloaded, Unavailable
from tests.waiting import until


@pytest.fixture
async def controller(tmp_path):
    """Without any device, for one request at a time."""
    async with controlling(tmp_path, max_in_flight=1, max_queue=1, max_wait_s=0.05) as made:
        yield made


@asynccontextmanager
async def controlling(tmp_path, **limits):
    settings = CoordinatorSettings(**limits)
    library = Library(str, tmp_path, 10**9, lambda _: False)
    maker = PlanMaker(library, partial(planner_of, ("ofl",)), None, settings.objective)
    devices = SimpleNamespace(cluster=lambda: Cluster(()), present=list)
    made = Controller(settings, maker, devices, lambda *_: None)
    yield made
    await made.close()


async def test_a_pause_between_two_requests_is_enough_for_who_waits_for_one(controller) -> None:
    had = asyncio.Event()

    async def ask() -> None:
        while not had.is_set():
            async with controller.place():
                await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    await until(lambda: controller.admission.running)
    async with asyncio.timeout(10):
        await controller.idle()
        had.set()
        await asking


async def test_who_does_not_wait_any_longer_leaves_its_place_in_the_queue(controller) -> None:
    async def ask() -> None:
        async with controller.place():
            raise AssertionError("somebody else has the place")

    async with controller.place():
        waiting = asyncio.create_task(ask())
        await until(lambda: controller.admission.waiting)
        with pytest.raises(Overloaded):
            await ask()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert controller.admission.waiting == 0
        # And who waits for too long is told so, though nobody steps for it.
        with pytest.raises(Overloaded):
            await ask()
    assert controller.admission.running == 0


async def test_without_any_device_who_wants_a_plan_is_told_so(controller) -> None:
    with pytest.raises(Unavailable, match="no worker is ready"):
        await controller.current("lenet5")
    assert not controller.is_busy("lenet5")
    assert not controller._works
    assert not controller._asked
    await controller.settled()
    with pytest.raises(NotFound):
        await controller.current("lenet5", Choice("no such strategy"))
    assert not controller.plans.knows("lenet5", Choice("no such strategy"))


async def test_where_requests_always_overlap_room_is_made_for_who_waits(tmp_path) -> None:
    had = asyncio.Event()
    async with controlling(tmp_path, max_in_flight=2, max_queue=4) as controller:

        async def ask() -> None:
            while not had.is_set():
                async with controller.place():
                    await asyncio.sleep(0.02)

        async def shifted() -> None:
            await asyncio.sleep(0.01)
            await ask()

        asking = [asyncio.create_task(ask()), asyncio.create_task(shifted())]
        await until(lambda: controller.admission.running == 2)
        async with asyncio.timeout(10):
            await controller.idle(0.1)
            had.set()
            await asyncio.gather(*asking)
