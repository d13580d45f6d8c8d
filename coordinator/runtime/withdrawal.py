"""Devices that get no more work: taken out by a person, or left out for wrong results.

A device that is drained disappears without anybody noticing: planners leave it out at once, its
plans are replaced, what was begun by them ends where it is, and then nobody asks it for anything.
One in quarantine is dropped at once, as if it were lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from coordinator.execution.driver import Driver
from coordinator.runtime.controller import Controller
from coordinator.runtime.live import LiveCluster
from coordinator.tasks.plan import DeviceId

# What has not ended by then goes on elsewhere: a plan that somebody holds never ends by itself.
PATIENCE_S = 60.0

log = structlog.get_logger(__name__)


class Withdrawal:
    """Takes devices out and back. `changed(cause)` is told when others are to be planned with."""

    def __init__(
        self,
        live: LiveCluster,
        controller: Controller,
        driver: Driver,
        changed: Callable[[str], None],
    ) -> None:
        self._live = live
        self._controller = controller
        self._driver = driver
        self._changed = changed
        self._emptying: dict[DeviceId, asyncio.Task[None]] = {}

    def drain(self, name: str) -> DeviceId:
        """A device (by id or name) gets no more work: it is `draining`, then `drained`.

        Raises:
            NotFound: no such device is ready.
            BadConfiguration: the list of drained devices cannot be written.
        """
        facts = self._live.find(name)
        self._live.aside.drain(facts.id, facts.name)
        log.info("draining device", device=facts.id)
        self._changed(f"{facts.id} is drained")
        if facts.id not in self._emptying:
            self._emptying[facts.id] = asyncio.create_task(self._empty(facts.id))
        return facts.id

    def resume(self, name: str) -> DeviceId:
        """A device, here or away, is used again whatever it was taken out for.

        Raises:
            NotFound: no such device, or it was not taken out.
            BadConfiguration: the list of drained devices cannot be written.
        """
        aside = self._live.aside
        device = aside.find(name) or self._live.find(name).id
        aside.resume(device, time.monotonic())
        log.info("device is resumed", device=device)
        if (emptying := self._emptying.pop(device, None)) is not None:
            emptying.cancel()
        self._changed(f"{device} is resumed")
        return device

    def accuse(self, device: DeviceId, cause: str) -> None:
        """A device gave a wrong result; one too many, and it is in quarantine."""
        seconds = self._live.aside.quarantine.accuse(device, cause, time.monotonic())
        if seconds:
            log.error("device quarantined", device=device, cause=cause, for_s=seconds)
            self._changed(f"{device} is quarantined")
            again = f"{device} is tried again"
            asyncio.get_running_loop().call_later(seconds, self._changed, again)

    def convict(self, device: DeviceId, evidence: str) -> None:
        """A device gave a result that is wrong beyond doubt: it is out until it is resumed."""
        if self._live.aside.quarantine.convict(device, evidence):
            log.error("device quarantined", device=device, evidence=evidence)
            self._driver.distrust(device)
            self._changed(f"{device} is quarantined")

    async def close(self) -> None:
        """Stops waiting; who is drained stays so."""
        for task in self._emptying.values():
            task.cancel()
        await asyncio.gather(*self._emptying.values(), return_exceptions=True)

    async def _empty(self, device: DeviceId) -> None:
        await self._controller.settled()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._driver.released(device)
        self._live.aside.finished(device)
        self._driver.devices(self._live.usable())
        self._emptying.pop(device, None)
        log.info("device is drained", device=device)
