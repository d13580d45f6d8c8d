"""The coordinator daemon: the core, and the servers of its interfaces, in one event loop.

When all of them listen, `ready.json` in the state directory holds {"url", "grpc", "pid"}.

HTTP connections are limited in their number, in total and per address, and in the time for a
request's head. At either limit the new connection is accepted and an idle one is closed: a flood of
connections only displaces itself, and a client with a request is served. What follows the head is
up to the application (`coordinator.serving.common.body`).
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import h11
import structlog
import uvicorn
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.devices.host_worker import HostHardware
from coordinator.service import WEIGHTS_FOLDER, Coordinator
from coordinator.serving.app import create_app
from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.common.keys import neighbourhood
from coordinator.serving.common.tls import WebTls
from coordinator.settings import CoordinatorSettings
from models.onnx_file.mapped import remove_leftovers
from protos.daemon.files import alone_in
from protos.daemon.ports import cannot_listen
from protos.daemon.process_memory import keep_buffers
from protos.daemon.supervision import ready_file, serving

READY_FILE = "ready.json"
# Requests in flight may finish within this time; then connections are closed.
DRAIN_S = 5
# Cameras send a picture now and then over one session; closing it costs them a connection or error.
KEEP_ALIVE_S = 75
# A request's head is one or two packets.
HEAD_S = 10.0
MOST_HEAD_BYTES = 64 * 1024
# systemd allows a service 1024 files, and connections to workers need some.
MOST_CONNECTIONS = 400
# Loopback may be a proxy for many clients, so that only the total limit applies to it.
_PROXIES = frozenset({"127.0.0.1", "::1"})

log = structlog.get_logger(__name__)


def serve(settings: CoordinatorSettings, hardware: HostHardware | None = None) -> None:
    """Runs a coordinator until SIGTERM or SIGINT, on this computer or as the given `hardware`.

    Raises:
        BadConfiguration: a port is taken, or the state directory can't be used.
    """
    gc.freeze()  # full collections, which pause everything, pass over what is imported
    uvloop.run(_run(settings, hardware))


async def _run(settings: CoordinatorSettings, hardware: HostHardware | None) -> None:
    keep_buffers()
    with alone_in(settings.state_dir, "coordinator"), _listening(settings) as listener:
        remove_leftovers(settings.state_dir / WEIGHTS_FOLDER)
        tls = WebTls.of(settings)
        coordinator = Coordinator(settings, hardware=hardware)
        await coordinator.start()
        try:
            await _serve(coordinator, listener, tls)
        finally:
            await coordinator.stop()


async def _serve(coordinator: Coordinator, listener: socket.socket, tls: WebTls | None) -> None:
    app = create_app(coordinator)
    interfaces: list[OptionalInterface] = app.state.interfaces
    config = uvicorn.Config(
        app,
        http=partial(HttpConnection, most_of_address=coordinator.settings.max_connections),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    config.ssl = tls.context if tls else None
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def stop() -> None:
        for interface in interfaces:
            interface.close()
        server.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    settings = coordinator.settings
    keeping = asyncio.create_task(tls.keep()) if tls else None
    try:
        places = {"url": url}
        for interface in interfaces:
            places |= await interface.start(tls)
        with ready_file(settings.state_dir / READY_FILE, places):
            log.info("ready", **places)
            async with serving():
                await server.serve(sockets=[listener])
    finally:
        if keeping is not None:
            keeping.cancel()
        for interface in reversed(interfaces):
            await interface.stop()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the daemon decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's signal handlers alone."""
        yield

    def stop(self) -> None:
        """Finishes requests in flight, then returns from `serve`."""
        self.should_exit = True


@contextmanager
def _listening(settings: CoordinatorSettings) -> Iterator[socket.socket]:
    """The listening socket, opened first: a taken port is reported before anything starts."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(128)
        except OSError as error:
            reason, ways = error.strerror or str(error), ("--host", "--port")
            raise cannot_listen(settings.host, settings.port, ways, reason) from error
        listener.setblocking(False)
        yield listener


class _WholeAnswers(h11.Connection):
    """Holds an answer's head until its body comes, so that both are one write: a proxy that gets
    nothing from a coordinator that dies can ask another one, but once it has passed on a head the
    request is lost.
    """

    _head = b""

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """The bytes to write for the event."""
        data = super().send(event)
        if isinstance(event, h11.Response):
            self._head = data or b""
            return b""
        if self._head and data is not None:
            data, self._head = self._head + data, b""
        return data


class HttpConnection(H11Protocol):
    """One client's connection; closed if a request's head is not complete in time."""

    _due: asyncio.TimerHandle | None = None
    since_s = 0.0
    address = ""

    def __init__(self, *arguments: Any, most_of_address: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most_of_address = most_of_address
        self.conn = _WholeAnswers(h11.SERVER, MOST_HEAD_BYTES)

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
            self._due = self.loop.call_later(HEAD_S, self._hang_up)

    def data_received(self, data: bytes) -> None:
        """Data has arrived. The time for a head is limited, from when its first byte may come."""
        super().data_received(data)
        if not self.idle:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD_S, self._hang_up)

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
            connection for connection in self.connections if isinstance(connection, HttpConnection)
        ]
        own = [connection for connection in everybody if connection.address == self.address]
        if self.address not in _PROXIES and len(own) > self._most_of_address:
            among = own
        elif len(everybody) > MOST_CONNECTIONS:
            among = everybody
        else:
            return None
        others = [
            connection
            for connection in among
            if not connection.unanswered and connection is not self
        ]
        return _idlest(others) or self

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
    count = Counter(connection.address for connection in among)
    return max(
        among,
        key=lambda connection: (connection.idle, count[connection.address], -connection.since_s),
        default=None,
    )
