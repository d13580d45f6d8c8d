"""The demo's processes: N workers, one coordinator, found over mDNS on loopback."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped, unused-ignore]

from coordinator.cluster import children
from imbrex.client import Client

LOOPBACK = "127.0.0.1"
# The workers' names, before a dash and a number.
WORKER = "worker"
# All processes start Python, gRPC and onnxruntime on one machine.
START_TIMEOUT_S = 90.0
# The folder for profiles in a coordinator's state directory.
PROFILES = "profiles"
# A demo's folder is named after its process id: a killed demo leaves weights behind.
PREFIX = "imbrex-demo-"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """What to start. `pace` is each worker's share of a core; with `profile`, devices are measured
    before planning, and the profiles are kept in `cache` for the next time.
    """

    model: str
    workers: int
    strategy: str
    pace: float
    profile: bool
    cache: Path
    wire: str = ""


class DemoCluster:
    """A running cluster; leaving the context ends every process and removes their state."""

    def __init__(self, form: ClusterForm) -> None:
        self.form = form
        self.name = f"demo-{uuid.uuid4().hex[:8]}"
        _remove_leftovers()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._children: list[children.Child] = []
        self._client: Client | None = None

    def __enter__(self) -> Self:
        try:
            for number in range(1, self.form.workers + 1):
                self._children.append(self._start_worker(f"{WORKER}-{number}"))
            self._children.append(self._start_coordinator())
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def client(self) -> Client:
        """The client of the coordinator, once it listens."""
        assert self._client is not None, "wait_until_listening comes first"
        return self._client

    @property
    def pids(self) -> tuple[int, ...]:
        """All processes."""
        return tuple(child.process.pid for child in self._children)

    def stop(self) -> None:
        """Ends every process and removes their state."""
        if self._client is not None:
            self._client.close()
        children.stop(self._children)
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_until_listening(self) -> None:
        """Waits until the coordinator answers HTTP."""
        coordinator = self._children[-1]

        def listening() -> bool:
            found = coordinator.ready()
            if found is not None:
                self._client = Client(found["url"])
            return found is not None

        self.wait(listening, "the coordinator did not start")

    def wait_until_found(self, progress: Progress) -> None:
        """Waits until the coordinator has found every worker over mDNS and is connected to it."""

        def complete() -> bool:
            found = [
                each
                for each in self.client.devices()
                if each.state == "ready" and each.source == "mdns"
            ]
            progress(f"{len(found)} of {self.form.workers} workers found over mDNS")
            return len(found) >= self.form.workers

        self.wait(complete, "not every worker was found over mDNS on loopback")

    def wait(
        self, done: Callable[[], bool], otherwise: str, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Waits until `done` while every process lives; errors as `children.wait_until`."""
        children.wait_until(done, otherwise, self._children, timeout_s)

    def _start_worker(self, name: str) -> children.Child:
        folder = self._folder / name
        arguments = [
            *("worker", "--name", name, "--cluster", self.name, "--pace", f"{self.form.pace:.6g}"),
            *("--host", LOOPBACK, "--port", "0", "--interface", LOOPBACK),
            *("--state-dir", str(folder)),
        ]
        return children.start(name, arguments, folder, folder / "ready.json")

    def _start_coordinator(self) -> children.Child:
        folder = self._folder / "coordinator"
        arguments = [
            *("coordinator", "--cluster", self.name, "--host", LOOPBACK, "--port", "0"),
            *("--interface", LOOPBACK, "--state-dir", str(folder), "--no-host-computes"),
            *("--model", self.form.model, "--strategy", self.form.strategy),
            "--profile" if self.form.profile else "--no-profile",
            *(("--wire", self.form.wire) if self.form.wire else ()),
        ]
        self._share_profiles(folder)
        return children.start("coordinator", arguments, folder, folder / "ready.json")

    def _share_profiles(self, folder: Path) -> None:
        """Keeps profiles beyond a demo, by kind of machine and pace. If they cannot be stored,
        every demo measures again.
        """
        kept = self.form.cache / PROFILES
        with suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PROFILES).symlink_to(kept, target_is_directory=True)


def _remove_leftovers() -> None:
    """Removes folders of killed demos."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
