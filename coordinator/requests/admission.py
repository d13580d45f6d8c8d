"""Admission of requests: caps on those in flight, those waiting, and the time they wait.

`AdmissionQueue` decides, and `Admission` waits. Each request has a ticket of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from math import inf
from typing import NewType

from protos.errors import Overloaded

PlaceTicket = NewType("PlaceTicket", int)

# A change of load or plan shows in the estimate within a few requests.
_NEWEST_SHARE = 0.3
# Later than this the load will be another one: no promise reaches further.
MOST_PROMISED_S = 60.0
# Promised times that are remembered; each is one number.
MOST_PROMISED = 1024
# Retry-After is in whole seconds, so a client comes up to one second after its promised time.
_SOON_S, _LATE_S = 1.0, 1.5


class Throughput:
    """Mean interval between the ends of requests while any are in flight."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._paused = False
        self.interval_s = 0.0

    def busy(self, now: float) -> None:
        """The first request after a pause begins."""
        self._since_s, self._paused = now, True

    def ended(self, now: float, in_flight: int) -> None:
        """One of those in flight ended. The first after a pause ran beside them, so its time is
        shared.
        """
        seconds, self._since_s = now - self._since_s, now
        if self._paused:
            seconds, self._paused = seconds / in_flight, False
        if not self.interval_s:
            self.interval_s = seconds
        self.interval_s += _NEWEST_SHARE * (seconds - self.interval_s)


class AdmissionQueue:
    """Admits requests in order of arrival. A request that would have to wait for longer than
    `most_wait_s`, at the present throughput, is refused. `now` is in seconds of one clock. What
    admits requests returns their tickets.
    """

    def __init__(self, in_flight: int, queue: int, most_wait_s: float) -> None:
        self._in_flight = in_flight
        self._queue = queue
        self._most_wait_s = most_wait_s
        self._throughput = Throughput()
        # Waiting requests in order of arrival: when their wait ends, and how many places each
        # needs.
        self._waiting: dict[PlaceTicket, tuple[float, int]] = {}
        # Requests that have a place, and how many.
        self.running: dict[PlaceTicket, int] = {}
        self._promised: deque[float] = deque(maxlen=MOST_PROMISED)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def wait_s(self) -> float:
        """How long a request that came now would wait."""
        ahead = len(self._waiting) + len(self.running) - self._in_flight
        return max(0, ahead + 1) * self._throughput.interval_s

    def waits_until_s(self, ticket: PlaceTicket) -> float | None:
        """When a request will have waited for too long; None if it does not wait."""
        return self._waiting[ticket][0] if ticket in self._waiting else None

    def arrive(self, ticket: PlaceTicket, now: float, *, alone: bool = False) -> list[PlaceTicket]:
        """A request wants a place; one that wants to be `alone` waits until it can have all.

        Raises:
            Overloaded: it would wait for too long.
        """
        if alone:
            self._waiting[ticket] = inf, self._in_flight
            return self._let_in(now)
        # Places in the queue are reserved for clients that were told to come back about now. Once
        # one is due, any newcomer may be that client, and nothing is reserved.
        while self._promised and self._promised[0] < now - _LATE_S:
            self._promised.popleft()
        is_due = bool(self._promised) and self._promised[0] <= now
        reserved = (
            0 if is_due else sum(promised_s <= now + _SOON_S for promised_s in self._promised)
        )
        wait_s = self.wait_s
        if len(self._waiting) + reserved >= self._queue or wait_s > self._most_wait_s:
            raise self._overloaded(wait_s, now)
        if is_due:
            self._promised.popleft()
        self._waiting[ticket] = now + self._most_wait_s, 1
        return self._let_in(now)

    def leave(
        self, ticket: PlaceTicket, now: float, *, answered: bool = False
    ) -> list[PlaceTicket]:
        """A request is `answered`, has failed, or does not wait any longer."""
        self._waiting.pop(ticket, None)
        # Refused and cancelled requests say nothing about the cluster's speed.
        if answered and ticket in self.running:
            self._throughput.ended(now, len(self.running))
        self.running.pop(ticket, None)
        return self._let_in(now)

    def expire(self, ticket: PlaceTicket, now: float) -> Overloaded:
        """Ends the wait of a request that has waited for too long, since the throughput fell."""
        del self._waiting[ticket]
        return self._overloaded(self.wait_s, now)

    def _let_in(self, now: float) -> list[PlaceTicket]:
        admitted: list[PlaceTicket] = []
        for ticket, (_, places) in list(self._waiting.items()):
            if sum(self.running.values()) + places > self._in_flight:
                break
            del self._waiting[ticket]
            if not self.running:
                self._throughput.busy(now)
            self.running[ticket] = places
            admitted.append(ticket)
        return admitted

    def _overloaded(self, wait_s: float, now: float) -> Overloaded:
        """The refusal, with a time to come back that nobody else was given: the next at which a
        place is expected to be free.
        """
        # By then as many requests have ended as there are too many now.
        first_s = now + max(self._throughput.interval_s, wait_s - self._most_wait_s)
        last_s = self._promised[-1] if self._promised else -inf
        promised_s = min(max(first_s, last_s + self._throughput.interval_s), now + MOST_PROMISED_S)
        self._promised.append(max(promised_s, last_s))
        return Overloaded(
            cause=f"{self.waiting} requests are already waiting, for about {wait_s:.1f} s",
            cure="Try again later, or send fewer requests at a time.",
            retry_after_s=promised_s - now,
        )


