"""One connection to one worker: its frames, its calls, and the moment it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import structlog

from coordinator.cluster.facts import Facts
from coordinator.cluster.pings import ClockEstimate, Observation, Pinger, PingPace, keep_pinging
from coordinator.cluster.supply import Progress, Supply
from coordinator.planning.plan import DeviceId
from models.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.channels import Caller
from protos.client import WorkerClient
from protos.errors import ImbrexError, LostWorker, PeerViolation
from protos.frames import Payload

PING_INTERVAL_S = 0.5
# Three missed pings, and a little for a scheduler that is late.
LOST_AFTER_S = 2.0
CONNECT_TIMEOUT_S = 5.0
# Facts that change (frequency, counters, memory in use) are asked for again this often.
FACTS_INTERVAL_S = 10.0
# Messages that wait for one worker. They hold views of tensors that their request holds anyway,
# so this bounds what is stuck behind a slow link, not memory.
QUEUE_MESSAGES = 64

OnItem = Callable[[DeviceId, pb.Item, np.ndarray | memoryview | None], None]
T = TypeVar("T")

_log = structlog.get_logger(__name__)


class WorkerLink:
    """Made by `open`; ends by `close` or by being lost, whichever is first.

    `on_item` is called on the event loop for every item that the worker sends; a `PeerViolation`
    that it raises ends the connection.
    """

    def __init__(self, address: str, caller: Caller, version: str, on_item: OnItem) -> None:
        self.address = address
        self.clock = ClockEstimate()
        self.counters: dict[str, int] = {}
        self.resident_bytes = 0
        self.observations: tuple[Observation, ...] = ()
        self._version = version
        self._on_item = on_item
        self._data = WorkerClient(address, caller)
        self._control = WorkerClient(address, caller)
        self._supply = Supply(self._data)
        self._facts: Facts | None = None
        self._queue: asyncio.Queue[tuple[Sequence[pb.Item], Sequence[Payload]]]
        self._queue = asyncio.Queue(QUEUE_MESSAGES)
        self._lost: asyncio.Future[ImbrexError] = asyncio.get_running_loop().create_future()
        self._running: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"WorkerLink({self.address!r}, {self._facts.id if self._facts else 'closed'!r})"

    @property
    def facts(self) -> Facts:
        """What the worker said of itself last; only after `open`."""
        assert self._facts is not None, "open the link first"
        return self._facts

    @property
    def heard_s(self) -> float:
        """When something last came from it, on our monotonic clock."""
        return self._pace.heard_s

    @property
    def prepared(self) -> frozenset[str]:
        """Programs that the worker has ready."""
        return self._supply.prepared

    async def open(self) -> None:
        """Connects, asks who is there, and keeps the streams from then on.

        Raises:
            PeerViolation: another protocol version, or facts that make no sense.
            BadConfiguration: it refused our secret.
            LostWorker: nobody answers.
        """
        try:
            self._take(await self._data.hello(self._version, CONNECT_TIMEOUT_S))
            self._stream = self._data.exchange()
            control = self._control.exchange()
            self._pinger = Pinger(control)
            self._pace = PingPace(time.monotonic(), PING_INTERVAL_S, LOST_AFTER_S)
            self._start(self._until_broken(self._pinger.read()))
            self.clock.add(await self._while_alive(self._pinger.ping(CONNECT_TIMEOUT_S)))
        except BaseException:
            await self.close()
            raise
        self._start(self._until_broken(self._read()))
        self._start(self._until_broken(self._write()))
        self._start(self._ping())
        self._start(self._until_broken(self._refresh()))

    async def wait_lost(self) -> ImbrexError:
        """Waits for the end of the connection; why it ended."""
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        """Ends the connection; whoever waits for it gets `LostWorker`. May be called again."""
        self._lose(LostWorker(cause=f"the connection to {self.address} was closed", cure=_AGAIN))
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._data.close()
        await self._control.close()

    async def send(self, items: Sequence[pb.Item], payloads: Sequence[Payload] = ()) -> None:
        """Queues one message of at most 64 MB; waits while the queue is full. Payloads are read
        when the message leaves, and must not change until the request ends.

        Raises:
            ImbrexError: the connection is lost; what was queued may or may not have arrived.
        """
        self._check_alive()
        if self._queue.full():
            await self._while_alive(self._queue.put((items, payloads)))
        else:
            self._queue.put_nowait((items, payloads))

    async def ensure(
        self, programs: Sequence[Program], blobs: BlobSource, progress: Progress | None = None
    ) -> None:
        """Returns when the worker can run the programs: fetches weights, makes sessions.

        Raises:
            PrepareFailed: the worker cannot (memory, an operator): plan without it.
            ImbrexError: the connection is lost, or a transfer was refused.
        """
        self._check_alive()
        if not self._supply.has(programs):
            await self._while_alive(self._supply.ensure(programs, blobs, progress))

    async def retain(self, programs: Sequence[str]) -> None:
        """Lets the worker drop all programs but these (hashes)."""
        self.resident_bytes = await self._while_alive(self._supply.retain(programs))

    def forget_prepared(self, program: str) -> None:
        """The worker said that it no longer has this program."""
        self._supply.forget(program)

    async def measure(self, request: pb.MeasureRequest, timeout_s: float) -> pb.MeasureReply:
        """Times a program on random tensors, under the worker's pace."""
        return await self._while_alive(self._data.measure(request, timeout_s))

    async def probe(self) -> tuple[Observation, ...]:
        """Measures the link for less than half a second; kept in `observations`."""
        self.observations = tuple(await self._while_alive(self._pinger.probe(LOST_AFTER_S)))
        return self.observations

    def _take(self, reply: pb.HelloReply) -> None:
        facts = Facts.of(reply.facts)
        if self._facts is not None and facts.id != self._facts.id:
            raise PeerViolation(
                cause=f"{self.address} was {self._facts.id}, and is {facts.id} now",
                cure="Give each worker a port and a state directory of its own",
            )
        self._facts = facts
        self.counters = dict(reply.counters)
        self.resident_bytes = reply.resident_bytes

    async def _read(self) -> None:
        device_id = self.facts.id
        while (received := await self._stream.read()) is not None:
            self._pace.heard(time.monotonic())
            for item, payload in received:
                self._on_item(device_id, item, payload)

    async def _write(self) -> None:
        while True:
            items, payloads = await self._queue.get()
            await self._stream.write(items, payloads)

    async def _ping(self) -> None:
        self._lose(await keep_pinging(self._pinger, self.clock, self._pace))

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(FACTS_INTERVAL_S)
            # Whether it is alive is for the pings to say: a slow answer here is none.
            with suppress(LostWorker):
                self._take(await self._control.hello(self._version, CONNECT_TIMEOUT_S))

    async def _until_broken(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work; its end, for whatever reason, is the end of the connection."""
        try:
            await work
        except ImbrexError as error:
            self._lose(error)
        except Exception as error:
            _log.exception("connection ended for a reason of our own", address=self.address)
            self._lose(LostWorker(cause=f"{self.address}: {error!r}", cure="Report this"))
        else:
            self._lose(LostWorker(cause=f"{self.address} ended the connection", cure=_AGAIN))

    def _lose(self, error: ImbrexError) -> None:
        if not self._lost.done():
            self._lost.set_result(error)

    def _check_alive(self) -> None:
        if self._lost.done():
            raise _lost_worker(self._lost.result())

    async def _while_alive(self, work: Awaitable[T]) -> T:
        """The result of `work`, or the reason of the loss as soon as it is known."""
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait((doing, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not doing.done():
                doing.cancel()
        # A call of a closed channel ends as cancelled, which is not what our caller asked for.
        if doing.done() and not doing.cancelled():
            return doing.result()
        raise _lost_worker(await self.wait_lost())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._running.add(asyncio.create_task(work))


_AGAIN = "It is tried again; see that the worker is running"


def _lost_worker(reason: ImbrexError) -> LostWorker:
    """A loss as those see it who needed the worker, whatever its reason was."""
    return LostWorker(cause=reason.cause, cure=reason.cure)
