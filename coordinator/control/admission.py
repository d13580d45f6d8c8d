"""Admission of requests: caps on those in flight, those waiting, and the time they wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

from coordinator.control import actions, events
from coordinator.control.actions import Action
from coordinator.control.events import Event, Ticket
from coordinator.control.machine import ControlMachine
from protos.errors import Overloaded

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


class Admission(ControlMachine):
    """Admits requests in order of arrival. A request that would have to wait for longer than
    `most_wait_s`, at the present throughput, is refused: `Arrived` raises `Overloaded`.
    """

    def __init__(self, in_flight: int, queue: int, most_wait_s: float) -> None:
        self._in_flight = in_flight
        self._queue = queue
        self._most_wait_s = most_wait_s
        self._throughput = Throughput()
        # Waiting requests in order of arrival: when their wait ends, and how many places each
        # needs.
        self._waiting: dict[Ticket, tuple[float, int]] = {}
        self._running: dict[Ticket, int] = {}
        self._promised: deque[float] = deque(maxlen=MOST_PROMISED)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return len(self._running)

    @property
    def wait_s(self) -> float:
        """How long a request that came now would wait."""
        ahead = self.waiting + self.running - self._in_flight
        return max(0, ahead + 1) * self._throughput.interval_s

    @property
    def due_s(self) -> float:
        """When the first of the waiting requests has waited for too long."""
        return min((until_s for until_s, _ in self._waiting.values()), default=inf)

    def _react(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case events.Arrived(ticket, alone=True):
                self._waiting[ticket] = inf, self._in_flight
            case events.Arrived(ticket):
                self._require_room(now)
                self._waiting[ticket] = now + self._most_wait_s, 1
            case events.Left(ticket, answered):
                self._leave(ticket, now, answered=answered)
            case events.Tick():
                # Requests that were admitted to the queue may still time out if throughput falls.
                for ticket in [each for each, (s, _) in self._waiting.items() if s <= now]:
                    del self._waiting[ticket]
                    yield actions.Refuse(ticket, self._overloaded(self.wait_s, now))
        yield from self._let_in(now)

    def _let_in(self, now: float) -> Iterator[Action]:
        for ticket, (_, places) in list(self._waiting.items()):
            if sum(self._running.values()) + places > self._in_flight:
                return
            del self._waiting[ticket]
            if not self._running:
                self._throughput.busy(now)
            self._running[ticket] = places
            yield actions.Start(ticket)

    def _leave(self, ticket: Ticket, now: float, *, answered: bool) -> None:
        self._waiting.pop(ticket, None)
        # Refused and cancelled requests say nothing about the cluster's speed.
        if answered and ticket in self._running:
            self._throughput.ended(now, self.running)
        self._running.pop(ticket, None)

    def _require_room(self, now: float) -> None:
        wait_s = self.wait_s
        if self.waiting + self._kept_free(now) >= self._queue or wait_s > self._most_wait_s:
            raise self._overloaded(wait_s, now)
        if self._promised and self._promised[0] <= now:
            self._promised.popleft()

    def _kept_free(self, now: float) -> int:
        """Places in the queue that are reserved for clients that were told to come back about now.
        Once one is due, any newcomer may be that client, and nothing is reserved.
        """
        while self._promised and self._promised[0] < now - _LATE_S:
            self._promised.popleft()
        if self._promised and self._promised[0] <= now:
            return 0
        return sum(each <= now + _SOON_S for each in self._promised)

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
