"""The coordinator daemon: the core, and the servers of its interfaces, in one event loop.

When all of them listen, `ready.json` in the state directory holds {"url", "grpc", "pid"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
import uvicorn

from coordinator.devices.host_worker import HostHardware
from coordinator.service import WEIGHTS_FOLDER, Coordinator
from coordinator.serving.app import create_app
from coordinator.serving.common.connections import HttpConnection
from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.common.tls import WebTls
from coordinator.settings import CoordinatorSettings
from models.onnx_file.mapped import remove_leftovers
from protos.daemon.files import alone_in, write_atomically
from protos.daemon.heap import keep_buffers
from protos.daemon.ports import cannot_listen
from protos.daemon.supervision import serving

READY_FILE = "ready.json"
# Requests in flight may finish within this time; then connections are closed.
DRAIN_S = 5
# Cameras send a picture now and then over one session; closing it costs them a connection or error.
KEEP_ALIVE_S = 75

log = structlog.get_logger(__name__)


async def run(settings: CoordinatorSettings, hardware: HostHardware | None = None) -> None:
    """Serves until SIGTERM or SIGINT, on this computer or as the given `hardware`.

    Raises:
        BadConfiguration: a port is taken, or the state directory can't be used.
    """
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
        for each in interfaces:
            each.close()
        server.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    settings = coordinator.settings
    keeping = asyncio.create_task(tls.keep()) if tls else None
    try:
        places = {"url": url}
        for each in interfaces:
            places |= await each.start(tls)
        with _ready_file(settings.state_dir, places | {"pid": os.getpid()}):
            log.info("ready", **places)
            async with serving():
                await server.serve(sockets=[listener])
    finally:
        if keeping is not None:
            keeping.cancel()
        for each in reversed(interfaces):
            await each.stop()


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


@contextmanager
def _ready_file(state_dir: Path, told: Mapping[str, object]) -> Iterator[None]:
    path = state_dir / READY_FILE
    write_atomically(path, json.dumps(told).encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
