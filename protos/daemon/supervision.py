"""Tells systemd, if that started the daemon, and whoever reads its file that it is ready and alive:
sd_notify(3).

The watchdog signal comes from the event loop that serves: a daemon whose loop hangs is restarted.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from protos.daemon.files import write_atomically

_SOCKET = "NOTIFY_SOCKET"
_WATCHDOG = "WATCHDOG_USEC"
_FOR_PROCESS = "WATCHDOG_PID"


@asynccontextmanager
async def serving(environ: MutableMapping[str, str] = os.environ) -> AsyncIterator[None]:
    """Reports readiness while this context is open; does nothing if systemd does not ask for it.

    The variables are removed from the environment: child processes are not the service.
    """
    address = environ.pop(_SOCKET, "")
    period_s = _watchdog_period_s(environ)
    if not address:
        yield
        return
    with _connected(address) as to_systemd:
        _tell(to_systemd, "READY=1")
        alive = asyncio.create_task(_stay_alive(to_systemd, period_s)) if period_s else None
        try:
            yield
        finally:
            if alive is not None:
                alive.cancel()
            _tell(to_systemd, "STOPPING=1")


def _watchdog_period_s(environ: MutableMapping[str, str]) -> float:
    """Seconds between watchdog signals, half of systemd's timeout; 0 without a watchdog."""
    process, timeout_us = environ.pop(_FOR_PROCESS, ""), environ.pop(_WATCHDOG, "")
    if process and process != str(os.getpid()):
        return 0.0
    return int(timeout_us) / 2e6 if timeout_us.isdecimal() else 0.0


def _connected(address: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    found.setblocking(False)
    # An @ stands for the null byte of an abstract address.
    with suppress(OSError):
        found.connect("\0" + address[1:] if address.startswith("@") else address)
    return found


async def _stay_alive(to_systemd: socket.socket, period_s: float) -> None:
    while True:
        _tell(to_systemd, "WATCHDOG=1")
        await asyncio.sleep(period_s)


def _tell(to_systemd: socket.socket, state: str) -> None:
    # If systemd does not receive it, its watchdog restarts the daemon.
    with suppress(OSError):
        to_systemd.send(state.encode())


@contextmanager
def ready_file(path: Path, told: Mapping[str, object]) -> Iterator[None]:
    """While a daemon serves, `path` says what it `told`, and the process (`pid`)."""
    write_atomically(path, json.dumps({**told, "pid": os.getpid()}).encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
