"""Pings: is the worker alive, what does its clock say, and what does its link carry?

They travel on a connection of their own, so that neither a tensor nor a weight that is on its way
can hold them up and make a busy worker look like a dead one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from dataclasses import dataclass

from protos import imbrex_pb2 as pb
from protos.client import ExchangeStream
from protos.errors import LostWorker

# Old round trips go: clocks of cheap devices drift by tens of microseconds per second.
_CLOCK_SAMPLES = 16

# What the payloads of a probe may take, and as much again a train of them: requests that come
# meanwhile share the link with it.
PROBE_BUDGET_S = 0.6
# Large enough to see the rate of gigabit Ethernet beside the fixed cost; the largest are left out
# where the budget would not do.
PROBE_SIZES_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
_EMPTY_PROBES = 4
# Pings at once, whose answers come as fast as the slower end handles messages.
_BURST = 6
# Pings with a payload close behind each other: they come as fast as the wire lets them.
_TRAIN = 4


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One answered ping: payload bytes there and back, seconds from before sending to after
    receipt, and when it got there, on the other clock. `offset_s` added to that clock gives ours;
    it errs by half of `seconds` at most.
    """

    sent_bytes: int
    reply_bytes: int
    seconds: float
    received_s: float
    offset_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """One message of `size_bytes` took `seconds` from sending to arrival."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Probe:
    """What a link and its ends showed: single messages, the seconds that the slower of the two
    ends needs to handle one, and the seconds per byte of large ones close behind each other, while
    the wire carries one and the ends handle others.
    """

    messages: tuple[Observation, ...]
    handling_s: float
    stream_byte_s: float


class ClockEstimate:
    """The offset of another clock, from round trips: the shortest one errs least."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_CLOCK_SAMPLES)

    def add(self, trip: RoundTrip) -> None:
        """Takes another round trip into account; one with a payload tells nothing."""
        if not trip.sent_bytes and not trip.reply_bytes:
            self._samples.append((trip.seconds, trip.offset_s))

    @property
    def offset_s(self) -> float:
        """Seconds to add to the other clock to get ours; 0 before the first round trip."""
        return min(self._samples, default=(0.0, 0.0))[1]


class PingPace:
    """When to ping: only a worker that is silent is asked; its frames are signs of life too.

    Three pings fit into `lost_after_s`: one lost packet must not force a replan.
    """

    def __init__(self, now: float, interval_s: float, lost_after_s: float) -> None:
        self._interval_s = interval_s
        self._lost_after_s = lost_after_s
        self._answered_s = now
        self.heard_s = now

    def heard(self, now: float) -> None:
        """Something came from the worker."""
        self.heard_s = now

    def answered(self, now: float) -> None:
        """A pong came."""
        self.heard_s = self._answered_s = now

    def wait_s(self, now: float) -> float:
        """Until the next ping; now and then also for a worker that talks, for its clock."""
        due_s = min(self.heard_s + self._interval_s, self._answered_s + 10 * self._interval_s)
        return max(0.0, due_s - now)

    def patience_s(self, now: float) -> float:
        """How long a ping sent now may take: the worker is lost after `lost_after_s` of silence,
        but an event loop that was late itself asks once more.
        """
        return max(self._interval_s, self._lost_after_s - (now - self.heard_s))


class Pinger:
    """Pings over one Exchange stream, which carries nothing else."""

    def __init__(self, stream: ExchangeStream, address: str) -> None:
        self.clock = ClockEstimate()
        self._stream = stream
        self._address = address
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[float, float]]] = {}
        # A call takes one write at a time.
        self._writing = asyncio.Lock()

    async def read(self) -> None:
        """Takes the answers; returns when the worker ends the stream.

        Raises:
            ImbrexError: the stream is broken, or what came is malformed.
        """
        while (received := await self._stream.read()) is not None:
            now = time.monotonic()
            for item, _ in received:
                waiting = self._waiting.get(item.pong.number)
                if item.WhichOneof("kind") == "pong" and waiting and not waiting.done():
                    waiting.set_result((now, item.pong.received_s))

    async def ping(self, timeout_s: float, sent_bytes: int = 0, reply_bytes: int = 0) -> RoundTrip:
        """One round trip with so many bytes of payload there and back (16 MB at most).

        Raises:
            LostWorker: no answer within `timeout_s`.
            ImbrexError: the stream is broken.
        """
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                async with self._writing:
                    sent_s = time.monotonic()
                    ping = pb.Ping(number=number, sent_s=sent_s, reply_bytes=reply_bytes)
                    await self._stream.write([pb.Item(ping=ping)], [bytes(sent_bytes)])
                arrived_s, received_s = await answer
        except TimeoutError:
            raise LostWorker(
                cause=f"{self._address} has not answered for {timeout_s:.1f} s",
                cure="See that the device is up and not overloaded",
            ) from None
        finally:
            del self._waiting[number]
        offset_s = (sent_s + arrived_s) / 2 - received_s
        trip = RoundTrip(sent_bytes, reply_bytes, arrived_s - sent_s, received_s, offset_s)
        self.clock.add(trip)
        return trip

    async def probe(self, timeout_s: float) -> Probe:
        """Messages of several sizes, both ways, and several at once, in about a second: for
        `coordinator.costs`.

        A message of n bytes takes a round trip with n bytes one way, less half an empty one.

        Raises:
            ImbrexError: as `ping`.
        """
        empty = [(await self.ping(timeout_s)).seconds for _ in range(_EMPTY_PROBES)]
        seen = [Observation(0, seconds / 2) for seconds in empty]
        handling_s = await self._handling_s(timeout_s, min(empty))
        deadline_s = time.monotonic() + PROBE_BUDGET_S
        byte_s = 0.0
        for size in PROBE_SIZES_BYTES:
            if time.monotonic() + 2 * size * byte_s > deadline_s:
                break
            for sent, reply in ((size, 0), (0, size)):
                trip = await self.ping(timeout_s, sent, reply)
                seconds = max(trip.seconds - min(empty) / 2, 0.0)
                byte_s = seconds / size
                seen.append(Observation(size, seconds))
        return Probe(tuple(seen), handling_s, await self._stream_byte_s(timeout_s, byte_s))

    async def _handling_s(self, timeout_s: float, empty_s: float) -> float:
        """Of pings sent at once, each after the first takes what the slower end needs for two
        messages: one that it gets and one that it sends.
        """
        began_s = time.monotonic()
        await asyncio.gather(*(self.ping(timeout_s) for _ in range(_BURST)))
        more_s = time.monotonic() - began_s - empty_s
        return max(0.0, more_s) / (2 * (_BURST - 1))

    async def _stream_byte_s(self, timeout_s: float, byte_s: float) -> float:
        """Seconds per byte by the dispersion of a train of pings; one alone takes `byte_s`."""
        most = PROBE_BUDGET_S / (_TRAIN * byte_s) if byte_s else math.inf
        least = PROBE_SIZES_BYTES[0]
        size = max(each for each in PROBE_SIZES_BYTES if each <= max(most, least))

        trips = await asyncio.gather(*(self.ping(timeout_s, size) for _ in range(_TRAIN)))
        # On the other clock: on a shared medium, answers wait for the train itself.
        arrivals = [each.received_s for each in trips]
        return (max(arrivals) - min(arrivals)) / ((_TRAIN - 1) * size)
