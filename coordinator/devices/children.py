"""Child processes that end with their parent: their logs, ready files and termination."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from protos.daemon.parent import PARENT_VARIABLE
from protos.errors import ImbrexError, Unavailable

STOP_TIMEOUT_S = 5.0
# Short enough not to be noticed, long enough to leave the core to a starting child.
POLL_S = 0.1
LOG_LINES = 15


class ChildError(ImbrexError):
    """A process that we started has ended on its own; the cause holds the end of its log."""

    code: ClassVar[str] = "child_failed"


@dataclass(frozen=True, slots=True)
class Child:
    """One `imbrex` process in its own process group."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready_file: Path

    def ready(self) -> dict[str, Any] | None:
        """The content of its ready file, once there is one.

        Raises:
            ChildError: it has ended instead.
        """
        self.require_alive()
        try:
            content: dict[str, Any] = json.loads(self.ready_file.read_text())
        except FileNotFoundError:
            return None
        return content

    def require_alive(self) -> None:
        """Raises:
        ChildError: it has ended.
        """
        code = self.process.poll()
        if code is not None:
            raise ChildError(
                cause=f"{self.name} ended with exit code {code}; its log ends with\n{self._tail()}",
                cure="Fix what the log reports, then try again",
            )

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (nothing)"


def start(
    name: str,
    arguments: Sequence[str],
    folder: Path,
    ready_file: Path,
    within: Sequence[str] = (),
) -> Child:
    """Starts `imbrex` with these arguments; its output goes to a log in `folder`.

    Settings of this process's environment are not passed on, only the arguments. `within` is a
    command that executes another in its place, such as `ip netns exec`.
    """
    command = [*within, sys.executable, "-m", "imbrex", *arguments]

    def begin(**options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=_environment(os.environ), **options)

    return begun(name, begin, folder, ready_file)


def begun(
    name: str, begin: Callable[..., subprocess.Popen[bytes]], folder: Path, ready_file: Path
) -> Child:
    """The process that `begin` starts, given `subprocess.Popen`'s options for streams and session;
    its output goes to a log in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = begin(
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must reach only us: we stop them in order
        )
    return Child(name, process, log, ready_file)


def stop(children: Sequence[Child]) -> None:
    """Stops all of them and their own children, first with SIGTERM, then with SIGKILL."""
    for child in children:
        _signal(child, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGKILL)
            child.process.wait()


def wait_until(
    done: Callable[[], bool], otherwise: str, alive: Sequence[Child], timeout_s: float
) -> None:
    """Waits until `done()`, as long as every child lives.

    Raises:
        ChildError: one of them has ended.
        Unavailable: it took longer than `timeout_s`; `otherwise` says what did not happen.
    """
    pause, deadline = threading.Event(), time.monotonic() + timeout_s
    while not done():
        for child in alive:
            child.require_alive()
        if time.monotonic() > deadline:
            raise Unavailable(
                cause=f"{otherwise} within {timeout_s:.0f} s",
                cure="Make sure that nothing else keeps this machine busy, then try again",
            )
        pause.wait(POLL_S)


def _signal(child: Child, number: signal.Signals) -> None:
    # Only before it was waited for: afterwards another process may have its id.
    if child.process.poll() is None:
        os.killpg(child.process.pid, number)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    settings = ("IMBREX_WORKER_", "IMBREX_COORDINATOR_")
    kept = {key: value for key, value in own.items() if not key.startswith(settings)}
    return {**kept, PARENT_VARIABLE: str(os.getpid())}
