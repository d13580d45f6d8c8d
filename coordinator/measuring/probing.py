"""Probes links one after the other, and asks devices which others they reach."""

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path

import structlog

from coordinator.devices.announcements import Announcements, DevicesChanged
from coordinator.devices.devices import Devices
from coordinator.devices.link_file import save_links
from coordinator.measuring.queues import LinkNews, LinkQueue
from coordinator.requests.admission import Admission
from protos.errors import LostWorker
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)

# By then links are probed, however many requests there are.
MOST_BUSY_S = 30.0


class Probing:
    """Probes when no request is being computed; announces what is new."""

    def __init__(
        self, devices: Devices, admission: Admission, announcements: Announcements, state_dir: Path
    ) -> None:
        self._pool, self._measured = devices.pool, devices.measured
        self._reach = devices.reach
        self._admission = admission
        self._announcements = announcements
        self._state_dir = state_dir
        self._links = LinkQueue()
        self._doubt: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether a probe or a question is pending."""
        return bool(self._tasks)

    @property
    def unprobed(self) -> set[DeviceId]:
        """Devices whose link is being probed, or waits to be."""
        return self._links.unprobed

    def links(self, cause: str, devices: Iterable[DeviceId]) -> None:
        """Begins to measure these links; `cause` is reported when that is done."""
        self._go_on(self._links.want(cause, devices))

    def ask_when_due(self) -> None:
        """Asks the devices which others they reach, if that may have changed."""
        if self._reach.is_due(self._pool.ready()):
            self._start(self._ask())

    async def stop(self) -> None:
        """Stops probes and questions."""
        if self._doubt:
            self._doubt.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_on(self, news: LinkNews) -> None:
        causes, device = news
        if device is not None:
            self._start(self._probe(device))
        for cause in causes:
            # In a thread: an SD card may take seconds to write.
            links = dict(self._measured.links)
            asyncio.get_running_loop().run_in_executor(None, save_links, self._state_dir, links)
            self._announcements.announce(DevicesChanged(cause))

    async def _probe(self, device: DeviceId) -> None:
        await self._admission.idle(MOST_BUSY_S)
        transfers, rate = self._pool.transfers, 0.0
        try:
            await self._measured.probe(device, self._pool.connection(device))
            rate = self._measured.link(device).bytes_per_s
        except LostWorker:
            pass  # the link is probed when the device comes back
        except Exception:
            log.exception("a link cannot be probed", device=device)
        disturbed = transfers != self._pool.transfers
        self._go_on(self._links.probed(rate, disturbed=disturbed))

    async def _ask(self) -> None:
        if await self._reach.ask(self._pool.ready()):
            cause = "devices can or cannot reach each other now"
            self._announcements.announce(DevicesChanged(cause))
        if self._doubt:
            self._doubt.cancel()
        if self._reach.apart:
            self._doubt = asyncio.get_running_loop().call_later(
                self._reach.doubt_s, self.ask_when_due
            )
