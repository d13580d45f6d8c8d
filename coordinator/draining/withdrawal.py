"""Takes devices out of use, and back: what follows from `devices.withheld`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf

import structlog

from coordinator.devices.devices import LiveCluster
from coordinator.plans.controller import Controller
from coordinator.requests.driver import Driver
from protos.errors import ImbrexError, NotFound
from protos.wire.facts import DeviceId

# How often the list of devices set aside is looked at.
_LOOK_S = 0.5
# When a quarantine that could not be recorded is tried again.
_AGAIN_S = 5.0

log = structlog.get_logger(__name__)


class Withdrawal:
    """Takes devices out of use and back. `changed(cause)` is called when plans must be made
    again.
    """

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
        # Devices on the lists when they were last looked at.
        self._drained: set[DeviceId] = set()
        self._quarantined: set[DeviceId] = set()
        # What is ordered of a device is listed in this order.
        self._listing = asyncio.Lock()
        self._recording: set[asyncio.Task[None]] = set()
        # Quarantines that are not on the list yet, with their evidence.
        self._unrecorded: dict[DeviceId, str] = {}
        self._again_s = 0.0

    async def follow(self) -> None:
        """Sets devices aside and resumes them as the list says, which other coordinators of the
        cluster change, too; until cancelled.
        """
        listed = self._live.withheld_list
        while True:
            try:
                drained, quarantined = listed.drained(), listed.quarantined()
            except ImbrexError as error:
                log.error("the devices set aside cannot be read", cause=error.cause)
            else:
                were_drained, self._drained = self._drained, set(drained)
                were_wrong, self._quarantined = self._quarantined, set(quarantined)
                for device in self._drained - were_drained:
                    self._drain(device, drained[device])
                for device in self._quarantined - were_wrong:
                    self.wrong(device, quarantined[device], proven=True)
                for device in (were_drained | were_wrong) - self._drained - self._quarantined:
                    self._resumed(device)
            self._expire()
            if self._unrecorded and time.monotonic() >= self._again_s:
                self._record_all()
            await asyncio.sleep(_LOOK_S)

    async def drain(self, name: str) -> DeviceId:
        """Gives a device (by id or name) no more work: it is `draining`, then `drained`.

        Raises:
            NotFound: no such device is ready.
            BadConfiguration, Unavailable: the list of devices set aside cannot be changed.
        """
        facts = self._live.find(name)
        async with self._listing:
            await asyncio.to_thread(self._live.withheld_list.drain, facts.id, facts.name)
        self._drained.add(facts.id)
        self._drain(facts.id, facts.name)
        return facts.id

    async def resume(self, name: str) -> DeviceId:
        """Uses a device again, connected or not, for whatever reason it was set aside.

        Raises:
            NotFound: no such device, or it was not set aside.
            BadConfiguration, Unavailable: the list of devices set aside cannot be changed.
        """
        withheld = self._live.withheld
        now = time.monotonic()
        by_id = DeviceId(name) if withheld.of(DeviceId(name), now) is not None else None
        device = by_id or withheld.find(name) or self._live.find(name).id
        if withheld.of(device, now) is None:
            raise NotFound(
                cause=f"device {device} is neither drained nor in quarantine",
                cure="See `imbrex status`",
            )
        async with self._listing:
            await asyncio.to_thread(self._live.withheld_list.resume, device)
        self._drained.discard(device)
        self._quarantined.discard(device)
        self._unrecorded.pop(device, None)
        self._resumed(device)
        return device

    def _resumed(self, device: DeviceId) -> None:
        if self._live.withheld.of(device, time.monotonic()) is not None:
            log.info("device resumed", device=device)
            self._stop_waiting(device)
            self._live.withheld.resume(device)
            self._changed(f"{device} is resumed")

    def wrong(self, device: DeviceId, cause: str, *, proven: bool = False) -> None:
        """A device gave a wrong result. After several it is quarantined for a while; if one is
        `proven` wrong, until it is resumed.
        """
        seconds = self._live.withheld.wrong(device, cause, time.monotonic(), proven=proven)
        if not seconds:
            return
        if seconds < inf:
            log.error("device quarantined", device=device, cause=cause, for_s=seconds)
        else:
            log.error("device quarantined", device=device, evidence=cause)
            self._driver.distrust(device)
            if device not in self._quarantined:  # else another coordinator may take it off the list
                self._unrecorded[device] = cause
                self._record_all()
        self._changed(f"{device} is quarantined")

    async def close(self) -> None:
        """Stops waiting; drained devices stay drained."""
        for task in self._emptying.values():
            task.cancel()
        await asyncio.gather(*self._emptying.values(), *self._recording, return_exceptions=True)

    def _drain(self, device: DeviceId, name: str) -> None:
        if self._live.withheld.drain(device, name):
            log.info("draining device", device=device)
            self._changed(f"{device} is drained")
            self._emptying[device] = asyncio.create_task(self._empty(device))

    def _expire(self) -> None:
        """Ends the patience with draining devices, and quarantines, whose time has come."""
        finished, back = self._live.withheld.tick(time.monotonic())
        for device in finished:
            self._stop_waiting(device)
            self._drained_now(device)
        for device in back:
            self._changed(f"{device} is tried again")

    def _drained_now(self, device: DeviceId) -> None:
        """A device gets nothing more; what still runs there moves elsewhere."""
        self._driver.devices(self._live.usable())
        log.info("device drained", device=device)

    def _record_all(self) -> None:
        self._again_s = time.monotonic() + _AGAIN_S
        for device in self._unrecorded:
            recording = asyncio.create_task(self._record(device))
            self._recording.add(recording)
            recording.add_done_callback(self._recording.discard)

    async def _record(self, device: DeviceId) -> None:
        """Has the device stay out after a restart, and at the other coordinators."""
        async with self._listing:
            evidence = self._unrecorded.get(device)
            if evidence is None:
                return  # recorded, or resumed
            try:
                await asyncio.to_thread(self._live.withheld_list.quarantine, device, evidence)
            except ImbrexError as error:
                log.error("the quarantine is not recorded", device=device, cause=error.cause)
                return
            self._unrecorded.pop(device, None)
            self._quarantined.add(device)

    async def _empty(self, device: DeviceId) -> None:
        """Waits until a draining device has finished."""
        await self._controller.settled()
        self._live.withheld.replanned(device, time.monotonic())
        await self._driver.released(device)
        del self._emptying[device]
        if self._live.withheld.emptied(device):
            self._drained_now(device)

    def _stop_waiting(self, device: DeviceId) -> None:
        if (emptying := self._emptying.pop(device, None)) is not None:
            emptying.cancel()
