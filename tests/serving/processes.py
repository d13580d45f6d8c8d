"""A whole service of real processes: workers, and a coordinator with all of its surfaces."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError

from coordinator.devices import children
from tests import forked
from tests.serving.real import PACE, started_workers

START_S = 120.0
T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """Where it answers, and its processes."""

    url: str
    grpc: str
    workers: list[children.Child]
    coordinator: children.Child

    @property
    def host_port(self) -> str:
        return self.url.removeprefix("http://")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.load(response)


def wait(condition: Callable[[], T | None], timeout_s: float = START_S) -> T:
    pause, deadline = threading.Event(), time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it took too long"
        pause.wait(0.05)
    return found


@contextmanager
def serving(
    folder: Path,
    flags: Sequence[str],
    workers: int = 2,
    pace: float = PACE,
    *,
    start: Callable[..., children.Child] = forked.start,
) -> Iterator[Service]:
    """A coordinator with these flags that all of its workers have joined, ready."""
    with started_workers(folder, workers, pace) as computing:
        wait(lambda: all(child.ready() for child in computing))
        state = folder / "coordinator"
        arguments = ["coordinator", "--no-mdns", "--port", "0", "--state-dir", str(state)]
        arguments += ["--no-host-computes", "--no-profile", "--strategy", "ofl", "--rate", "0"]
        arguments += flags
        for child in computing:
            arguments += ["--worker", str((child.ready() or {})["address"])]
        child = start("coordinator", arguments, state, state / "ready.json")
        try:
            told = wait(child.ready)
            service = Service(told["url"], told.get("grpc", ""), computing, child)
            wait(lambda: _complete(service, workers))
            yield service
        finally:
            children.stop([child])


def _complete(service: Service, workers: int) -> bool:
    service.coordinator.require_alive()
    try:
        devices = service.get("/v1/devices")["devices"]
        ready = sum(device["state"] == "ready" for device in devices)
        return ready == workers and bool(service.get("/readyz"))
    except URLError:
        return False
