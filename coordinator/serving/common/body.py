"""Request bodies: how many are held at a time, how long each may take, how long each may be.

A body is read before its request is admitted to the queue, so the queue's limit does not bound
memory. Instead a body reserves memory, when the application first asks for it and the guard has
admitted its caller. DeepStack's clients show their key inside the body: until the key is seen, the
body is a *guest*, and guests share little memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.serving.common.content import PLAIN, Unpacker
from coordinator.serving.common.errors import BodyTooLarge, SlowBody
from coordinator.serving.common.keys import NoKey, neighbourhood
from coordinator.serving.common.names import ID_HEADER
from protos.daemon.process_memory import Rest
from protos.errors import ImbrexError, Unavailable

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
# A client that is refused while it sends would see a broken connection instead of the answer: this
# much beyond the limit is read and discarded first.
DRAIN_SHARE = 1.0
# The window for a sender's speed: Wi-Fi in a far room pauses for seconds.
WINDOW_S = 5.0
# Longer than it takes to notice a slow sender and end its body.
WAIT_S = 8.0
# How often those who wait check whether another sender has become slow.
LOOK_S = 0.25
# Waiting bodies; each is a task and a connection that is not being read.
MOST_WAITING = 256
# One caller's share of all bytes and of all bodies.
CALLER_SHARE = 0.5
_MARK_S = WINDOW_S / 10
# The key of the request's scope under which the application finds the body.
BODY = "imbrex.body"


class BodyKind(Enum):
    """What the body of a route is, which decides how long it may be: `max_json_bytes` for JSON,
    `max_body_bytes` for pictures, tensors and forms (DATA); NONE is not read.
    """

    NONE = "none"
    JSON = "json"
    DATA = "data"


def body_of(request: Request) -> Body:
    """The request's body."""
    body: Body = request.scope[BODY]
    return body


