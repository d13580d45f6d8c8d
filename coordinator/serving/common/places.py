"""Places for bodies: limits on the memory for what clients send, in total and per caller.

A body gets its place before any of it is read, for the length that it announces. If there is no
room it waits for a little while; a sender slower than the minimum keeps its place only while nobody
else needs it. One caller gets at most half of the room, so it never locks out others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protos.daemon.heap import Rest
from protos.errors import Unavailable

# The window for a sender's speed: Wi-Fi in a far room pauses for seconds.
WINDOW_S = 5.0
# Longer than it takes to notice a slow sender and end its body.
WAIT_S = 8.0
# How often those who wait check whether another sender has become slow.
LOOK_S = 0.25
# Waiting bodies; each is a task and a connection that is not being read.
MOST_WAITING = 256
# One caller's share of all bytes and of all bodies.
CALLER_SHARE = 0.5
_MARK_S = WINDOW_S / 10


@dataclass(slots=True, eq=False)
class Place:
    """The room of one body. `end` is called once if another body needs it."""

    caller: str
    size_bytes: int
    end: Callable[[], None]
    complete: bool = False
    ended: bool = False
    _come_bytes: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def come(self, count_bytes: int, now: float) -> None:
        """Another piece has arrived."""
        self._come_bytes += count_bytes
        if not self._marks or now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, self._come_bytes))
        self._forget(now)

    def bytes_per_s(self, now: float) -> float:
        """Its speed over the window; infinite while it is too new to be judged."""
        self._forget(now)
        since_s, before = self._marks[0] if self._marks else (now, 0)
        if self.complete or now - since_s < WINDOW_S:
            return float("inf")
        return (self._come_bytes - before) / (now - since_s)

    def _forget(self, now: float) -> None:
        """Keeps only the marks within the window, and one before."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()


class Places:
    """The places of one interface."""

    def __init__(
        self,
        most_bytes: int,
        most_bodies: int,
        floor_bytes_per_s: float,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._most_bodies = most_bodies
        self._floor_bytes_per_s = floor_bytes_per_s
        self._wait_s = wait_s
        self._clock = clock
        self._held: list[Place] = []
        self._waiting = 0
        self._freed = asyncio.Event()
        self._rest = Rest()

    @property
    def held_bytes(self) -> int:
        """Bytes of all places that are taken."""
        return sum(place.size_bytes for place in self._held)

    @property
    def taken(self) -> int:
        """Number of places that are taken."""
        return len(self._held)

    async def take(self, caller: str, size_bytes: int, end: Callable[[], None]) -> Place:
        """A place for a body of this size; to be returned with `free`.

        Raises:
            Unavailable: there was no room for too long.
        """
        deadline = self._clock() + self._wait_s
        while not self._fits(caller, size_bytes):
            left_s = deadline - self._clock()
            if left_s <= 0 or self._waiting >= MOST_WAITING:
                raise Unavailable(
                    cause=f"{self.taken} bodies with {self.held_bytes} bytes are held already",
                    cure="Try again in a moment, or send fewer requests at a time",
                )
            self._end_slow(caller, size_bytes)
            await self._wait_for_change(min(left_s, LOOK_S))
        place = Place(caller, size_bytes, end)
        place.come(0, self._clock())
        self._held.append(place)
        return place

    def come(self, place: Place, count_bytes: int) -> None:
        """Another piece of a body has arrived."""
        place.come(count_bytes, self._clock())

    def settle(self, place: Place, size_bytes: int) -> None:
        """The body is complete; `size_bytes` is what is kept of it."""
        place.complete, place.size_bytes = True, size_bytes
        self._notify()

    def free(self, place: Place) -> None:
        """Returns a place: nothing of its body is kept."""
        if place in self._held:
            self._held.remove(place)
            self._notify()
            self._rest.begin()

    def _fits(self, caller: str, size_bytes: int) -> bool:
        return self._room(self._held, size_bytes, 1.0) and self._room(
            self._of(caller), size_bytes, CALLER_SHARE
        )

    def _room(self, held: list[Place], size_bytes: int, share: float) -> bool:
        taken_bytes = sum(place.size_bytes for place in held)
        return (
            taken_bytes + size_bytes <= share * self._most_bytes
            and len(held) + 1 <= share * self._most_bodies
        )

    def _of(self, caller: str) -> list[Place]:
        return [place for place in self._held if place.caller == caller]

    def _end_slow(self, caller: str, size_bytes: int) -> None:
        """Ends the slowest senders, until the new body fits without them."""
        now = self._clock()
        own = not self._room(self._of(caller), size_bytes, CALLER_SHARE)
        among, share = (self._of(caller), CALLER_SHARE) if own else (list(self._held), 1.0)
        slow = [
            place
            for place in among
            if not place.ended and place.bytes_per_s(now) < self._floor_bytes_per_s
        ]
        staying = [place for place in among if not place.ended]
        for place in sorted(slow, key=lambda each: each.bytes_per_s(now)):
            if self._room(staying, size_bytes, share):
                return
            staying.remove(place)
            place.ended = True
            place.end()

    def _notify(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()

    async def _wait_for_change(self, most_s: float) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(most_s):
                await self._freed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
