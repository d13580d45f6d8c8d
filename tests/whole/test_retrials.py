"""A device that was slow and is fast again gets work again."""

import asyncio
import math

from coordinator.costs.corrections import Correction, Corrections
from coordinator.devices.announcements import DevicesChanged
from coordinator.measuring import queues
from coordinator.service import Coordinator
from tests.devices.support import worker_process
from tests.whole.cluster import assert_right, coordinator, question

MODEL = "digits"


async def until_used(host: Coordinator, devices: int) -> None:
    """Asks until so many devices compute an answer; all answers are right."""
    feeds, whole = question(MODEL)
    async with asyncio.timeout(120):
        while True:
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            if len(answer.devices) == devices:
                return


async def test_a_device_that_is_fast_again_is_used_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(queues, "FIRST_S", 1.0)
    async with (
        worker_process(tmp_path / "one", PACE="0.1") as one,
        worker_process(tmp_path / "other", PACE="0.1") as other,
        coordinator(tmp_path / "host", [one.address, other.address], "ofl") as host,
    ):
        await until_used(host, 2)
        # As after minutes in which its tasks took twenty times as long.
        slow = Corrections({other.id: Correction(math.log(20), observations=9)})
        monkeypatch.setattr(host.devices.measured, "_corrections", slow)
        host._announcements.announce(DevicesChanged("a device is slow"))
        await until_used(host, 1)
        await until_used(host, 2)
