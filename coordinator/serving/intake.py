"""What comes in, bounded: bodies that are held at one time, requests that are open, patience.

A body is read before its request is admitted to the cluster's queue, so the queue's cap does not
bound memory: this does. Slow senders end with an answer instead of holding a place for ever, and
one that goes away frees what is computed for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.serving.errors import SlowBody
from protos.errors import Unavailable

# Between two pieces of a body: Wi-Fi of a far room pauses for seconds, not for ten.
IDLE_S = 10.0
# For all of a body: 64 MB at 4.5 Mbps.
BODY_S = 120.0
# Each open request is a task and a buffer of 64 kB; a home has a handful.
MOST_OPEN = 256
# Bodies held at one time, in the largest bodies that are allowed.
BODIES_HELD = 4


class Intake:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, idle_s: float = IDLE_S) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._most_bytes = BODIES_HELD * max_body_bytes
        self._idle_s = idle_s
        self.held_bytes = 0
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(self, receive, min(_announced(scope), self._max_body_bytes))
        self.open += 1
        try:
            await _while_wanted(self._app(scope, body.receive, send), body.gone())
        finally:
            self.open -= 1
            self.held_bytes -= body.held_bytes

    def take(self, size_bytes: int) -> None:
        """Accounts for another piece of a body.

        Raises:
            Unavailable: too much is held already.
        """
        if self.held_bytes + size_bytes > self._most_bytes or self.open > MOST_OPEN:
            raise Unavailable(
                cause=f"{self.open} requests are open, with {self.held_bytes} bytes of bodies",
                cure="Try again in a moment, or send fewer requests at a time",
            )
        self.held_bytes += size_bytes

    @property
    def idle_s(self) -> float:
        """How long a sender may pause."""
        return self._idle_s


class _Body:
    """One request's body on its way. What is announced is held from its first piece on: of many
    that come at once as many are taken as there is room for, instead of all of them in part.
    """

    def __init__(self, intake: Intake, receive: Receive, announced: int) -> None:
        self._intake = intake
        self._receive = receive
        self._announced = announced
        self._come = 0
        self._complete = asyncio.Event()
        self._deadline = asyncio.get_running_loop().time() + BODY_S
        self.held_bytes = 0

    async def receive(self) -> Message:
        """The next piece; after the last one, the wait for the end of the connection."""
        if self._complete.is_set():
            return await self._receive()
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now + self._intake.idle_s, self._deadline)):
                message = await self._receive()
        except TimeoutError:
            raise SlowBody(
                cause=f"the body stopped coming after {self._come} bytes",
                cure="Send all of it at once; see that the network is not overloaded",
            ) from None
        self._take(message)
        return message

    def _take(self, message: Message) -> None:
        if message["type"] == "http.request":
            self._come += len(message.get("body", b""))
            if not message.get("more_body", False):
                self._complete.set()
            more = max(self._come, self._announced) - self.held_bytes
            self._intake.take(more)
            self.held_bytes += more
        else:
            self._complete.set()

    async def gone(self) -> None:
        """Returns when the sender of a whole body has gone away."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _announced(scope: Scope) -> int:
    """Bytes of the body by its header; 0 where it doesn't say."""
    found = dict(scope["headers"]).get(b"content-length", b"")
    return int(found) if found.isdigit() else 0


async def _while_wanted(answer: Awaitable[None], gone: Awaitable[None]) -> None:
    """The answer, given up when nobody waits for it: what it computes is freed."""
    answering, going = asyncio.ensure_future(answer), asyncio.ensure_future(gone)
    try:
        await asyncio.wait((answering, going), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        for each in (answering, going):
            each.cancel()
        await asyncio.gather(answering, going, return_exceptions=True)
