"""The queue of messages for one stream. One task takes them; any code on the event loop may add."""

import asyncio
from collections import deque
from collections.abc import Iterable

from protos.errors import Unavailable
from protos.wire.frames import Buffer, buffers
from worker.tasks.actions import TaskEnd
from worker.tasks.task_items import OutgoingMessage, done_item

# Queued tensors are views of arrays that tasks keep anyway, so this caps bookkeeping, not memory.
MAX_WAITING = 16_384
# How long items without payload wait for a message to be sent with. The host needs them for its
# records and as a sign of life, before it would ask (half a second of silence).
HOLD_S = 0.3


class ResultQueue:
    """Messages in order; encoded only when the stream takes them."""

    def __init__(self) -> None:
        self._waiting: deque[OutgoingMessage] = deque()
        self._held: deque[TaskEnd] = deque()
        self._will_flush = False
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, messages: Iterable[OutgoingMessage]) -> None:
        """Queues messages.

        Raises:
            Unavailable: the other side has stopped reading, and the queue is full.
        """
        for message in messages:
            if len(self._waiting) >= MAX_WAITING:
                raise Unavailable(
                    cause=f"{MAX_WAITING} messages wait for a peer that does not read",
                    cure="Check whether that daemon hangs, and restart it",
                )
            self._waiting.append(message)
        self._changed.set()

    def hold(self, done: TaskEnd) -> bool:
        """Keeps the end of a task for the next message, since a separate one costs each side half a
        millisecond. May be called in any thread. True: `flush_soon` has to be called.
        """
        self._held.append(done)
        is_first, self._will_flush = not self._will_flush, True
        return is_first

    def flush_soon(self) -> None:
        """Sends the held items by themselves if no message follows for a while."""
        asyncio.get_running_loop().call_later(HOLD_S, self._flush)

    def _flush(self) -> None:
        self._will_flush = False  # before looking: what is held from now on leads to another
        if self._held and not self._closed:
            self.add([([], [])])

    def close(self) -> None:
        """Ends the queue after the messages that wait."""
        self._closed = True
        self._changed.set()

    async def next(self) -> list[Buffer] | None:
        """The next message as buffers, with what is held; waits for one. None after the last."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        items, payloads = self._waiting.popleft()
        held = [done_item(self._held.popleft()) for _ in range(len(self._held))]
        return buffers([*held, *items], payloads)
