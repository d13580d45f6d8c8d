"""The demo's processes: N workers, one coordinator, found over mDNS on loopback."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped, unused-ignore]

from coordinator.devices import children
from imbrex.client import Client
from imbrex.demo.duration import PROFILE_S, USUAL, Requests
from imbrex.demo.emulation.settings import Computer, command, settings_file
from imbrex.demo.likeness import Likeness, turns_in
from imbrex.demo.progress import Progress
from protos.daemon.ports import holder_of

LOOPBACK = "127.0.0.1"
# The workers' names, before a dash and a number.
WORKER = "worker"
# All processes start Python, gRPC and onnxruntime on one machine.
START_TIMEOUT_S = 90.0
# The folder for profiles in a coordinator's state directory.
PROFILES = "profiles"
# A demo's folder is named after its process id: a killed demo leaves weights behind.
PREFIX = "imbrex-demo-"


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """What to start. `like` is what the computers are like, None for this machine as it is. With
    `profile`, devices are measured before planning; profiles are kept in `cache` for the next
    time. What these leave unknown, `requests` show. The coordinator listens on
    `port`, or on any free one if that is taken; `settings` are further ones of the coordinator.
    """

    model: str
    workers: int
    strategy: str
    like: Likeness | None
    profile: bool
    cache: Path
    requests: Requests = USUAL
    wire: str = ""
    port: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)


class DemoCluster:
    """A running cluster; leaving the context ends every process and removes their state."""

    def __init__(self, form: ClusterForm) -> None:
        self.form = form
        self.name = f"demo-{uuid.uuid4().hex[:8]}"
        # Folders of killed demos.
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
            owner = folder.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdecimal() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)
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
                device
                for device in self.client.devices()
                if device.state == "ready" and device.source == "mdns"
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
        like = self.form.like
        told = {
            "name": name,
            "cluster": self.name,
            "pace": like.worker.pace if like else 1.0,
            "host": LOOPBACK,
            "port": 0,
            "mdns_interfaces": [LOOPBACK],
            # An emulated pace leaves most of a core free, and has to be kept beside other programs.
            **({"nice": 0} if like else {}),
        }
        return self._start("worker", name, told, like.worker if like else None)

    def _start_coordinator(self) -> children.Child:
        form = self.form
        told = {
            "cluster": self.name,
            "host": LOOPBACK,
            "port": form.port if holder_of(form.port) is None else 0,
            "interfaces": [LOOPBACK],
            "grpc_port": 0,
            "host_computes": False,
            "models": [form.model],
            "strategy": form.strategy,
            "profile": form.profile,
            **({"profile_s": PROFILE_S} if form.like else {}),
            **({"wire": form.wire} if form.wire else {}),
            **form.settings,
        }
        # Profiles are kept beyond a demo. If they cannot be stored, every demo measures again.
        folder = self._folder / "coordinator"
        like = self.form.like
        kept = (
            self.form.cache
            / PROFILES
            / (f"{like.name}-{like.gflops:g}-{like.scale:g}" if like else "native")
        )
        with suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PROFILES).symlink_to(kept, target_is_directory=True)
        computer = form.like.host if form.like else None
        return self._start("coordinator", "coordinator", told, computer)

    def _start(
        self, daemon: str, name: str, told: Mapping[str, object], computer: Computer | None
    ) -> children.Child:
        folder = self._folder / name
        file = settings_file(self._folder / f"{name}.toml", {**told, "state_dir": folder})
        within: tuple[str, ...] = ()
        if computer is not None:
            emulation = self._folder / f"{name}-emulation.toml"
            within = command(computer.write(emulation, turns_in(self.form.cache)))
        arguments = [daemon, "--config", str(file)]
        return children.start(name, arguments, folder, folder / "ready.json", within)
