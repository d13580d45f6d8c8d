"""HTTP connections, bounded: in number, and in how long the head of a request may take.

What comes after the head is the application's (`coordinator.serving.intake`); before it there is
nothing else that a caller who sends a byte a minute would meet.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

# A request's head is one packet or two.
HEAD_S = 10.0
# systemd gives a service 1024 files, and workers' connections need some.
MOST_CONNECTIONS = 400

log = structlog.get_logger(__name__)


class Connection(H11Protocol):
    """One client's connection. A caller without a whole head in time is hung up on; beyond the cap,
    new ones are.
    """

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected (under TLS: and shaken hands, which asyncio gives a minute)."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            log.warning("connection refused", client=self.client, cause="there are too many")
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Waits for the head from the first byte that is not a request's yet."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD_S, self._hang_up)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _hang_up(self) -> None:
        log.warning("connection ended", client=self.client, cause="no whole request came in time")
        self.transport.close()
