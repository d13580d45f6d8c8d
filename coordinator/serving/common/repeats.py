"""Requests that a client sends again: computed once, and answered each time.

A client whose connection is lost does not know what became of its request, and sends it again with
the same `Idempotency-Key`. If the first one is still computed, both get its answer; if it has just
been answered, the kept answer is sent again. What was asked has to be the same, from the same
caller.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Header, Request, Response

from coordinator.serving.common.body import body_of
from coordinator.serving.common.errors import IdReused
from coordinator.serving.common.names import ID_HEADER
from protos.errors import BadRequest

# Answers are kept for as long as clients of a machine that died send again: ours does for four
# seconds, after those in which they notice it.
KEPT_S = 15.0
KEPT_BYTES = 16 << 20
# A larger one is computed again: it would push out those of everybody else.
LARGEST_BYTES = KEPT_BYTES // 4
# What an answer takes besides its body.
ENTRY_BYTES = 2048
# What goes on to be computed although its client is gone: so many requests, with bodies up to this
# (HAProxy repeats no larger ones, either). Beyond that, a request ends with its connection.
MOST_ALONE = 16
ALONE_BYTES = 2 << 20

_ID = re.compile(r"[A-Za-z0-9._:-]{8,64}")

RequestKey = Annotated[
    str | None,
    Header(
        alias=ID_HEADER,
        description="An id of this request, 8 to 64 letters, digits and `._:-`. If it is sent "
        "again with the same id within some seconds, it is not computed again.",
        json_schema_extra={"minLength": 8, "maxLength": 64, "pattern": f"^{_ID.pattern}$"},
    ),
]


@dataclass(slots=True)
class _Known:
    """A request that is computed, or was: what was asked, and how many clients wait for it."""

    asked: bytes
    answer: asyncio.Task[Response]
    body_bytes: int
    waiting: int = 0
    kept_bytes: int = 0


class Repeats:
    """The requests of one application that have an id."""

    def __init__(self, kept_s: float = KEPT_S, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_s = kept_s
        self._most_bytes = kept_bytes
        # What the kept answers take.
        self.held_bytes = 0
        # By caller and id; the oldest is first.
        self._known: dict[tuple[str, str], _Known] = {}

    def __len__(self) -> int:
        """How many requests are known."""
        return len(self._known)

    async def once(
        self,
        request: Request,
        id_: str,
        compute: Callable[[], Coroutine[Any, Any, Response]],
    ) -> Response:
        """The answer to a request with an id whose body was read, computed unless it is known.

        Raises:
            BadRequest: that is not an id.
            IdReused: the same caller asked something else with this id.
            ImbrexError: as `compute`.
        """
        body = body_of(request)
        # Without keys, whoever has the id of a request may have its answer, through any proxy.
        caller = body.caller if body.caller.startswith("key ") else ""
        key = (caller, _checked(id_))
        known = self._known.get(key)
        asked = body.digest(_about(request))
        if known is None:
            answer = asyncio.create_task(compute())
            known = self._known[key] = _Known(asked, answer, body.size_bytes)
            answer.add_done_callback(lambda _, entry=known: self._ended(key, entry))  # type: ignore[misc]
        elif known.asked != asked:
            raise IdReused(
                cause=f"another request with the {ID_HEADER} {id_} was sent a short time ago",
                cure="Give each request an id of its own (a random UUID), and send again only what "
                "is the same",
            )
        known.waiting += 1
        try:
            return await asyncio.shield(known.answer)
        finally:
            known.waiting -= 1
            if not known.waiting and not known.answer.done() and not self._may_go_on(known):
                self._forget(key, known)
                known.answer.cancel()

    def _may_go_on(self, known: _Known) -> bool:
        """Whether a request is computed on for a client that may ask again."""
        alone = sum(not known.waiting and not known.answer.done() for known in self._known.values())
        return known.body_bytes <= ALONE_BYTES and alone <= MOST_ALONE

    def _ended(self, key: tuple[str, str], known: _Known) -> None:
        """Keeps an answer for a while; an error is forgotten, for the next attempt may succeed."""
        failed = known.answer.cancelled() or known.answer.exception() is not None
        if self._known.get(key) is not known:
            return  # it has had to make room already
        size = 0 if failed else len(known.answer.result().body) + ENTRY_BYTES
        if failed or size > min(LARGEST_BYTES, self._most_bytes):
            self._forget(key, known)
            return
        known.kept_bytes = size
        self.held_bytes += size
        for oldest, entry in list(self._known.items()):
            if self.held_bytes <= self._most_bytes:
                break
            if entry.answer.done():
                self._forget(oldest, entry)
        asyncio.get_running_loop().call_later(self._kept_s, self._forget, key, known)

    def _forget(self, key: tuple[str, str], known: _Known) -> None:
        if self._known.get(key) is known:
            del self._known[key]
            self.held_bytes -= known.kept_bytes


def _checked(id_: str) -> str:
    if not _ID.fullmatch(id_):
        raise BadRequest(
            cause=f"the {ID_HEADER} {id_[:80]!r} is not an id",
            cure="Send 8 to 64 letters, digits and ._:-, such as a random UUID, or no such header",
        )
    return id_


def _about(request: Request) -> bytes:
    """What an answer depends on besides the body."""
    headers = ("accept", "accept-encoding", "content-type", "content-encoding")
    more = ("inference-header-content-length",)
    values = [request.headers.get(name, "") for name in (*headers, *more)]
    return "\n".join([request.url.path, request.url.query, *values]).encode()
