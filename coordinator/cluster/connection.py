"""One connection to one worker: who it is, its stream of frames, its pings, its programs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import structlog

from coordinator.cluster.facts import Facts
from coordinator.cluster.programs import Programs
from coordinator.planning.plan import DeviceId
from models.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.channels import HOST, Caller
from protos.client import ExchangeStream, WorkerClient
from protos.errors import ImbrexError, LostWorker
from protos.frames import Payload

# A stalled worker (SIGSTOP, a cut cable) must be noticed in two seconds: three missed pings.
PING_INTERVAL_S = 0.5
LOST_AFTER_S = 1.8
# Messages that may wait for the stream's flow control; the outbox above bounds requests.
QUEUE_MESSAGES = 64
# The smallest round trips tell the clocks' offset best; the last few are enough.
_OFFSET_SAMPLES = 16

Sink = Callable[[DeviceId, pb.Item, np.ndarray | memoryview | None], None]
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One ping: bytes there and back, seconds, and the other clock's offset at best guess."""

    sent_bytes: int
    received_bytes: int
    seconds: float
    offset_s: float


class Connection:
    """Made by `open`; ends with `on_lost` called once, or with `close`."""

    def __init__(self, client: WorkerClient, facts: Facts, sink: Sink) -> None:
        self.facts = facts
        self.address = client.address
        self.client = client
        self.programs = Programs(client)
        self.last_seen_s = time.monotonic()
        self._sink = sink
        self._stream: ExchangeStream = client.exchange()
        self._queue: asyncio.Queue[tuple[Sequence[pb.Item], Sequence[Payload]]] = asyncio.Queue(
            QUEUE_MESSAGES
        )
        self._pings: dict[int, tuple[asyncio.Future[RoundTrip], float, int]] = {}
        self._number = 0
        self._offsets: list[tuple[float, float]] = []
        self._work: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: str, secret: str, sink: Sink) -> Connection:
        """Connects and greets.

        Raises:
            ImbrexError: nobody there, another protocol version, a wrong secret.
        """
        client = WorkerClient(address, Caller(HOST, secret))
        try:
            reply = await client.hello(version("imbrex"))
            return cls(client, Facts.of(reply.facts), sink)
        except BaseException:
            await client.close()
            raise

    def start(self, on_lost: Callable[[str], None]) -> None:
        """Begins to exchange frames; `on_lost` gets the cause when that ends by itself."""
        self._work = asyncio.create_task(self._run(on_lost))

    async def close(self) -> None:
        """Ends the connection without a word to `on_lost`."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        await self.client.close()

    @property
    def offset_s(self) -> float:
        """Seconds to add to the worker's clock to get ours."""
        return min(self._offsets)[1] if self._offsets else 0.0

    async def send(self, items: Sequence[pb.Item], payloads: Sequence[Payload] = ()) -> None:
        """Queues one message, after those before it; waits while the queue is full.

        Raises:
            LostWorker: the connection has ended.
        """
        if self._work is None or self._work.done():
            raise LostWorker(cause=f"the connection to {self.address} has ended", cure="Try again.")
        await self._queue.put((items, payloads))

    async def ping(self, sent_bytes: int = 0, reply_bytes: int = 0) -> RoundTrip:
        """One round trip, with payloads of these sizes: what a transfer costs.

        Raises:
            LostWorker: no answer in time, or the connection ended.
        """
        self._number += 1
        number, now = self._number, time.monotonic()
        done: asyncio.Future[RoundTrip] = asyncio.get_running_loop().create_future()
        self._pings[number] = (done, now, sent_bytes)
        ping = pb.Ping(number=number, sent_s=now, reply_bytes=reply_bytes)
        try:
            async with asyncio.timeout(LOST_AFTER_S + (sent_bytes + reply_bytes) / 1e5):
                await self.send([pb.Item(ping=ping)], [bytes(sent_bytes)])
                return await done
        except TimeoutError:
            raise LostWorker(
                cause=f"{self.address} does not answer", cure="See whether the device is up."
            ) from None
        finally:
            self._pings.pop(number, None)

    async def ensure(self, programs: Sequence[Program], blobs: BlobSource) -> None:
        """Returns when the programs can run there."""
        await self.programs.ensure(programs, blobs)

    # ------------------------------------------------------------ running

    async def _run(self, on_lost: Callable[[str], None]) -> None:
        cause = "the worker ended the connection"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                group.create_task(self._watch())
                group.create_task(self._read())
        except* asyncio.CancelledError:
            raise
        except* ImbrexError as errors:
            cause = str(errors.exceptions[0])
        except* Exception as errors:
            log.exception("connection failed", address=self.address, errors=errors.exceptions)
            cause = repr(errors.exceptions[0])
        finally:
            self._stream.cancel()
            for done, _, _ in self._pings.values():
                if not done.done():
                    done.set_exception(LostWorker(cause=cause, cure="Try again."))
        on_lost(cause)

    async def _write(self) -> None:
        while True:
            items, payloads = await self._queue.get()
            await self._stream.write(items, payloads)

    async def _read(self) -> None:
        while (received := await self._stream.read()) is not None:
            self.last_seen_s = time.monotonic()
            for item, payload in received:
                if item.WhichOneof("kind") == "pong":
                    self._pong(item.pong, payload)
                else:
                    self._sink(self.facts.id, item, payload)
        raise LostWorker(cause=f"{self.address} ended the connection", cure="It may be restarting.")

    async def _watch(self) -> None:
        """Notices a worker that says nothing: any frame is a sign of life, else a ping."""
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if time.monotonic() - self.last_seen_s >= PING_INTERVAL_S:
                await self.ping()

    def _pong(self, pong: pb.Ping, payload: np.ndarray | memoryview | None) -> None:
        waiting = self._pings.get(pong.number)
        if waiting is None or waiting[0].done():
            return
        done, sent_s, sent_bytes = waiting
        now = time.monotonic()
        offset = (sent_s + now) / 2 - pong.received_s
        if not sent_bytes and not pong.payload_bytes:
            self._offsets = [*self._offsets[1 - _OFFSET_SAMPLES :], (now - sent_s, offset)]
        done.set_result(RoundTrip(sent_bytes, int(pong.payload_bytes), now - sent_s, offset))