class Admission:
    """Waits for places of an `AdmissionQueue`."""

    def __init__(self, in_flight: int, queue: int, most_wait_s: float) -> None:
        self._queue = AdmissionQueue(in_flight, queue, most_wait_s)
        self._tickets = map(PlaceTicket, count(1))
        self._admitted: dict[PlaceTicket, asyncio.Future[None]] = {}
        self._idle = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return self._queue.waiting

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return len(self._queue.running)

    @asynccontextmanager
    async def place(self, *, alone: bool = False) -> AsyncIterator[None]:
        """A place for the duration of a request; `alone`: nothing else is computed meanwhile.

        Raises:
            Overloaded: it would wait for too long.
        """
        ticket, answered = next(self._tickets), False
        try:
            admitted = self._queue.arrive(ticket, time.monotonic(), alone=alone)
            self._start(admitted)
            if ticket not in admitted:
                await self._wait(ticket)
            yield
            answered = not alone
        finally:
            self._start(self._queue.leave(ticket, time.monotonic(), answered=answered))
            if not self._queue.running:
                # A task that waits for idleness gets this moment, even if the next request is here
                # already.
                self._idle.set()
                self._idle.clear()

    async def idle(self, most_s: float = inf) -> None:
        """Returns when no request is being computed. If requests overlap for longer than `most_s`,
        later ones wait until those before them are answered.
        """
        if not self.running:
            return
        try:
            async with asyncio.timeout(None if most_s == inf else most_s):
                await self._idle.wait()
        except TimeoutError:
            async with self.place(alone=True):
                pass

    async def _wait(self, ticket: PlaceTicket) -> None:
        admitted = self._admitted[ticket] = asyncio.get_running_loop().create_future()
        until_s = self._queue.waits_until_s(ticket)
        try:
            async with asyncio.timeout_at(None if until_s == inf else until_s):
                await admitted
        except TimeoutError:
            if self._queue.waits_until_s(ticket) is not None:  # it was not admitted just now
                raise self._queue.expire(ticket, time.monotonic()) from None
        finally:
            del self._admitted[ticket]

    def _start(self, tickets: Sequence[PlaceTicket]) -> None:
        """A request that was cancelled just now gives its place back as it leaves."""
        for ticket in tickets:
            admitted = self._admitted.get(ticket)
            if admitted is not None and not admitted.done():
                admitted.set_result(None)
