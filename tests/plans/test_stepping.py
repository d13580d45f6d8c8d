"""The plan book is woken when it is due, on the event loop that daemons have, too."""

import asyncio
import time

import pytest
import uvloop

from coordinator.devices.announcements import Announcements
from coordinator.plans.plans import Plans
from coordinator.settings import CoordinatorSettings


class Late:
    """A book that is due at a moment that has passed, so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    @property
    def due_s(self) -> float:
        return time.monotonic() - 1.0 if self.left else float("inf")

    def tick(self, now):
        self.left -= 1
        return []


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_overdue_books_are_woken_at_once_and_may_be_stepped_before(run):
    async def woken() -> int:
        plans = Plans(CoordinatorSettings(), None, None, None, Announcements())
        plans.book = Late(3)
        plans._enter(plans.book.tick(0.0))
        plans._enter(plans.book.tick(0.0))
        await asyncio.sleep(0.05)
        await plans.close()
        return plans.book.left

    assert run(woken()) == 0
