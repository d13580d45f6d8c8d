"""The coordinator's own worker: an ordinary worker process on loopback, kept running."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

# A worker that dies at once is tried again ever more slowly.
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 8.0
_PR_SET_PDEATHSIG = 1

log = structlog.get_logger(__name__)


class HostWorker:
    """Starts the worker, calls `up(address)` when it listens and `down(address)` when it ended,
    and starts it again until `stop`.
    """

    def __init__(
        self,
        state_dir: Path,
        environment: dict[str, str],
        up: Callable[[str], None],
        down: Callable[[str], None],
    ) -> None:
        self._state_dir = state_dir
        self._environment = environment
        self._up = up
        self._down = down
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to supervise."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Ends the worker: politely, then by force."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    async def _supervise(self) -> None:
        delay = FIRST_RETRY_S
        while True:
            started = asyncio.get_running_loop().time()
            code = await self._run_once()
            lived = asyncio.get_running_loop().time() - started
            delay = FIRST_RETRY_S if lived > LAST_RETRY_S else min(LAST_RETRY_S, 2 * delay)
            log.warning("host worker ended", code=code, again_in_s=delay)
            await asyncio.sleep(delay)

    async def _run_once(self) -> int | None:
        ready = self._state_dir / "ready.json"
        ready.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "worker"),
            env={**os.environ, **self._environment},
            stdin=asyncio.subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        address = ""
        try:
            address = await _address(ready, process)
            if address:
                self._up(address)
            return await process.wait()
        finally:
            if address:
                self._down(address)
            await _end(process)


async def _address(ready: Path, process: asyncio.subprocess.Process) -> str:
    """Where the worker listens; empty if it ended or never got ready."""
    deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:
        if ready.exists():  # noqa: ASYNC240 - one stat of a local file
            return str(json.loads(ready.read_text())["address"])  # noqa: ASYNC240
        await asyncio.sleep(0.05)
    return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _die_with_parent() -> None:
    """In the child: even a coordinator that is killed takes its worker with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
