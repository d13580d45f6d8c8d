"""Direct streams offered to hosts: a connection that presents a call's token belongs to that
call.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from protos.errors import ImbrexError, PeerViolation
from protos.rpc.direct import GREET_S, TOKEN_BYTES, Direct
from protos.trust.identity import COORDINATOR_NAME
from protos.wire.frames import MAX_MESSAGE_BYTES

# Connections without a token so far: a host sends it at once.
MOST_STRANGERS = 16

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The token of one call, and the stream that presented it."""

    token: str
    stream: asyncio.Future[Direct]


class Offers:
    """Created on the event loop, where all methods except `take` are called."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Offer] = {}
        self._greeting: dict[asyncio.Task[None], None] = {}

    @contextmanager
    def made(self) -> Iterator[Offer]:
        """An offer for the duration of a call; its stream ends with the call."""
        offer = Offer(secrets.token_hex(TOKEN_BYTES // 2), self._loop.create_future())
        self._open[offer.token] = offer
        try:
            yield offer
        finally:
            self._open.pop(offer.token, None)
            if not offer.stream.cancel() and not offer.stream.cancelled():
                offer.stream.result().close()

    def take(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Takes over a host's connection before its TLS handshake; may be called in any thread."""
        try:
            self._loop.call_soon_threadsafe(self._begin, accepted, context)
        except RuntimeError:  # the loop is closed
            accepted.close()

    async def close(self) -> None:
        """Ends the connections that have not presented a token."""
        greeting = list(self._greeting)
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)

    def _begin(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        if len(self._greeting) >= MOST_STRANGERS:
            # The oldest connection without a token is not a host's.
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.cancel()
        stream = Direct()
        greeting = self._loop.create_task(self._greet(stream, accepted, context))
        self._greeting[greeting] = None

        def ended(_: asyncio.Task[None]) -> None:
            self._greeting.pop(greeting, None)
            if not stream.is_connected:  # otherwise the stream owns it
                accepted.close()

        greeting.add_done_callback(ended)

    async def _greet(
        self, stream: Direct, accepted: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        try:
            async with asyncio.timeout(GREET_S):
                await self._loop.connect_accepted_socket(lambda: stream, accepted, ssl=context)
                token = await stream.read()
            if context is not None and COORDINATOR_NAME not in stream.names:
                raise PeerViolation(
                    cause=f"its certificate is for {', '.join(stream.names)}, which is not a host",
                    cure="See `imbrex cluster list`",
                )
            offer = self._open.pop(bytes(token or b"").decode(errors="replace"), None)
            if offer is None or offer.stream.done():
                raise PeerViolation(
                    cause="its token is not that of an open call",
                    cure="Connect to the worker's port",
                )
            stream.most_bytes = MAX_MESSAGE_BYTES
            offer.stream.set_result(stream)
            await stream.write([])
        except (OSError, ImbrexError) as error:
            _log.warning("host's stream refused", cause=getattr(error, "cause", repr(error)))
            stream.abort()
        except asyncio.CancelledError:
            stream.abort()
            raise