def json_too_large(limit_bytes: int) -> BodyTooLarge:
    """The error for too much JSON; its limit is low because text grows tenfold in memory."""
    return BodyTooLarge(
        cause=f"the request's JSON is longer than {limit_bytes} bytes",
        cure="Send tensors as bytes (.npz, or the binary data extension), or raise the "
        "coordinator's setting max_json_bytes",
    )


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
        self.large = BodyMemory(BODIES_HELD * max_body_bytes, MOST_BODIES, min_body_bytes_per_s)
        self.small = BodyMemory(max_body_bytes, MOST_BODIES, min_body_bytes_per_s)
        guest_bytes = MOST_GUESTS * min(GUEST_BYTES, max_body_bytes)
        self.guests = BodyMemory(guest_bytes, MOST_GUESTS, min_body_bytes_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = scope[BODY] = Body(self, scope, receive)
        try:
            # If the client disconnects the answer is cancelled, which frees its resources.
            answering = asyncio.ensure_future(self._app(scope, body.receive, send))
            going = asyncio.ensure_future(body.gone())
            try:
                await asyncio.wait((answering, going), return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    answering.result()
            finally:
                for task in (answering, going):
                    task.cancel()
                await asyncio.gather(answering, going, return_exceptions=True)
        finally:
            body.free()
            self._answered()


class Body:
    """The body of one request as it arrives. The guard sets `caller` and `guest`, and by the rule
    of the route `kind` and `limit_bytes`.
    """

    def __init__(self, intake: Intake, scope: Scope, receive: Receive) -> None:
        client = scope.get("client")
        self.address = neighbourhood(client[0] if client else "")
        self.caller = f"at {self.address}"
        self.guest = False
        self.kind, self.limit_bytes = BodyKind.NONE, 0
        # Bytes that have come.
        self.size_bytes = 0
        self._intake = intake
        self._receive = receive
        self._headers = headers = Headers(scope=scope)
        self.coding = headers.get("content-encoding", "").strip().lower() or PLAIN
        # Bytes of memory that it may take: its announced length, or the limit if the length is not
        # announced or the body is compressed.
        length = headers.get("content-length", "0")
        self._expected = intake.max_body_bytes
        if "transfer-encoding" not in headers and length.isdecimal():
            packed = int(length) and self.coding != PLAIN
            self._expected = self._expected if packed else min(int(length), self._expected)
        # Of nothing, until memory is needed.
        self._reserved = Reservation(intake.small, self.caller, 0)
        # Of requests with an id, which may come again.
        self._digest = hashlib.blake2b(digest_size=32) if ID_HEADER in headers else None
        self._complete = asyncio.Event()
        self._deadline = 0.0

    async def read(self) -> bytes:
        """The whole body, without its content coding (gzip, deflate).

        Raises:
            BodyTooLarge: it is longer than the rule of the route allows; at most as much was kept.
            UnsupportedMediaType, BadRequest: the coding is not supported, or the body is broken.
        """
        kept = bytearray()
        async for piece in self.pieces():
            kept += piece
        return bytes(kept)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body in pieces, as it arrives, without its content coding.

        Raises:
            BodyTooLarge, UnsupportedMediaType, BadRequest: as `read`.
        """
        assert self.kind is not BodyKind.NONE, "the rule of a route says what it reads"
        sent = self._sent()
        if self.coding == PLAIN:
            async for piece in sent:
                yield piece
            return
        unpacked_bytes = 0
        try:
            unpacker = Unpacker(self.coding)
            async for packed in sent:
                unpacked = unpacker.unpack(packed)
                while piece := await asyncio.to_thread(next, unpacked, b""):
                    unpacked_bytes += len(piece)
                    if unpacked_bytes > self.limit_bytes:
                        raise self._too_large()
                    yield piece
            unpacker.end()
        except ImbrexError:
            async for _ in sent:
                pass  # a client that still sends would see a broken connection instead of an answer
            raise
        self._reserved.settle(unpacked_bytes)

    async def _sent(self) -> AsyncIterator[bytes]:
        """The body as it was sent, up to the limit; then an error."""
        patience = int(self.limit_bytes * (1 + DRAIN_SHARE))
        announced = self._headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > patience:
            raise self._too_large()
        seen, more = 0, True
        while more and seen <= patience:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece, more = message.get("body", b""), message.get("more_body", False)
            seen += len(piece)
            if piece and seen <= self.limit_bytes:
                yield piece
        if seen > self.limit_bytes:
            raise self._too_large()

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
            await self._reserve()
            self._deadline = loop.time() + BODY_S
        until = min(loop.time() + self._intake.idle_s, self._deadline)
        if self._reserved.evicted:
            raise self._slow()
        try:
            async with asyncio.timeout_at(until) as self._reserved.reading:
                message = await self._receive()
        except TimeoutError:
            raise self._slow() from None
        finally:
            self._reserved.reading = None
        if message["type"] != "http.request":
            self._complete.set()
            return message
        piece = message.get("body", b"")
        self.size_bytes += len(piece)
        if self._digest is not None:
            self._digest.update(piece)
        self._reserved.come(len(piece))
        if not message.get("more_body", False):
            self._complete.set()
            self._reserved.settle(min(self.size_bytes, self._expected))
        if self.guest and self.size_bytes > GUEST_BYTES:
            raise NoKey(
                cause=f"no API key came within the first {GUEST_BYTES >> 20} MB of the form",
                cure="Send api_key before the picture, or the key as `X-API-Key: KEY`",
            )
        return message

    async def admit(self, caller: str) -> None:
        """Turns a guest that has shown its key into an ordinary caller.

        Raises:
            Unavailable: there is no memory for its body.
        """
        self.free()
        self.caller, self.guest = caller, False
        await self._reserve()
        self._reserved.come(self.size_bytes)
        if self._complete.is_set():
            self._reserved.settle(self.size_bytes)

    def free(self) -> None:
        """Gives up its memory: nothing of it is kept."""
        self._reserved.free()

    def digest(self, about: bytes) -> bytes:
        """Stands for the complete body of a request with an id, and what else is asked."""
        assert self._digest is not None, "the request has an id"
        digest = self._digest.copy()
        digest.update(about)
        return digest.digest()

    def expect_nothing(self) -> None:
        """Nothing of a body will be read: the request ends with its connection."""
        self._complete.set()

    async def gone(self) -> None:
        """Returns when the client of a complete body has disconnected."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _reserve(self) -> None:
        if not self._expected:
            return
        size, intake = self._expected, self._intake
        if self.guest:
            memory, size = intake.guests, min(size, GUEST_BYTES)
        else:
            is_small = size <= min(SMALL_BYTES, intake.max_body_bytes // 4)
            memory = intake.small if is_small else intake.large
        self._reserved = await memory.reserve(self.caller, size)

    def _slow(self) -> SlowBody:
        if self._reserved.evicted:
            return SlowBody(
                cause=f"the body came too slowly ({self.size_bytes} bytes so far) while others "
                "waited",
                cure="Send it faster, or lower min_body_bytes_per_s in the coordinator's settings",
            )
        return SlowBody(
            cause=f"the body stopped coming after {self.size_bytes} bytes",
            cure="Send it without pauses; check that the network is not overloaded",
        )

    def _too_large(self) -> BodyTooLarge:
        if self.kind is BodyKind.JSON:
            return json_too_large(self.limit_bytes)
        return BodyTooLarge(
            cause=f"the body is longer than {self.limit_bytes} bytes",
            cure="Send a smaller picture, or raise the coordinator's setting max_body_bytes",
        )


@dataclass(slots=True, eq=False)
class Reservation:
    """The memory of one body, and how fast it comes. It is `evicted` if it is slow and another
    body needs its memory: then `reading`, within which a piece is awaited, expires at once.
    """

    memory: BodyMemory
    caller: str
    size_bytes: int
    complete: bool = False
    evicted: bool = False
    reading: asyncio.Timeout | None = None
    _come_bytes: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def come(self, count_bytes: int) -> None:
        """Another piece of the body has arrived."""
        now = self.memory.clock()
        self._come_bytes += count_bytes
        if not self._marks or now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, self._come_bytes))

    def bytes_per_s(self, now: float) -> float:
        """Its speed over the window; infinite while it is too new to be judged."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        since_s, before = self._marks[0]
        if self.complete or now - since_s < WINDOW_S:
            return float("inf")
        return (self._come_bytes - before) / (now - since_s)

    def evict(self) -> None:
        """Ends the body: another one needs its memory."""
        self.evicted = True
        if self.reading is not None:
            self.reading.reschedule(asyncio.get_running_loop().time())

    def settle(self, size_bytes: int) -> None:
        """The body is complete; `size_bytes` is what is kept of it."""
        self.complete, self.size_bytes = True, size_bytes
        self.memory.changed()

    def free(self) -> None:
        """Nothing of the body is kept."""
        self.memory.free(self)


class BodyMemory:
    """Limits the memory for what clients send, in total and per caller.

    Memory is reserved before any of a body is read, for the length that it announces. If there is
    no room it waits for a little while; a sender slower than the minimum keeps its reservation only
    while nobody else needs it. One caller gets at most half, so it never locks out others.
    """

    def __init__(
        self,
        most_bytes: int,
        most_bodies: int,
        floor_bytes_per_s: float,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._most_bytes = most_bytes
        self._most_bodies = most_bodies
        self._floor_bytes_per_s = floor_bytes_per_s
        self._wait_s = wait_s
        self._held: list[Reservation] = []
        self._waiting = 0
        self._freed = asyncio.Event()
        self._rest = Rest()

    @property
    def held_bytes(self) -> int:
        """Bytes of all reservations."""
        return sum(reservation.size_bytes for reservation in self._held)

    @property
    def held_bodies(self) -> int:
        """Number of reservations."""
        return len(self._held)

    async def reserve(self, caller: str, size_bytes: int) -> Reservation:
        """Memory for a body of this size, to be freed.

        Raises:
            Unavailable: there was no room for too long.
        """
        deadline = self.clock() + self._wait_s
        while not (
            self._has_room(self._held, size_bytes, 1.0)
            and self._has_room(
                [reservation for reservation in self._held if reservation.caller == caller],
                size_bytes,
                CALLER_SHARE,
            )
        ):
            left_s = deadline - self.clock()
            if left_s <= 0 or self._waiting >= MOST_WAITING:
                raise Unavailable(
                    cause=f"{self.held_bodies} bodies with {self.held_bytes} bytes are held "
                    "already",
                    cure="Try again in a moment, or send fewer requests at a time",
                )
            self._evict_slow(caller, size_bytes)
            await self._wait_for_change(min(left_s, LOOK_S))
        reservation = Reservation(self, caller, size_bytes)
        reservation.come(0)
        self._held.append(reservation)
        return reservation

    def free(self, reservation: Reservation) -> None:
        """Nothing of its body is kept."""
        if reservation in self._held:
            self._held.remove(reservation)
            self.changed()
            self._rest.begin()

    def changed(self) -> None:
        """There is more room than before."""
        self._freed.set()
        self._freed = asyncio.Event()

    def _has_room(self, held: list[Reservation], size_bytes: int, share: float) -> bool:
        held_bytes = sum(reservation.size_bytes for reservation in held)
        return (
            held_bytes + size_bytes <= share * self._most_bytes
            and len(held) + 1 <= share * self._most_bodies
        )

    def _evict_slow(self, caller: str, size_bytes: int) -> None:
        """Ends the slowest senders, until the new body fits without them."""
        now = self.clock()
        among, share = (
            [reservation for reservation in self._held if reservation.caller == caller],
            CALLER_SHARE,
        )
        if self._has_room(among, size_bytes, share):
            among, share = self._held, 1.0
        staying = [reservation for reservation in among if not reservation.evicted]
        slow = [
            reservation
            for reservation in staying
            if reservation.bytes_per_s(now) < self._floor_bytes_per_s
        ]
        for reservation in sorted(slow, key=lambda reservation: reservation.bytes_per_s(now)):
            if self._has_room(staying, size_bytes, share):
                return
            staying.remove(reservation)
            reservation.evict()

    async def _wait_for_change(self, most_s: float) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(most_s):
                await self._freed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
