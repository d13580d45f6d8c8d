"""Limits of incoming bodies: how many are held at a time, and how long each may take.

A body is read before its request is admitted to the queue, so the queue's limit does not bound
memory. Instead a body needs a place (`places`), which it takes when the application first asks for
it, after the guard has admitted its caller. DeepStack's clients show their key inside the body:
until the key is seen, the body is a *guest*, and guests share little memory.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from enum import Enum

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.serving.common.codings import PLAIN, content_coding
from coordinator.serving.common.errors import SlowBody
from coordinator.serving.common.keys import NoKey
from coordinator.serving.common.names import ID_HEADER
from coordinator.serving.common.places import Place, Places
from coordinator.serving.common.rate_limit import neighbourhood

# Longest pause within a body: Wi-Fi in a far room pauses for seconds, but not for ten.
IDLE_S = 10.0
# Longest time for a whole body: 64 MB at 4.5 Mbps.
BODY_S = 120.0
# Bodies at a time; each is a task and a buffer of 64 kB. A home has a handful.
MOST_BODIES = 256
# Memory for bodies, in multiples of the largest allowed body.
BODIES_HELD = 4
# Small bodies have their own memory, as much as one of the largest: a client that announces much
# and sends little blocks only others that do.
SMALL_BYTES = 1 << 20
# Memory for guests: a camera's picture has some hundred kB.
GUEST_BYTES = 2 << 20
MOST_GUESTS = 8
# The key of the request's scope under which the application finds the body.
BODY = "imbrex.body"


class BodyKind(Enum):
    """What the body of a route is, which decides how long it may be: `max_json_bytes` for JSON,
    `max_body_bytes` for pictures, tensors and forms (DATA); NONE is not read.
    """

    NONE = "none"
    JSON = "json"
    DATA = "data"


class Intake:
    """ASGI middleware around the application. `answered` is called after each request, when its
    answer has been sent.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        min_body_bytes_per_s: float,
        idle_s: float = IDLE_S,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._answered = answered
        self.max_body_bytes = max_body_bytes
        self.idle_s = idle_s
        self.large = Places(BODIES_HELD * max_body_bytes, MOST_BODIES, min_body_bytes_per_s)
        self.small = Places(max_body_bytes, MOST_BODIES, min_body_bytes_per_s)
        guest_bytes = MOST_GUESTS * min(GUEST_BYTES, max_body_bytes)
        self.guests = Places(guest_bytes, MOST_GUESTS, min_body_bytes_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = Body(self, scope, receive)
        scope[BODY] = body
        try:
            await _until_disconnected(self._app(scope, body.receive, send), body.gone())
        finally:
            body.free()
            self._answered()


class Body:
    """The body of one request as it arrives. The guard sets `caller` and `guest`, and by the rule
    of the route `kind` and `limit_bytes`.
    """

    def __init__(self, intake: Intake, scope: Scope, receive: Receive) -> None:
        client = scope.get("client")
        self.caller = f"at {neighbourhood(client[0] if client else '')}"
        self.guest = False
        self.kind, self.limit_bytes = BodyKind.NONE, 0
        self._intake = intake
        self._receive = receive
        self._expected = _expected(scope, intake.max_body_bytes)
        self._places = intake.large
        self._place: Place | None = None
        self._come = 0
        # Of requests with an id, which may come again.
        has_id = ID_HEADER in Headers(scope=scope)
        self._digest = hashlib.blake2b(digest_size=32) if has_id else None
        self._complete = asyncio.Event()
        self._deadline = 0.0
        self._patience: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        """The next message; after the last piece, the end of the connection.

        Raises:
            SlowBody: it stopped, or was slow while others waited.
            Unavailable: there is no memory for it.
            NoKey: a guest has sent too much without a key.
        """
        if self._complete.is_set():
            return await self._receive()
        loop = asyncio.get_running_loop()
        if not self._deadline:
            await self._take_place()
            self._deadline = loop.time() + BODY_S
        until = min(loop.time() + self._intake.idle_s, self._deadline)
        try:
            async with asyncio.timeout_at(until) as self._patience:
                if self._is_ended():
                    raise TimeoutError
                message = await self._receive()
        except TimeoutError:
            raise self._slow() from None
        finally:
            self._patience = None
        self._took(message)
        return message

    async def admit(self, caller: str) -> None:
        """Turns a guest that has shown its key into an ordinary caller.

        Raises:
            Unavailable: there is no memory for its body.
        """
        self.free()
        self.caller, self.guest = caller, False
        await self._take_place()
        if self._place is not None:
            self._places.come(self._place, self._come)
            if self._complete.is_set():
                self.settle(self._come)

    def settle(self, size_bytes: int) -> None:
        """Sets the number of bytes that are kept of the complete body."""
        if self._place is not None:
            self._places.settle(self._place, size_bytes)

    def free(self) -> None:
        """Gives up the body's place: nothing of it is kept."""
        if self._place is not None:
            self._places.free(self._place)
            self._place = None

    @property
    def size_bytes(self) -> int:
        """Bytes that have come."""
        return self._come

    def digest(self, about: bytes) -> bytes:
        """Stands for the complete body of a request with an id, and what else is asked."""
        assert self._digest is not None, "the request has an id"
        made = self._digest.copy()
        made.update(about)
        return made.digest()

    def expect_nothing(self) -> None:
        """Nothing of a body will be read: the request ends with its connection."""
        self._complete.set()

    async def gone(self) -> None:
        """Returns when the client of a complete body has disconnected."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _take_place(self) -> None:
        if not self._expected:
            return
        size, intake = self._expected, self._intake
        if self.guest:
            self._places, size = intake.guests, min(size, GUEST_BYTES)
        else:
            small = size <= min(SMALL_BYTES, intake.max_body_bytes // 4)
            self._places = intake.small if small else intake.large
        self._place = await self._places.take(self.caller, size, self._end)

    def _took(self, message: Message) -> None:
        if message["type"] != "http.request":
            self._complete.set()
            return
        piece = message.get("body", b"")
        count = len(piece)
        self._come += count
        if self._digest is not None:
            self._digest.update(piece)
        if self._place is not None:
            self._places.come(self._place, count)
        if not message.get("more_body", False):
            self._complete.set()
            self.settle(min(self._come, self._expected))
        if self.guest and self._come > GUEST_BYTES:
            raise NoKey(
                cause=f"no API key came within the first {GUEST_BYTES >> 20} MB of the form",
                cure="Send api_key before the picture, or the key as `X-API-Key: KEY`",
            )

    def _is_ended(self) -> bool:
        return self._place is not None and self._place.ended

    def _end(self) -> None:
        """Ends the body, because another needs its place."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def _slow(self) -> SlowBody:
        if self._is_ended():
            return SlowBody(
                cause=f"the body came too slowly ({self._come} bytes so far) while others waited",
                cure="Send it faster, or lower min_body_bytes_per_s in the coordinator's settings",
            )
        return SlowBody(
            cause=f"the body stopped coming after {self._come} bytes",
            cure="Send it without pauses; check that the network is not overloaded",
        )


def _expected(scope: Scope, most: int) -> int:
    """Bytes of memory that the body may take: its announced length, or the limit if the length is
    not announced or the body is compressed.
    """
    headers = Headers(scope=scope)
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not length.isdecimal():
        return most
    packed = content_coding(headers) != PLAIN
    return most if packed and int(length) else min(int(length), most)


async def _until_disconnected(answer: Awaitable[None], gone: Awaitable[None]) -> None:
    """Awaits the answer, but cancels it if the client disconnects, which frees its resources."""
    answering, going = asyncio.ensure_future(answer), asyncio.ensure_future(gone)
    try:
        await asyncio.wait((answering, going), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        for each in (answering, going):
            each.cancel()
        await asyncio.gather(answering, going, return_exceptions=True)
