"""What the application and the daemon know of an optional interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from fastapi import APIRouter, FastAPI, Response

from coordinator.serving.common.errors import Fault, own_shape

if TYPE_CHECKING:
    from coordinator.service import Coordinator
    from coordinator.serving.common.tls import WebTls


class OptionalInterface:
    """Routes, the form of their errors, and servers beside HTTP; this one has none of them."""

    router: ClassVar[APIRouter] = APIRouter()
    # Errors of these paths and those below have the form of `error`.
    prefixes: ClassVar[tuple[str, ...]] = ()
    # Paths that mean something else without the slash at their end.
    with_slash: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, app: FastAPI, coordinator: Coordinator) -> None:
        self.app, self.coordinator = app, coordinator

    @staticmethod
    def error(fault: Fault) -> Response:
        """The answer that reports an error."""
        return own_shape(fault)

    async def start(self, tls: WebTls | None) -> Mapping[str, str]:
        """Starts its servers, and returns what `ready.json` says of them.

        Raises:
            BadConfiguration: one of them cannot listen.
        """
        del tls
        return {}

    def close(self) -> None:
        """Ends answers that would go on for ever, so that the HTTP server can stop."""

    async def stop(self) -> None:
        """Stops its servers, also if none was started."""
