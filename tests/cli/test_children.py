"""Processes that we start end with us, and say why when they end on their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from coordinator.devices import children

READY = "ready.json"


def worker(folder: Path, *more: str) -> children.Child:
    arguments = ["worker", "--port", "0", "--no-mdns", "--state-dir", str(folder), *more]
    return children.start("worker-1", arguments, folder, folder / READY)


def wait_ready(child: children.Child) -> None:
    pause = threading.Event()
    while child.ready() is None:
        pause.wait(0.02)


def test_a_child_that_ends_shows_the_end_of_its_log(tmp_path: Path) -> None:
    child = worker(tmp_path, "--pace", "7")
    child.process.wait(30)
    with pytest.raises(children.ChildError, match="worker-1 ended with exit code 1") as caught:
        child.ready()
    assert "pace" in caught.value.cause
    children.stop([child])


def test_stopping_is_polite(tmp_path: Path) -> None:
    child = worker(tmp_path)
    wait_ready(child)
    children.stop([child])
    assert child.process.returncode == 0
    assert not (tmp_path / READY).exists()
    children.stop([child])


def test_a_child_that_does_not_listen_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "STOP_TIMEOUT_S", 0.1)
    child = worker(tmp_path)
    wait_ready(child)
    child.process.send_signal(signal.SIGSTOP)
    children.stop([child])
    assert child.process.returncode == -signal.SIGKILL


def test_our_settings_are_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMBREX_WORKER_NONSENSE", "1")
    child = worker(tmp_path)
    wait_ready(child)
    children.stop([child])


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import json, os, pathlib, sys
from coordinator.devices import children
folder = pathlib.Path({str(tmp_path)!r})
arguments = ["worker", "--port", "0", "--no-mdns", "--state-dir", str(folder)]
child = children.start("worker-1", arguments, folder, folder / {READY!r})
while child.ready() is None:
    os.sched_yield()
print(json.dumps(child.process.pid), flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(json.loads(parent.stdout.readline()))
        parent.kill()
    gone, alive = psutil.wait_procs([child], timeout=10)
    assert not alive
    assert gone == [child]
