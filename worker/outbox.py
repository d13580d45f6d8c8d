"""What waits to be written to one stream. One task writes; anybody on the loop adds."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from protos import imbrex_pb2 as pb
from protos.errors import Unavailable
from protos.frames import Buffer, buffers
from worker.wire import Message

# Tensors wait as views of arrays that tasks keep anyway, so this caps bookkeeping, not memory.
MAX_WAITING = 16_384
# How long news without payload waits for a message to travel with. The host needs it for its
# records, and to know that a device is at work: before it would ask (half a second of silence).
HOLD_S = 0.3


class Outbox:
    """Messages in order; encoded only when the stream takes them."""

    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._held: deque[pb.Item] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, messages: Iterable[Message]) -> None:
        """Queues messages.

        Raises:
            Unavailable: the other side has stopped reading, and too much waits.
        """
        for message in messages:
            if len(self._waiting) >= MAX_WAITING:
                raise Unavailable(
                    cause=f"{MAX_WAITING} messages wait for a peer that does not read",
                    cure="See whether that daemon hangs, and restart it",
                )
            self._waiting.append(message)
        self._changed.set()

    def hold(self, items: Sequence[pb.Item]) -> None:
        """Keeps items without payload to travel with the next message: one of their own costs
        either side half a millisecond. From any thread; `flush_soon` follows.
        """
        self._held.extend(items)

    def flush_soon(self) -> None:
        """What is held leaves alone if there is no message for a while."""
        if self._held:
            asyncio.get_running_loop().call_later(HOLD_S, self._flush)

    def _flush(self) -> None:
        if self._held and not self._closed:
            self.add([([], [])])

    def close(self) -> None:
        """`write_all` returns once what waits is written."""
        self._closed = True
        self._changed.set()

    async def write_all(self, write: Callable[[Sequence[Buffer]], Awaitable[None]]) -> None:
        """Writes until closed, each message as its buffers; errors of `write` pass."""
        while True:
            while self._waiting:
                items, payloads = self._waiting.popleft()
                held = [self._held.popleft() for _ in range(len(self._held))]
                await write(buffers([*held, *items], payloads))
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()
