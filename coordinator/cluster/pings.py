"""Pings: is the worker alive, what does its clock say, and what does its link carry?

They travel on a connection of their own, so that neither a tensor nor a weight that is on its way
can hold them up and make a busy worker look like a dead one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass

from protos import imbrex_pb2 as pb
from protos.client import ExchangeStream
from protos.errors import ImbrexError, LostWorker

# Old estimates go: clocks of cheap boards drift by tens of microseconds per second.
_CLOCK_SAMPLES = 16

# What a probe may take altogether: requests that come meanwhile share the link with it.
PROBE_BUDGET_S = 0.4
# Large enough to see the rate of gigabit Ethernet beside the fixed cost; the largest are left out
# where the budget would not do.
PROBE_SIZES_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
_EMPTY_PROBES = 4


@dataclass(frozen=True, slots=True)
class Pong:
    """An answered ping: times on our monotonic clock, `received_s` on the worker's."""

    sent_s: float
    arrived_s: float
    received_s: float

    @property
    def round_trip_s(self) -> float:
        """From before sending to after receipt."""
        return self.arrived_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Observation:
    """One message of `size_bytes` took `seconds` from sending to arrival."""

    size_bytes: int
    seconds: float


class ClockEstimate:
    """The offset of another clock, from round trips: the shortest one errs least.

    Its error is at most half of that round trip.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_CLOCK_SAMPLES)

    def add(self, pong: Pong) -> None:
        """Takes another round trip into account."""
        middle_s = (pong.sent_s + pong.arrived_s) / 2
        self._samples.append((pong.round_trip_s, middle_s - pong.received_s))

    @property
    def offset_s(self) -> float:
        """Seconds to add to the other clock to get ours; 0 before the first sample."""
        return min(self._samples, default=(0.0, 0.0))[1]

    @property
    def round_trip_s(self) -> float:
        """The shortest recent round trip; 0 before the first sample."""
        return min(self._samples, default=(0.0, 0.0))[0]


class Pinger:
    """Pings over one Exchange stream, which carries nothing else."""

    def __init__(self, stream: ExchangeStream) -> None:
        self._stream = stream
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Pong]] = {}

    async def read(self) -> None:
        """Takes the answers; returns when the worker ends the stream.

        Raises:
            ImbrexError: the stream is broken, or what came is malformed.
        """
        while (received := await self._stream.read()) is not None:
            now = time.monotonic()
            for item, _ in received:
                if item.WhichOneof("kind") == "pong":
                    self._answered(item.pong, now)

    async def ping(self, timeout_s: float, send_bytes: int = 0, reply_bytes: int = 0) -> Pong:
        """One round trip with so many bytes of payload there and back.

        Raises:
            LostWorker: no answer within `timeout_s`.
            ImbrexError: the stream is broken.
        """
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        ping = pb.Ping(number=number, sent_s=time.monotonic(), reply_bytes=reply_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.write([pb.Item(ping=ping)], [bytes(send_bytes)])
                pong: Pong = await answer
                return pong
        except TimeoutError:
            raise LostWorker(
                cause=f"no answer to a ping for {timeout_s:.1f} s",
                cure="See that the device is up, and not overloaded",
            ) from None
        finally:
            del self._waiting[number]

    async def probe(self, timeout_s: float) -> list[Observation]:
        """Messages of several sizes, both ways: what `coordinator.costs` fits a link to.

        A message of n bytes takes a round trip with n bytes one way, less half an empty one.

        Raises:
            ImbrexError: as `ping`.
        """
        deadline_s = time.monotonic() + PROBE_BUDGET_S
        empty_s = [(await self.ping(timeout_s)).round_trip_s for _ in range(_EMPTY_PROBES)]
        half_s = min(empty_s) / 2
        seen = [Observation(0, round_trip_s / 2) for round_trip_s in empty_s]
        slowest_s_per_byte = 0.0
        for size in PROBE_SIZES_BYTES:
            if time.monotonic() + 2 * size * slowest_s_per_byte > deadline_s:
                break
            for send, reply in ((size, 0), (0, size)):
                pong = await self.ping(timeout_s, send, reply)
                seconds = max(pong.round_trip_s - half_s, 0.0)
                slowest_s_per_byte = max(seconds / size, slowest_s_per_byte / 2)
                seen.append(Observation(size, seconds))
        return seen

    def _answered(self, pong: pb.Ping, now: float) -> None:
        waiting = self._waiting.get(pong.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(Pong(pong.sent_s, now, pong.received_s))


async def keep_pinging(pinger: Pinger, clock: ClockEstimate, pace: PingPace) -> ImbrexError:
    """Pings until an answer is missed; returns why the worker counts as lost."""
    while True:
        await asyncio.sleep(pace.wait_s(time.monotonic()))
        now = time.monotonic()
        if not pace.due(now):
            continue
        try:
            pong = await pinger.ping(pace.patience_s(now))
        except ImbrexError as error:
            return error
        clock.add(pong)
        pace.answered(pong.arrived_s)


class PingPace:
    """When to ping: only a worker that is silent is asked; its frames are signs of life too.

    Three pings fit into `lost_after_s`: one lost packet must not force a replan.
    """

    def __init__(self, now: float, interval_s: float, lost_after_s: float) -> None:
        self._interval_s = interval_s
        self._lost_after_s = lost_after_s
        self.heard_s = now
        self._answered_s = now

    def heard(self, now: float) -> None:
        """Something came from the worker."""
        self.heard_s = now

    def answered(self, now: float) -> None:
        """A pong came."""
        self.heard_s = self._answered_s = now

    def due(self, now: float) -> bool:
        """Whether to ping now; now and then also a worker that talks, for its clock."""
        return self.wait_s(now) <= 0

    def wait_s(self, now: float) -> float:
        """Until the next ping may be due."""
        silent_s, since_s = now - self.heard_s, now - self._answered_s
        return max(0.0, min(self._interval_s - silent_s, 10 * self._interval_s - since_s))

    def patience_s(self, now: float) -> float:
        """How long a ping sent now may take: the worker is lost after `lost_after_s` of silence."""
        return max(self._interval_s, self._lost_after_s - (now - self.heard_s))
