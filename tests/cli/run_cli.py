"""Running `imbrex`: in this process, or as a process of its own."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from typing import IO, Any, NoReturn

import pytest
import structlog

from tests.forked import Forked, exit_code

# The time in which what a command has started ends after it.
ENDING_S = 10.0


@dataclass(frozen=True)
class Ran:
    """What a finished command left."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object of standard output."""
        assert self.out.count("\n") == 1, self.out
        found: dict[str, Any] = json.loads(self.out)
        return found


def imbrex(*arguments: object, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Ran:
    """What the entry point does in this process, which is left as it was: the libraries are loaded
    already, which takes a process of its own longer than most commands. Warnings are errors.

    What belongs to a process as a whole takes `imbrex_process`: daemons that start, and watches,
    which cap its memory; signals; imports; connections that last until it ends.
    """
    env = env or {}
    assert "PYTHONPATH" not in env, "it is too late for that"
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    threads, limit = set(threading.enumerate()), resource.getrlimit(resource.RLIMIT_DATA)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _own_settings(arguments, env), _streams(out, err, encoding), _at_most(timeout_s):
            code = exit_code()
        left = set(threading.enumerate()) - threads
        for thread in left:
            thread.join(ENDING_S)
        assert not any(thread.is_alive() for thread in left), (arguments, left)
        assert resource.getrlimit(resource.RLIMIT_DATA) == limit, arguments
        return Ran(code, *(_content(file, encoding) for file in (out, err)))


def imbrex_process(
    *arguments: object, env: Mapping[str, str] | None = None, timeout_s: float = 60
) -> Ran:
    """The same as a process."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "imbrex", *map(str, arguments)],
        capture_output=True,
        encoding=(env or {}).get("PYTHONIOENCODING", "utf-8"),
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def imbrex_forked(
    *arguments: object, env: Mapping[str, str] | None = None, timeout_s: float = 60
) -> Ran:
    """The same as a process that is forked from one that has loaded the libraries already."""
    process = Forked(
        arguments,
        strict=True,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return Ran(process.returncode, out, err)


def refused(*arguments: object) -> Ran:
    """A command that must fail with cause and cure, and nothing on standard output."""
    ran = imbrex(*arguments)
    assert ran.code == 1, ran
    assert "error: " in ran.err, ran.err
    assert "\ncure:  " in ran.err, ran.err
    assert not ran.out, ran.out
    return ran


@contextmanager
def _own_settings(arguments: tuple[object, ...], env: Mapping[str, str]) -> Iterator[None]:
    """What a process has to itself."""
    before = dict(os.environ)
    threshold, hook, logs = gc.get_threshold(), sys.excepthook, structlog.get_config()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(sys, "argv", ["imbrex", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(tempfile, "tempdir", None)
        os.environ.update(env)
        try:
            yield
        finally:
            structlog.configure(**logs)
            sys.excepthook = hook
            gc.set_threshold(*threshold)
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


@contextmanager
def _streams(out: IO[bytes], err: IO[bytes], encoding: str) -> Iterator[None]:
    """Standard output and error go to files, those of libraries that are not Python's, too; there
    is nothing on standard input.
    """
    with open(os.devnull, "rb") as nothing, pytest.MonkeyPatch.context() as patch:
        kept = {number: os.dup(number) for number in range(3)}
        streams = []
        files = {"stdin": nothing, "stdout": out, "stderr": err}
        for number, (name, file) in enumerate(files.items()):
            os.dup2(file.fileno(), number)
            opened = os.fdopen(number, "wb" if number else "rb", closefd=False)
            stream = TextIOWrapper(opened, encoding)
            streams.append(stream)
            patch.setattr(sys, name, stream)
        try:
            yield
        finally:
            for number, stream in enumerate(streams):
                stream.close()
                os.dup2(kept[number], number)
                os.close(kept[number])


@contextmanager
def _at_most(timeout_s: float) -> Iterator[None]:
    def end(number: int, frame: object) -> NoReturn:
        pytest.fail(f"{sys.argv} did not end within {timeout_s:.0f} s")

    handler = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _content(file: IO[bytes], encoding: str) -> str:
    file.seek(0)
    return file.read().decode(encoding)
