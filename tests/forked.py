"""Processes of `imbrex` that are forked from one that has loaded the libraries already: most of the
CPU time of a new one goes into loading them.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from coordinator.devices import children
from coordinator.devices.children import Child
from coordinator.devices.children import start as execute
from imbrex.cli import app
from protos.daemon.parent import PARENT_VARIABLE

ROOT = Path(__file__).parents[1]
_LOADED = multiprocessing.get_context("forkserver")
_LOADED.set_forkserver_preload(
    [
        "__main__",
        __name__,
        "anyio._backends._asyncio",
        "coordinator.serving.daemon",
        "coordinator.serving.deepstack.http",
        "coordinator.serving.frigate.server",
        "coordinator.serving.oip.interface",
        "coordinator.serving.page.http",
        "imbrex.client",
        "imbrex.described",
        "imbrex.watch.run",
        "uvicorn.protocols.websockets.auto",
        "worker.daemon",
    ]
)
# What imports set for libraries, which have read it.
_OF_IMPORTS = ("GRPC_", "ORT_")
# Those of the environment that daemons are not to inherit.
_SETTINGS = ("IMBREX_COORDINATOR_", "IMBREX_WORKER_")
# As `subprocess.Popen` calls the ends of its pipes.
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_ONE_AT_A_TIME = threading.Lock()
_STARTED: list[Child] = []
_LOG_LINES = 40


class Forked(subprocess.Popen[Any]):
    """`python -m imbrex` with these arguments; of `subprocess.Popen`'s options, those of streams,
    `env`, `cwd` and `start_new_session` are followed. It is a child of this process and ends with
    it. What variables say to the imports of libraries and to the dynamic linker is not seen.
    """

    def __init__(self, arguments: Sequence[object], *, strict: bool = False, **options: Any):
        self._strict = strict  # warnings are errors
        super().__init__([str(each) for each in arguments], **options)

    def _execute_child(self, *told: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *told).arguments
        pipes = {name: given[name] for name in _PIPES}
        ends = (pipes["p2cread"], pipes["c2pwrite"], pipes["errwrite"])
        files = [Connection(os.dup(n if end < 0 else end)) for n, end in enumerate(ends)]
        own = os.environ if given["env"] is None else given["env"]
        environment = {PARENT_VARIABLE: str(os.getpid()), **own}
        folder = os.fspath(given["cwd"] or os.getcwd())
        alone = given["start_new_session"]
        try:
            self.pid = _forked(given["args"], environment, folder, files, alone, self._strict)
            self._child_created = True
        finally:
            for file in files:
                file.close()
            self._close_pipe_fds(**pipes)


def start(
    name: str,
    arguments: Sequence[str],
    folder: Path,
    ready_file: Path,
    within: Sequence[str] = (),
) -> Child:
    """`children.start`, forked unless `within` does more than to set variables."""
    command, variables = within[:1], [each.partition("=") for each in within[1:]]
    if within and not ([*command] == ["env"] and all(equals for _, equals, _ in variables)):
        return execute(name, arguments, folder, ready_file, within)
    kept = {key: text for key, text in os.environ.items() if not key.startswith(_SETTINGS)}
    environment = {**kept, **{key: text for key, _, text in variables}}
    child = children.begun(name, partial(Forked, arguments, env=environment), folder, ready_file)
    _STARTED.append(child)
    return child


def forget_ended() -> None:
    """`logs` leaves out those that have ended by now."""
    _STARTED[:] = [child for child in _STARTED if child.process.returncode is None]


def logs() -> Iterator[tuple[str, str]]:
    """The name and the last lines of each daemon that ran since `forget_ended`."""
    for child in _STARTED:
        with contextlib.suppress(OSError):
            lines = child.log.read_text(errors="replace").splitlines()
            yield child.name, "\n".join(lines[-_LOG_LINES:])


@contextlib.contextmanager
def instead() -> Iterator[None]:
    """`children.start` forks meanwhile."""
    with mock.patch.object(children, "start", start):
        yield


def exit_code() -> int:
    """The command line's, as the interpreter has it."""
    try:
        app.main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _forked(*told: object) -> int:
    """The id of a new child. A process between it and the loaded one ends at once, so that it
    becomes a child of this process.
    """
    receiving, sending = _LOADED.Pipe(duplex=False)
    with _ONE_AT_A_TIME, contextlib.chdir(ROOT):
        multiprocessing.forkserver.ensure_running()
    with _ONE_AT_A_TIME, receiving, _adopting():
        between = _LOADED.Process(target=_run_between, args=(sending, *told))
        between.start()
        sending.close()
        pid: int = receiving.recv()
        between.join()
        between.close()
        return pid


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Orphans among the processes below this one become its children meanwhile."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _run_between(sending: Connection, *told: Any) -> None:
    between = os.getpid()
    if pid := os.fork():
        sending.send(pid)
        return
    sending.close()
    while os.getppid() == between:
        time.sleep(0.001)
    _run(*told)


def _run(
    arguments: list[str],
    environment: Mapping[str, str],
    folder: str,
    files: Sequence[Connection],
    alone: bool,
    strict: bool,
) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    if alone:
        os.setsid()
    of_imports = {name: text for name, text in os.environ.items() if name.startswith(_OF_IMPORTS)}
    os.environ.clear()
    os.environ.update({**of_imports, **environment})
    os.chdir(folder)
    tempfile.tempdir = None
    if strict:
        warnings.simplefilter("error")
    sys.argv = ["imbrex", *arguments]
    sys.exit(exit_code())
