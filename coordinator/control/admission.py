"""Who may be computed now: a cap on requests in flight, on those that wait, and on how long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from types import TracebackType

from protos.errors import Overloaded

# A change of the load or of the plan is believed within a few requests.
_NEWEST_SHARE = 0.3
# Who is told to come back later than this comes back to another load.
MOST_PROMISED_S = 60.0
# Times that are remembered; each is a number.
MOST_PROMISED = 1024
# Retry-After is in whole seconds: who was told a time comes up to one later.
_SOON_S, _LATE_S = 1.0, 1.5


class Throughput:
    """How often requests end while there are any. Pure: it takes `now`."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._paused = False
        self.interval_s = 0.0

    def busy(self, now: float) -> None:
        """The first request after a pause begins."""
        self._since_s, self._paused = now, True

    def ended(self, now: float, in_flight: int) -> None:
        """One of those in flight ended. The first one after a pause shared its time with them."""
        seconds, self._since_s = now - self._since_s, now
        if self._paused:
            seconds, self._paused = seconds / in_flight, False
        if not self.interval_s:
            self.interval_s = seconds
        self.interval_s += _NEWEST_SHARE * (seconds - self.interval_s)


class Admission:
    """An async context manager around each request; first come, first served. Nobody is let in who
    would have to wait for longer than `most_wait_s`, by how fast requests end now.
    """

    def __init__(
        self,
        in_flight: int,
        queue: int,
        most_wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = asyncio.Semaphore(in_flight)
        self._in_flight = in_flight
        self._queue = queue
        self._most_wait_s = most_wait_s
        self._clock = clock
        self._throughput = Throughput()
        self._idle = asyncio.Event()
        self._idle.set()
        self._alone = asyncio.Lock()
        self._promised: deque[float] = deque(maxlen=MOST_PROMISED)
        self.waiting = 0
        self.running = 0

    @property
    def wait_s(self) -> float:
        """How long a request that came now would wait."""
        ahead = self.waiting + self.running - self._in_flight
        return max(0, ahead + 1) * self._throughput.interval_s

    async def __aenter__(self) -> None:
        wait_s, now = self.wait_s, self._clock()
        if self.waiting + self._kept_free(now) >= self._queue or wait_s > self._most_wait_s:
            raise self._overloaded(wait_s, now)
        if self._promised and self._promised[0] <= now:
            self._promised.popleft()
        self.waiting += 1
        try:
            # What ends slower than was to be expected ends the wait, too.
            async with asyncio.timeout(self._most_wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._overloaded(self.wait_s, self._clock()) from None
        finally:
            self.waiting -= 1
        if not self.running:
            self._throughput.busy(self._clock())
        self.running += 1
        self._idle.clear()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:  # refusals and cancelled requests say nothing of the cluster's speed
            self._throughput.ended(self._clock(), self.running)
        self.running -= 1
        self._slots.release()
        if not self.running:
            self._idle.set()

    def _kept_free(self, now: float) -> int:
        """Places that newcomers leave to those who were told to come back soon. While somebody is
        due, whoever comes may be one of them.
        """
        while self._promised and self._promised[0] < now - _LATE_S:
            self._promised.popleft()
        if self._promised and self._promised[0] <= now:
            return 0
        return sum(each <= now + _SOON_S for each in self._promised)

    def _overloaded(self, wait_s: float, now: float) -> Overloaded:
        """Tells everybody another time to come back: the next at which a place becomes free that
        nobody before was promised.
        """
        # When as many have ended as there are too many.
        first_s = now + max(self._throughput.interval_s, wait_s - self._most_wait_s)
        last_s = self._promised[-1] if self._promised else -inf
        promised_s = min(max(first_s, last_s + self._throughput.interval_s), now + MOST_PROMISED_S)
        self._promised.append(max(promised_s, last_s))
        return Overloaded(
            cause=f"{self.waiting} requests are waiting already, about {wait_s:.1f} s",
            cure="Try again later, or send fewer requests at a time.",
            retry_after_s=promised_s - now,
        )

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
