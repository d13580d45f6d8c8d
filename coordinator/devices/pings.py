"""Pings: whether the worker is alive, its clock's offset, and its link's capacity.

They use their own connection: a tensor or weight in transit cannot delay them and make a busy
worker look dead.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from dataclasses import dataclass

from coordinator.costs.links import Transfer
from protos import imbrex_pb2 as pb
from protos.errors import NoAnswer
from protos.rpc.worker_client import ExchangeStream

# Old round trips are dropped: clocks of cheap devices drift by tens of microseconds per second.
_CLOCK_SAMPLES = 16

# A worker that sends frames is pinged this many times less often.
_TALKING = 5

# Time for the payloads of a probe, and again for a train of them: requests share the link
# meanwhile.
PROBE_BUDGET_S = 0.6
# Large enough to see the rate of gigabit Ethernet above the fixed cost; the largest are left out if
# they exceed the budget.
PROBE_SIZES_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
_EMPTY_PROBES = 4
# Concurrent pings, answered as fast as the slower end handles messages.
_BURST = 6
# Back-to-back pings with payload, which arrive as fast as the wire carries them.
_TRAIN = 4


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One answered ping: payload bytes in both directions, seconds from before sending to after
    receipt, and its arrival on the other clock. Adding `offset_s` to that clock gives this one,
    with an error of at most half of `seconds`.
    """

    sent_bytes: int
    reply_bytes: int
    seconds: float
    received_s: float
    offset_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """What was measured of a link and its ends: single messages, the seconds that the slower end
    needs to handle one, and the seconds per byte of large messages sent back to back, when the wire
    carries one while the ends handle others.
    """

    messages: tuple[Transfer, ...]
    handling_s: float
    stream_byte_s: float


class ClockEstimate:
    """The offset of another clock, estimated from the shortest round trip."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_CLOCK_SAMPLES)
        # Seconds to add to the other clock to get this one; 0 before the first round trip.
        self.offset_s = 0.0

    def add(self, trip: RoundTrip) -> None:
        """Takes another round trip into account; one with a payload is ignored."""
        if not trip.sent_bytes and not trip.reply_bytes:
            self._samples.append((trip.seconds, trip.offset_s))
            self.offset_s = min(self._samples)[1]


class PingPace:
    """When to ping: only when the worker is silent, since its frames are signs of life, too.

    With an interval of less than half of `lost_after_s`, two pings fit into it: one that is lost on
    the way loses no worker.
    """

    def __init__(self, now: float, interval_s: float, lost_after_s: float) -> None:
        self._interval_s = interval_s
        self._lost_after_s = lost_after_s
        self._answered_s = now
        # When something last came from the worker.
        self.heard_s = now

    def answered(self, now: float) -> None:
        """A ping was answered."""
        self.heard_s = self._answered_s = now

    def wait_s(self, now: float) -> float:
        """Seconds until the next ping; talking workers are pinged now and then, too, for their
        clock.
        """
        due_s = min(self.heard_s + self._interval_s, self._answered_s + _TALKING * self._interval_s)
        return max(0.0, due_s - now)

    def patience_s(self, now: float) -> float:
        """How long a ping sent now may take. The worker is lost after `lost_after_s` of silence,
        but if this event loop itself was late, it pings once more.
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
        # A gRPC call allows one write at a time.
        self._writing = asyncio.Lock()

    async def read(self) -> None:
        """Receives the answers.

        Raises:
            ImbrexError: the stream has ended or is broken, or what came is malformed.
        """
        while True:
            received = await self._stream.read()
            now = time.monotonic()
            for item, _ in received:
                waiting = self._waiting.get(item.pong.number)
                if item.WhichOneof("kind") == "pong" and waiting and not waiting.done():
                    waiting.set_result((now, item.pong.received_s))

    async def ping(self, timeout_s: float, sent_bytes: int = 0, reply_bytes: int = 0) -> RoundTrip:
        """One round trip with this many bytes of payload in each direction (16 MB at most).

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
            raise NoAnswer(
                cause=f"{self._address} has not answered for {timeout_s:.1f} s",
                cure="Check that the device is up and not overloaded",
            ) from None
        finally:
            del self._waiting[number]
        offset_s = (sent_s + arrived_s) / 2 - received_s
        trip = RoundTrip(sent_bytes, reply_bytes, arrived_s - sent_s, received_s, offset_s)
        self.clock.add(trip)
        return trip

    async def probe(self, timeout_s: float) -> Probe:
        """Sends messages of several sizes both ways, and several at once, in about a second, for
        `coordinator.costs`.

        A message of n bytes takes a round trip with n bytes one way, minus half an empty round
        trip.

        Raises:
            ImbrexError: as `ping`.
        """
        empty = [(await self.ping(timeout_s)).seconds for _ in range(_EMPTY_PROBES)]
        seen = [Transfer(0, seconds / 2) for seconds in empty]
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
                seen.append(Transfer(size, seconds))
        return Probe(tuple(seen), handling_s, await self._stream_byte_s(timeout_s, byte_s))

    async def _handling_s(self, timeout_s: float, empty_s: float) -> float:
        """Seconds that the slower end needs for a message. Of pings sent at once, each after the
        first takes as long as that end handles two messages: one received and one sent.
        """
        began_s = time.monotonic()
        await asyncio.gather(*(self.ping(timeout_s) for _ in range(_BURST)))
        more_s = time.monotonic() - began_s - empty_s
        return max(0.0, more_s) / (2 * (_BURST - 1))

    async def _stream_byte_s(self, timeout_s: float, byte_s: float) -> float:
        """Seconds per byte from the dispersion of a train of pings; `byte_s` is that of a single
        one.
        """
        most = PROBE_BUDGET_S / (_TRAIN * byte_s) if byte_s else math.inf
        least = PROBE_SIZES_BYTES[0]
        size = max(size for size in PROBE_SIZES_BYTES if size <= max(most, least))

        trips = await asyncio.gather(*(self.ping(timeout_s, size) for _ in range(_TRAIN)))
        # Measured on the other clock: on a shared medium, answers wait for the train itself.
        arrivals = [trip.received_s for trip in trips]
        return (max(arrivals) - min(arrivals)) / ((_TRAIN - 1) * size)
