"""The coordinators that are attacked: real processes on loopback, with a genuine client each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.hostile.attacks import LATE, LIE, MODELS, Target, comes_true
from benchmarks.hostile.poison import save_networks
from benchmarks.members import make_members
from benchmarks.store import free_port
from coordinator.devices import children
from coordinator.serving.common.keys import Keys, Role
from coordinator.trust.cluster_state import ClusterState

START_S = 120.0
PACE = 0.3


@dataclass(frozen=True, slots=True)
class Setting:
    """A coordinator's settings and its workers. `lies`: the first of them computes wrongly as a
    file named `lie` says, from the beginning if `liar_from_start`; `announced`: they are found over
    mDNS; `certified`: there is an authority, and `LATE` is expected at an address where it is not;
    `all_forms`: it serves networks with inputs of every form.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 2
    pace: float = PACE
    memory_mb: int = 0
    strategy: str = "ofl"
    lies: bool = False
    liar_from_start: bool = False
    announced: bool = False
    certified: bool = False
    all_forms: bool = False


# By the name that an attack has for its place.
SETTINGS: dict[str, Setting] = {
    "open": Setting(),
    "keys": Setting(),
    "crowd": Setting({"max_wait_s": 8.0, "rate_per_s": 0.0}),
    "liar": Setting(workers=3, lies=True, strategy="halo"),
    "liar-zeroed": Setting(workers=3, lies=True, strategy="halo"),
    "liar-examined": Setting(workers=3, lies=True, strategy="halo"),
    "liar-from-start": Setting(workers=3, lies=True, liar_from_start=True, strategy="halo"),
    "announced": Setting(announced=True),
    "certified": Setting({"enrol_host": "127.0.0.1", "enrol_port": 0}, certified=True),
    "large": Setting(workers=3, pace=1.0, strategy=""),
    "poison": Setting(workers=3, all_forms=True),
    "small": Setting(workers=3, pace=1.0, memory_mb=400, strategy=""),
}


@dataclass(frozen=True, slots=True)
class Answered:
    """A request of the genuine client."""

    began_s: float
    seconds: float
    error: str


@dataclass
class Genuine:
    """The genuine client's process, and what it has told so far."""

    url: str
    key: str
    told: list[Answered] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """From now on."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.genuine", self.url],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "IMBREX_API_KEY": self.key},
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def stop(self) -> None:
        """No more."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def between(self, start_s: float, stop_s: float) -> list[Answered]:
        """Requests that were on their way then."""
        return [
            answer
            for answer in list(self.told)
            if answer.began_s < stop_s and answer.began_s + answer.seconds > start_s
        ]

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.append(Answered(**json.loads(line)))


@dataclass(frozen=True, slots=True)
class Place:
    """A coordinator and its genuine client."""

    target: Target
    pid: int
    genuine: Genuine


@contextmanager
def place(name: str, folder: Path) -> Iterator[Place]:
    """One of `SETTINGS`, ready, with the genuine client asking (but for a crowd)."""
    setting, state = SETTINGS[name], folder / name / "coordinator"
    state.mkdir(parents=True)
    key = Keys(ClusterState(state)).add("genuine", Role.ADMIN) if name == "keys" else ""
    settings = dict(setting.settings)
    if setting.announced:
        settings |= {"cluster": _cluster_of(folder), "interfaces": ["127.0.0.1"]}
    if setting.all_forms:
        save_networks(folder / name / MODELS)
        settings |= {"model_repository": str(folder / name / MODELS)}
        settings |= {"frigate_zmq": [f"tcp://127.0.0.1:{free_port()}"]}
    config = folder / name / "coordinator.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    numbers = range(1, setting.workers + 1)
    states = [folder / name / f"worker-{number}" for number in numbers]
    late = f"127.0.0.1:{free_port()}" if setting.certified else ""
    if setting.certified:
        make_members(state, [*states, folder / name / LATE])
    if setting.liar_from_start:
        (folder / name / LIE).write_text("noise")
    started = [
        _worker(at, number, setting, folder) for number, at in zip(numbers, states, strict=True)
    ]
    try:
        addresses = [str(_ready(child)["address"]) for child in started]
        arguments = ["coordinator", "--config", str(config), "--port", "0"]
        arguments += ["--state-dir", str(state), "--no-host-computes", "--no-profile"]
        arguments += ["--model", "digits"]
        arguments += ["--strategy", setting.strategy] if setting.strategy else []
        arguments += ["--mdns" if setting.announced else "--no-mdns"]
        known = [] if setting.announced else addresses
        for address in [*known, late] if late else known:
            arguments += ["--worker", address]
        coordinator = children.start("coordinator", arguments, state, state / "ready.json")
        started.append(coordinator)
        told = _ready(coordinator)
        target = Target(
            str(told["url"]),
            str(told["grpc"]),
            key,
            settings,
            folder=folder / name,
            workers=tuple(addresses),
            late=late,
            pid=coordinator.process.pid,
        )
        _wait_for_workers(target, setting.workers - setting.liar_from_start)
        genuine = Genuine(target.url, key)
        if name != "crowd":
            genuine.start()
        try:
            yield Place(target, coordinator.process.pid, genuine)
        finally:
            genuine.stop()
    finally:
        children.stop(started)


def _worker(state: Path, number: int, setting: Setting, folder: Path) -> children.Child:
    arguments = ["worker", "--name", f"worker-{number}", "--port", "0"]
    arguments += ["--state-dir", str(state), "--pace", str(setting.pace)]
    values: dict[str, Any] = {"memory_mb": setting.memory_mb} if setting.memory_mb else {}
    if setting.announced:
        values |= {"cluster": _cluster_of(folder), "mdns_interfaces": ["127.0.0.1"]}
    arguments += ["--mdns" if setting.announced else "--no-mdns"]
    config = state.with_suffix(".toml")
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    arguments += ["--config", str(config)]
    liar = [sys.executable, "-m", "benchmarks.chaos.lying", str(state.parent / LIE)]
    within = liar if setting.lies and number == 1 else []
    return children.start(f"worker-{number}", arguments, state, state / "ready.json", within)


def _cluster_of(folder: Path) -> str:
    """A name that no other run of this has."""
    return f"hostile-{folder.name}"[-32:].lower().replace("_", "-")


def _ready(child: children.Child) -> dict[str, Any]:
    not_started = f"{child.name} has not started"
    children.wait_until(lambda: child.ready() is not None, not_started, [child], START_S)
    return child.ready() or {}


def _wait_for_workers(target: Target, count: int) -> None:
    headers = {"X-API-Key": target.key} if target.key else {}
    with httpx.Client(base_url=target.url, headers=headers, timeout=10) as client:

        def is_up() -> bool:
            rows = client.get("/v1/devices").json()["devices"]
            ready = sum(row["state"] == "ready" for row in rows) == count
            return ready and client.get("/readyz").status_code == 200

        if not comes_true(is_up, START_S):
            raise AssertionError("the cluster does not come up")
