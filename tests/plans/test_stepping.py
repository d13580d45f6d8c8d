"""Machines are woken when they are due, on the event loop that daemons have, too."""

import asyncio
import time

import pytest
import uvloop

from coordinator.devices.announcements import Announcements
from coordinator.plans.controller import Controller
from coordinator.plans.events import Tick
from coordinator.plans.machine import ControlMachine
from coordinator.settings import CoordinatorSettings


class Late(ControlMachine):
    """Due at a moment that has passed, so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    @property
    def due_s(self) -> float:
        return time.monotonic() - 1.0 if self.left else float("inf")

    def _react(self, event, now):
        if isinstance(event, Tick):
            self.left -= 1
        yield from ()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_what_is_due_already_is_woken_at_once_and_may_be_stepped_before(run):
    async def woken() -> int:
        machine = Late(3)
        controller = Controller(CoordinatorSettings(), None, None, Announcements())
        controller._step(Tick(), machine)
        controller._step(Tick(), machine)
        await asyncio.sleep(0.05)
        await controller.close()
        return machine.left

    assert run(woken()) == 0
