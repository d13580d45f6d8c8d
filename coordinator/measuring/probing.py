"""Probes links one after the other, and asks devices which others they reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

import structlog

from coordinator.devices.measured import DeviceMeasurements
from coordinator.devices.peer_reachability import Reach
from coordinator.devices.pool import Pool
from coordinator.measuring.queues import LinkNews, LinkQueue
from coordinator.requests.admission import Admission
from protos.errors import LostWorker
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)

# By then links are probed, however many requests there are.
MOST_BUSY_S = 30.0


class Probing:
    """Probes when no request is being computed; `changed(cause)` is called after news."""

    def __init__(
        self,
        pool: Pool,
        measured: DeviceMeasurements,
        reach: Reach,
        admission: Admission,
        changed: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._measured = measured
        self._reach = reach
        self._admission = admission
        self._changed = changed
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
            self._changed(cause)

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
            self._changed("devices can or cannot reach each other now")
        if self._doubt:
            self._doubt.cancel()
        if self._reach.apart:
            self._doubt = asyncio.get_running_loop().call_later(
                self._reach.doubt_s, self.ask_when_due
            )
