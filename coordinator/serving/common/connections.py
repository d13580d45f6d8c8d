"""Limits of HTTP connections: their number, in total and per address, and the time for a request's
head.

At either limit the new connection is accepted and an idle one is closed: a flood of connections
only displaces itself, and a client with a request is served. What follows the head is up to the
application (`coordinator.serving.common.body`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.serving.common.keys import neighbourhood

# A request's head is one or two packets.
HEAD_S = 10.0
# systemd allows a service 1024 files, and connections to workers need some.
MOST_CONNECTIONS = 400
# Loopback may be a proxy for many clients, so that only the total limit applies to it.
_PROXIES = frozenset({"127.0.0.1", "::1"})

log = structlog.get_logger(__name__)


class HttpConnection(H11Protocol):
    """One client's connection; closed if a request's head is not complete in time."""

    _due: asyncio.TimerHandle | None = None
    since_s = 0.0
    address = ""

    def __init__(self, *arguments: Any, most_of_address: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most_of_address = most_of_address

    def connection_made(self, transport: Any) -> None:
        """A client has connected (with TLS: after the handshake, which asyncio limits to a
        minute).
        """
        super().connection_made(transport)
        self.since_s = self.loop.time()
        self.address = neighbourhood(self.client[0] if self.client else "")
        leaving = self._excess()
        if leaving is not None:
            cause = "too many connections" + ("" if leaving is self else ", and it was idle")
            log.warning("connection ended", client=leaving.client, cause=cause)
            leaving.connections.discard(leaving)
            leaving.transport.abort()
        if leaving is not self:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Data has arrived."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request was answered: the connection is idle now."""
        self.since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._forget()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request of this connection is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unanswered(self) -> bool:
        """Whether a complete request waits for its answer."""
        return not self.idle and not self.cycle.more_body

    def _excess(self) -> HttpConnection | None:
        """The connection to close for a new one; None if there is room."""
        everybody: list[HttpConnection] = [
            each for each in self.connections if isinstance(each, HttpConnection)
        ]
        own = [each for each in everybody if each.address == self.address]
        if self.address not in _PROXIES and len(own) > self._most_of_address:
            among = own
        elif len(everybody) > MOST_CONNECTIONS:
            among = everybody
        else:
            return None
        others = [each for each in among if not each.unanswered and each is not self]
        return _idlest(others) or self

    def _watch(self) -> None:
        """Limits the time for the next head, from its first byte."""
        if not self.idle:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD_S, self._hang_up)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _hang_up(self) -> None:
        cause = "no complete request came in time"
        log.warning("connection ended", client=self.client, cause=cause)
        self.transport.close()


def _idlest(connections: Iterable[HttpConnection]) -> HttpConnection | None:
    """Idle connections come first, then those whose request is still arriving; among these, those
    of the address that has the most, and of its connections the one in this state for longest.
    """
    among = list(connections)
    count = Counter(each.address for each in among)
    return max(
        among,
        key=lambda each: (each.idle, count[each.address], -each.since_s),
        default=None,
    )
