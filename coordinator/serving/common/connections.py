"""HTTP connections, bounded: in number, in all and of one address, and in how long the head of a
request may take.

At either cap the newcomer is let in, and who is idle goes: a flood of connections takes each
other's place, and whoever comes with a request is heard. What comes after the head is the
application's (`coordinator.serving.common.intake`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.serving.common.rates import neighbourhood

# A request's head is one packet or two.
HEAD_S = 10.0
# systemd gives a service 1024 files, and workers' connections need some.
MOST_CONNECTIONS = 400
# A proxy on this device speaks for everybody behind it; there is no limit for it but the one above.
_PROXIES = frozenset({"127.0.0.1", "::1"})

log = structlog.get_logger(__name__)


class Connection(H11Protocol):
    """One client's connection. A caller without a whole head in time is hung up on."""

    _due: asyncio.TimerHandle | None = None
    since_s = 0.0
    address = ""

    def __init__(self, *arguments: Any, most_of_address: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most_of_address = most_of_address

    def connection_made(self, transport: Any) -> None:
        """A client has connected (under TLS: and shaken hands, which asyncio gives a minute)."""
        super().connection_made(transport)
        self.since_s = self.loop.time()
        self.address = neighbourhood(self.client[0] if self.client else "")
        leaving = self._who_leaves()
        if leaving is not None:
            cause = "too many connections" + ("" if leaving is self else ", and it was idle")
            log.warning("connection ended", client=leaving.client, cause=cause)
            leaving.connections.discard(leaving)
            leaving.transport.abort()
        if leaving is not self:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request is answered: idle from now on."""
        self.since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._forget()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request of its is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unanswered(self) -> bool:
        """Whether all of a request is here: somebody waits for what is being computed."""
        return not self.idle and not self.cycle.more_body

    def _who_leaves(self) -> Connection | None:
        """The connection that is one too many; none where there is room."""
        everybody: list[Connection] = [
            each for each in self.connections if isinstance(each, Connection)
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
        """Waits for the head from the first byte that is not a request's yet."""
        if not self.idle:
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


def _idlest(connections: Iterable[Connection]) -> Connection | None:
    """Idle ones first, then those whose request is still coming; of the address that has the most,
    the one that has been so for longest.
    """
    among = list(connections)
    count = Counter(each.address for each in among)
    return max(
        among,
        key=lambda each: (each.idle, count[each.address], -each.since_s),
        default=None,
    )
