"""Who may be computed now: a cap on requests in flight, and on those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from protos.errors import Unavailable


class Admission:
    """An async context manager around each request; first come, first served."""

    def __init__(self, in_flight: int, queue: int) -> None:
        self._slots = asyncio.Semaphore(in_flight)
        self._in_flight = in_flight
        self._queue = queue
        self._idle = asyncio.Event()
        self._idle.set()
        self._alone = asyncio.Lock()
        self.waiting = 0
        self.running = 0

    async def __aenter__(self) -> None:
        if self.waiting >= self._queue:
            raise Unavailable(
                cause=f"{self.waiting} requests are waiting already",
                cure="Try again in a moment, or send fewer requests at a time.",
            )
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self._idle.clear()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.running -= 1
        self._slots.release()
        if not self.running:
            self._idle.set()

    async def idle(self) -> None:
        """Returns when no request is being computed."""
        await self._idle.wait()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Alone on the cluster: waits until nothing is in flight and lets nothing start."""
        taken = 0
        async with self._alone:
            try:
                for _ in range(self._in_flight):
                    await self._slots.acquire()
                    taken += 1
                yield
            finally:
                for _ in range(taken):
                    self._slots.release()
