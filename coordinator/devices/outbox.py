"""One queue and one sender per device: order is kept, and programs arrive before their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from coordinator.tasks.events import RequestId
from models.cut.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, Unavailable
from protos.wire.facts import DeviceId
from protos.wire.frames import Payload

log = structlog.get_logger(__name__)

# One message carries at most about this much payload, so that the first tiles of a large letter are
# on the way while the rest is being encoded.
MESSAGE_BYTES = 4 << 20
# Letters that may wait for one device. Admission bounds requests in flight far below this.
QUEUE_LETTERS = 1024
# How long a release waits for a letter that it can join.
HOLD_S = 0.25


@dataclass(slots=True)
class Letter:
    """Items for one device, with the payloads of their tensors and the programs they need;
    `attempts` are those that the letter starts or feeds, as request, task and number.
    """

    items: list[pb.Item] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    programs: list[tuple[Program, BlobSource]] = field(default_factory=list)
    attempts: dict[tuple[RequestId, int, int], None] = field(default_factory=dict)

    def messages(self) -> Iterator[tuple[list[pb.Item], list[Payload]]]:
        """The letter in messages of bounded size."""
        payloads = iter(self.payloads)
        items: list[pb.Item] = []
        carried: list[Payload] = []
        size = 0
        for item in self.items:
            if item.WhichOneof("kind") == "tensor":
                payload = next(payloads)
                nbytes = len(payload) if isinstance(payload, bytes) else payload.nbytes
                if size and size + nbytes > MESSAGE_BYTES:
                    yield items, carried
                    items, carried, size = [], [], 0
                carried.append(payload)
                size += nbytes
            items.append(item)
        if items:
            yield items, carried


class Preparer(Protocol):
    """What transfers programs to devices."""

    async def ensure(
        self, device: DeviceId, programs: Sequence[Program], blobs: BlobSource
    ) -> None:
        """Returns when the programs can run on the device."""
        ...


class Sender(Preparer, Protocol):
    """The connections to workers, as who sends to them needs them."""

    async def send(
        self, device: DeviceId, items: Sequence[pb.Item], payloads: Sequence[Payload]
    ) -> None:
        """Queues one message."""
        ...


class Outbox:
    """Sends letters to devices, to each at its own speed."""

    def __init__(
        self,
        sender: Sender,
        on_delivery: Callable[[DeviceId, Letter], None],
        on_failure: Callable[[DeviceId, Letter, ImbrexError], None],
    ) -> None:
        self._sender = sender
        self._on_delivery = on_delivery
        self._on_failure = on_failure
        self._queues: dict[DeviceId, asyncio.Queue[Letter]] = {}
        self._tasks: dict[DeviceId, asyncio.Task[None]] = {}
        self._held: dict[DeviceId, list[pb.Item]] = {}

    def post_with_next(self, device: DeviceId, item: pb.Item) -> None:
        """Sends an item without payload together with the device's next letter. If none follows
        soon, it is sent alone, which costs either side half a millisecond.
        """
        if device not in self._held:
            self._held[device] = []
            asyncio.get_running_loop().call_later(HOLD_S, self._flush, device)
        self._held[device].append(item)

    def _flush(self, device: DeviceId) -> None:
        if self._held.get(device):
            self.post(device, Letter())

    def post(self, device: DeviceId, letter: Letter) -> None:
        """Queues a letter; it leaves after those posted before it."""
        queue = self._queues.get(device)
        if queue is None:
            queue = self._queues[device] = asyncio.Queue(QUEUE_LETTERS)
            self._tasks[device] = asyncio.create_task(self._deliver(device, queue))
        queue.put_nowait(letter)

    def forget(self, device: DeviceId, *, is_connected: bool = False) -> None:
        """Drops the letters that wait for a lost device. One that is still connected gets the
        items that were to be sent with the next letter.
        """
        self._queues.pop(device, None)
        task = self._tasks.pop(device, None)
        if task is not None:
            task.cancel()
        if is_connected:
            self._flush(device)
        else:
            self._held.pop(device, None)

    async def close(self) -> None:
        """Stops all senders."""
        tasks = list(self._tasks.values())
        for device in {*self._tasks, *self._held}:
            self.forget(device)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, device: DeviceId, queue: asyncio.Queue[Letter]) -> None:
        while True:
            letter = await queue.get()
            try:
                for program, blobs in letter.programs:
                    await self._sender.ensure(device, [program], blobs)
                # Only now: if a program cannot be prepared, they go with another letter.
                letter.items[:0] = self._held.pop(device, [])
                for items, payloads in letter.messages():
                    await self._sender.send(device, items, payloads)
            except Exception as error:
                self._on_failure(device, letter, _told(device, error))
                self._flush(device)
            else:
                self._on_delivery(device, letter)


def _told(device: DeviceId, error: Exception) -> ImbrexError:
    """Logs why a letter could not be sent; the next one may be."""
    if isinstance(error, ImbrexError):
        log.warning("could not send", device=device, error=str(error))
        return error
    log.error("could not send", device=device, exc_info=error)
    return Unavailable(cause=f"it could not be sent: {error!r}", cure="See the coordinator's log")
