"""What waits to be sent to one device: letters in order, and messages that pass them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from coordinator.devices.programs import Programs
from coordinator.tasks.events import RequestId
from models.cut.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, Unavailable
from protos.wire.frames import Payload

log = structlog.get_logger(__name__)

# One message carries at most about this much payload, so that the first tiles of a large letter are
# on the way while the rest is being encoded.
MESSAGE_BYTES = 4 << 20
# Letters that may wait for one device. Admission bounds requests in flight far below this.
QUEUE_LETTERS = 1024
# Messages that wait for the stream. They hold views of tensors that their requests keep anyway, so
# this bounds the backlog of a slow link, not memory.
QUEUE_MESSAGES = 64
# How long a release waits for a letter that it can join.
HOLD_S = 0.25

Message = tuple[Sequence[pb.Item], Sequence[Payload]]


@dataclass(slots=True)
class Letter:
    """Items for one device, with the payloads of their tensors and the programs they need;
    `attempts` are those that the letter starts or feeds, as request, task and number.
    """

    items: list[pb.Item] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    programs: list[tuple[Program, BlobSource]] = field(default_factory=list)
    attempts: dict[tuple[RequestId, int, int], None] = field(default_factory=dict)

    def messages(self) -> Iterator[Message]:
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


class Outbox:
    """Letters become messages in their order, each once its programs are on the device. Those of
    the first letter are uploaded in a task of its own; meanwhile messages of others can be sent.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._letters: deque[tuple[Letter, asyncio.Future[None]]] = deque()
        # What is left of the first letter, once it is being sent.
        self._rest: deque[Message] | None = None
        self._upload: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[Message] = asyncio.Queue(QUEUE_MESSAGES)
        # Messages that wait for room; letters let them pass.
        self._passing = 0
        self._held: list[pb.Item] = []
        # Messages that were taken so far.
        self.taken = 0

    def post(self, letter: Letter) -> asyncio.Future[None]:
        """Queues a letter without waiting. The future is done when its programs are there and its
        messages are queued, or has the `ImbrexError` that prevented this; it is cancelled by
        `clear`.
        """
        posted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._letters) < QUEUE_LETTERS:
            self._letters.append((letter, posted))
            self._advance()
        else:
            posted.set_exception(_FULL)
        return posted

    def post_with_next(self, item: pb.Item) -> None:
        """Sends an item without payload together with the next letter. If none follows soon, it is
        sent alone, which costs either side half a millisecond.
        """
        if not self._held:
            asyncio.get_running_loop().call_later(HOLD_S, self.post, Letter())
        self._held.append(item)

    async def put(self, message: Message) -> None:
        """Queues a message, which passes the letters that wait; waits while the queue is full."""
        self._passing += 1
        try:
            await self._messages.put(message)
        finally:
            self._passing -= 1
            self._advance()

    async def next(self) -> Message:
        """Takes the message that is to be sent next; waits for one."""
        message = await self._messages.get()
        self.taken += 1
        self._advance()
        return message

    def clear(self) -> None:
        """Drops the letters of a device that is lost or gets no more tasks, and stops their upload.
        What the device may forget is still sent.
        """
        if self._upload is not None:
            self._upload.cancel()
        letters, self._letters = self._letters, deque()
        self._rest = self._upload = None
        for _, posted in letters:
            posted.cancel()
        if self._held:
            self.post(Letter())

    def _advance(self) -> None:
        """Queues the messages of letters until one needs an upload, or the queue is full."""
        while self._letters and self._upload is None:
            letter, posted = self._letters[0]
            if self._rest is None:
                if not all(
                    program.sha256 in self._programs.ready for program, _ in letter.programs
                ):
                    self._upload = asyncio.create_task(self._prepare(letter, posted))
                    return
                if self._passing or self._messages.full():
                    return
                # Only now: they go with another letter if this one is refused or dropped.
                letter.items[:0], self._held = self._held, []
                self._rest = deque(letter.messages())
            while self._rest:
                if self._passing or self._messages.full():
                    return
                self._messages.put_nowait(self._rest.popleft())
            self._letters.popleft()
            self._rest = None
            posted.set_result(None)

    async def _prepare(self, letter: Letter, posted: asyncio.Future[None]) -> None:
        """Uploads the programs of the first letter; without them it fails."""
        try:
            for program, blobs in letter.programs:
                await self._programs.ensure([program], blobs)
        except Exception as error:
            self._letters.popleft()
            posted.set_exception(_reason(error))
        self._upload = None
        self._advance()


def _reason(error: Exception) -> ImbrexError:
    """Logs why a letter could not be sent; the next one may be."""
    if isinstance(error, ImbrexError):
        log.warning("could not send", error=str(error))
        return error
    log.error("could not send", exc_info=error)
    return Unavailable(cause=f"it could not be sent: {error!r}", cure="See the coordinator's log")


_FULL = Unavailable(
    cause=f"{QUEUE_LETTERS} letters wait for one device", cure="Send fewer requests at a time"
)
