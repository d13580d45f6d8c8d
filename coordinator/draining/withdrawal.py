"""Takes devices out of use, and back: what follows from `devices.withheld`."""

import asyncio
import time

import structlog

from coordinator.audit.verdict import Verdict
from coordinator.devices.devices import Devices
from coordinator.measuring.after_answer import AfterAnswer
from coordinator.plans.plans import Plans
from coordinator.requests.driver import Driver
from coordinator.requests.journal import Journal
from protos.errors import ImbrexError, NotFound
from protos.wire.facts import DeviceId

# How often the list of devices set aside is looked at.
_LOOK_S = 0.5
# When a quarantine that could not be recorded is tried again.
_AGAIN_S = 5.0

log = structlog.get_logger(__name__)


class Withdrawal:
    """Takes devices out of use and back."""

    def __init__(
        self,
        devices: Devices,
        plans: Plans,
        driver: Driver,
        after_answer: AfterAnswer,
        journal: Journal,
    ) -> None:
        self._devices = devices
        self._after_answer = after_answer
        self._journal = journal
        self._plans = plans
        self._driver = driver
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
        listed = self._devices.withheld_list
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
                # What is being recorded here is known.
                for device in self._quarantined - were_wrong - self._unrecorded.keys():
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
        facts = self._devices.pool.find(name).facts
        async with self._listing:
            await asyncio.to_thread(self._devices.withheld_list.drain, facts.id, facts.name)
        self._drained.add(facts.id)
        self._drain(facts.id, facts.name)
        return facts.id

    async def resume(self, name: str) -> DeviceId:
        """Uses a device again, connected or not, for whatever reason it was set aside.

        Raises:
            NotFound: no such device, or it was not set aside.
            BadConfiguration, Unavailable: the list of devices set aside cannot be changed.
        """
        withheld = self._devices.withheld
        now = time.monotonic()
        by_id = DeviceId(name) if withheld.of(DeviceId(name), now) is not None else None
        device = by_id or withheld.find(name) or self._devices.pool.find(name).facts.id
        if withheld.of(device, now) is None:
            raise NotFound(
                cause=f"device {device} is neither drained nor in quarantine",
                cure="See `imbrex status`",
            )
        async with self._listing:
            await asyncio.to_thread(self._devices.withheld_list.resume, device)
        self._drained.discard(device)
        self._quarantined.discard(device)
        self._unrecorded.pop(device, None)
        self._resumed(device)
        return device

    def _resumed(self, device: DeviceId) -> None:
        if self._devices.withheld.of(device, time.monotonic()) is not None:
            log.info("device resumed", device=device)
            self._stop_waiting(device)
            self._devices.withheld.resume(device)
            self.devices_changed(f"{device} is resumed")

    def wrong(self, device: DeviceId, cause: str, *, proven: bool = False) -> None:
        """A device gave a wrong result. After several it is quarantined for a while; if one is
        `proven` wrong, until it is resumed: requests that it takes part in start again, and answers
        that it took part in are doubted.
        """
        seconds = self._devices.withheld.wrong(device, cause, time.monotonic(), proven=proven)
        if seconds and proven:
            log.error("device quarantined", device=device, evidence=cause)
            self._driver.distrust(device)
        elif seconds:
            log.error("device quarantined", device=device, cause=cause, for_s=seconds)
        if seconds:
            self.devices_changed(f"{device} is quarantined")
        if not proven:
            return
        self._after_answer.settle()
        self._journal.doubt(device)
        if seconds and device not in self._quarantined:
            # Else it is on the list already, from which another coordinator may take it.
            self._unrecorded[device] = cause
            self._record_all()

    def devices_changed(self, cause: str) -> None:
        """Requests leave the devices that may not compute any more, and plans are made for those
        that may.
        """
        now = time.monotonic()
        self._driver.devices(self._devices.usable(now))
        self._plans.devices_changed(cause, now)

    def judged(self, verdict: Verdict) -> None:
        """An audit or an exam has computed a task again."""
        if verdict.wrong:
            self.wrong(verdict.device, str(verdict), proven=True)

    async def close(self) -> None:
        """Stops waiting; drained devices stay drained."""
        for task in self._emptying.values():
            task.cancel()
        await asyncio.gather(*self._emptying.values(), *self._recording, return_exceptions=True)

    def _drain(self, device: DeviceId, name: str) -> None:
        if self._devices.withheld.drain(device, name):
            log.info("draining device", device=device)
            self.devices_changed(f"{device} is drained")
            self._emptying[device] = asyncio.create_task(self._empty(device))

    def _expire(self) -> None:
        """Ends the patience with draining devices, and quarantines, whose time has come."""
        finished, back = self._devices.withheld.tick(time.monotonic())
        for device in finished:
            self._stop_waiting(device)
            self._drained_now(device)
        for device in back:
            self.devices_changed(f"{device} is tried again")

    def _drained_now(self, device: DeviceId) -> None:
        """A device gets nothing more; what still runs there moves elsewhere."""
        self._driver.devices(self._devices.usable())
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
                await asyncio.to_thread(self._devices.withheld_list.quarantine, device, evidence)
            except ImbrexError as error:
                log.error("the quarantine is not recorded", device=device, cause=error.cause)
                return
            self._unrecorded.pop(device, None)
            self._quarantined.add(device)

    async def _empty(self, device: DeviceId) -> None:
        """Waits until a draining device has finished."""
        await self._plans.settled()
        self._devices.withheld.replanned(device, time.monotonic())
        await self._driver.released(device)
        del self._emptying[device]
        if self._devices.withheld.emptied(device):
            self._drained_now(device)

    def _stop_waiting(self, device: DeviceId) -> None:
        if (emptying := self._emptying.pop(device, None)) is not None:
            emptying.cancel()
