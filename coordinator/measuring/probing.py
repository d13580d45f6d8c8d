"""Links are measured in peace, one after the other, and devices asked whom they reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from coordinator.cluster.connection import Connection
from coordinator.cluster.reach import Reach
from coordinator.measuring.measured import Measured
from coordinator.tasks.plan import DeviceId
from protos.errors import LostWorker

# A link is measured until two probes in a row agree that nothing disturbed, so often at most: not
# requests or weights, nor processes that are still starting beside either end.
PROBES_AT_MOST = 6
AGREE = 1.1

Connections = Mapping[DeviceId, Connection]


class Probing:
    """`idle` returns when no request is computed; `changed(cause)` is called after news."""

    def __init__(
        self,
        measured: Measured,
        reach: Reach,
        idle: Callable[[], Awaitable[None]],
        changed: Callable[[str], None],
    ) -> None:
        self._measured = measured
        self._reach = reach
        self._idle = idle
        self._changed = changed
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent = 0

    @property
    def busy(self) -> bool:
        """Whether anything is to be probed or asked."""
        return bool(self._tasks)

    def sent(self) -> None:
        """Something begins or ends to be sent: it disturbs a probe."""
        self._sent += 1

    def links(self, cause: str, connections: Connections) -> None:
        """Begins to measure these links; `cause` is the news afterwards."""
        self._measured.unprobed |= connections.keys()
        self._start(self._probe(cause, connections))

    def ask_when_due(self, connections: Connections) -> None:
        """Begins to ask whom the devices reach, where that may have changed."""
        if self._reach.is_due(connections):
            self._start(self._ask(connections))

    async def stop(self) -> None:
        """Ends what was begun."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe(self, cause: str, connections: Connections) -> None:
        """One at a time: probes in parallel would measure each other."""
        async with self._one_at_a_time:
            for device, connection in connections.items():
                await self._until_two_agree(device, connection)
                self._measured.unprobed.discard(device)
        self._changed(cause)

    async def _until_two_agree(self, device: DeviceId, connection: Connection) -> None:
        before = 0.0
        for _ in range(PROBES_AT_MOST):
            await self._idle()
            sent = self._sent
            try:
                await self._measured.probe(device, connection)
            except LostWorker:
                return
            if sent != self._sent:
                before = 0.0
                continue
            rate = self._measured.link(device).bytes_per_s
            if before / AGREE <= rate <= before * AGREE:
                return
            before = rate

    async def _ask(self, connections: Connections) -> None:
        if await self._reach.ask(connections):
            self._changed("devices reach each other, or no longer do")
