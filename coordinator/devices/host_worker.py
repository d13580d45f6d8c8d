"""The host worker: an ordinary worker process on loopback, kept running, and its settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from coordinator.devices.pool import Pool
from coordinator.settings import CoordinatorSettings
from coordinator.trust.trust import Trust
from protos.daemon.parent import PARENT_VARIABLE
from protos.rpc.channels import ELSEWHERE, address_towards, is_loopback
from protos.wire.endpoint import Endpoint

WORKER = (sys.executable, "-m", "imbrex", "worker")

# A worker that ends at once is restarted with growing delays; one that lived for this long is
# restarted at once.
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
STABLE_S = 30.0
# Loading Python, gRPC and onnxruntime takes 1 s on a PC, 15 s from a Pi's slow card.
READY_TIMEOUT_S = 60.0
# Longer than the worker lets a task in progress run on.
STOP_TIMEOUT_S = 8.0
_POLL_S = 0.05
# The worker's output goes to standard error, as the log does: the coordinator's standard output may
# be read as JSON.
_OUR_LOG = 2
_LOOPBACK = "127.0.0.1"
_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostHardware:
    """The hardware of a coordinator, this computer or an emulated one: the cost of messages, and
    the command that starts the worker on it.
    """

    endpoint: Endpoint = field(default_factory=Endpoint)
    worker: tuple[str, ...] = WORKER


class HostWorker:
    """Starts the worker, and restarts it until `stop`; the pool learns when it listens and when it
    has ended.

    `environment` is passed to the worker, but none of this process's own `IMBREX_*` variables.
    `command` starts it.
    """

    def __init__(
        self,
        state_dir: Path,
        environment: Mapping[str, str],
        pool: Pool,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._state_dir = state_dir
        self._environment = environment
        self._command = command
        self._pool = pool
        self._supervisor: asyncio.Task[None] | None = None
        self.pid: int | None = None

    async def start(self) -> None:
        """Starts to supervise the worker."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Stops the worker, first with SIGTERM, then with SIGKILL."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = FIRST_RETRY_S
        while True:
            started_s = loop.time()
            try:
                outcome = f"exit code {await self._run_once()}"
            except OSError as error:
                outcome = str(error)
            if loop.time() - started_s >= STABLE_S:
                delay_s = FIRST_RETRY_S
            log.warning("the host worker ended", outcome=outcome, again_in_s=delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(LAST_RETRY_S, 2 * delay_s)

    async def _run_once(self) -> int:
        """Runs the process once; its exit code."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        ready_file = self._state_dir / "ready.json"
        ready_file.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=_environment(self._environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_OUR_LOG,
            # Ctrl-C must reach only this process, which stops the worker in order.
            start_new_session=True,
        )
        self.pid = process.pid
        address = ""
        try:
            address = await _address(ready_file, process)
            if address:
                self._pool.sighted(address, "host")
                return await process.wait()
            log.error("the host worker did not become ready", within_s=READY_TIMEOUT_S)
        finally:
            if address:
                self._pool.withdrawn(address)
            code = await asyncio.shield(asyncio.create_task(_end(process)))
            self.pid = None
        return code


def host_address(settings: CoordinatorSettings, *, is_guarded: bool) -> str:
    """The address on which the host worker listens: one that other devices reach if they may reach
    this machine at all. `is_guarded`: whoever calls a worker needs a certificate or a secret.
    """
    if settings.host_worker:
        return settings.host_worker
    if not is_guarded or is_loopback(settings.host):
        return _LOOPBACK
    if settings.host not in _EVERY_ADDRESS:
        return settings.host
    try:
        return address_towards(*ELSEWHERE)
    except OSError:  # no network yet
        return _LOOPBACK


def host_settings(settings: CoordinatorSettings, address: str, token: str) -> dict[str, str]:
    """The environment with the settings of the host worker, which only this coordinator can
    find.
    """
    prefix = "IMBREX_WORKER_"
    return {
        prefix + "HOST": address,
        prefix + "PORT": "0",
        prefix + "STATE_DIR": str(settings.state_dir / "worker"),
        prefix + "NAME": "host",
        prefix + "MDNS": "0",
        prefix + "PACE": str(settings.host_pace),
        prefix + "SECRET": settings.secret,
        prefix + "JOIN": token,
        prefix + "CLUSTER": settings.cluster,
    }


def host_token(trust: Trust, settings: CoordinatorSettings, port: int) -> str:
    """The host worker's join token; empty if it has a certificate or needs none."""
    certified = trust.certified
    kept = settings.state_dir / "worker" / "identity.pem"
    if certified is None or kept.exists():
        return ""
    return certified.invite(f"127.0.0.1:{port}").token


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without imbrex's settings, plus the worker's settings and the id
    of its parent.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("IMBREX_")}
    return {**kept, **settings, PARENT_VARIABLE: str(os.getpid())}


async def _address(ready_file: Path, process: asyncio.subprocess.Process) -> str:
    """Where the worker listens; empty if it ended or did not become ready in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_TIMEOUT_S):
            while process.returncode is None:
                with suppress(FileNotFoundError):
                    return str(json.loads(ready_file.read_bytes())["address"])  # noqa: ASYNC240
                await asyncio.sleep(_POLL_S)
    return ""


async def _end(process: asyncio.subprocess.Process) -> int:
    """Stops the process with SIGTERM, then SIGKILL, unless it has ended; its exit code."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await process.wait()
    return await process.wait()
