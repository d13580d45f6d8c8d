"""Workers and a coordinator in the lab's namespaces: real processes behind real links.

The coordinator runs at the host with a worker of its own; each other worker has a namespace.
Workers are listed, not found: mDNS would need a router for multicast where devices see only the
host. Everything else is as in a home.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.guard import Guard
from benchmarks.lab.namespace import inside
from benchmarks.lab.network import HOST, Network, Wiring, remove_leftovers, require_tools
from benchmarks.lab.presets import Preset
from coordinator import children
from coordinator.client import CoordinatorClient
from protos.errors import Unavailable

SECRET = "lab"  # noqa: S105 - of a cluster that nobody else can reach
HTTP_PORT = 8460
WORKER_PORT = 8470
# What holds a lab's state carries its owner, as its namespaces do.
_FOLDER = "imbrex-lab-"
_START_S = 120.0
_PROFILE_S = 400.0
_POLL_S = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Computer:
    """What each daemon is told, so that device and preset agree: found by `calibrate`."""

    pace: float
    message_ms: float
    byte_ns: float
    task_ms: float


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab of `devices` computers, the host's among them. `addresses` are the workers',
    the host's first.
    """

    network: Network
    client: CoordinatorClient
    addresses: tuple[str, ...]
    coordinator: children.Child
    workers: tuple[children.Child, ...]

    @property
    def devices(self) -> int:
        """How many compute."""
        return len(self.addresses)


@contextmanager
def lab(
    preset: Preset, devices: int, computer: Computer, say: Say, **settings: object
) -> Iterator[Lab]:
    """Builds the network, starts every process and waits until each worker has joined; this
    thread is at the host meanwhile. The context removes everything; so does a guard, if this
    process is killed.

    `preset` is scaled; `settings` are further ones of the coordinator.
    """
    require_tools()
    if gone := remove_leftovers():
        say(f"removed what a killed lab left: {', '.join(gone)}")
    network = Network(Wiring(devices - 1, preset.medium, preset.mbps))
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        stack.enter_context(Guard(os.getpid(), folder))
        say(f"{devices} devices, {preset.medium} of {preset.mbps:g} Mbps")
        network.build()
        workers = [_worker(network, number, computer, folder) for number in range(1, devices)]
        stack.callback(children.stop, workers)
        listed = [f"{network.address(number)}:{WORKER_PORT}" for number in range(1, devices)]
        coordinator = _coordinator(network, preset, computer, listed, folder, settings)
        stack.callback(children.stop, [coordinator])
        stack.enter_context(inside(network.host))
        everybody = [*workers, coordinator]
        _wait(lambda: coordinator.ready() is not None, "the coordinator has not come up", everybody)
        client = stack.enter_context(CoordinatorClient(f"http://{HOST}:{HTTP_PORT}"))
        found: list[str] = []

        def joined() -> bool:
            ready = [each for each in client.devices() if each["state"] == "ready"]
            found[:] = [
                each["address"] for each in sorted(ready, key=lambda each: not each["host"])
            ]
            return len(found) == devices

        _wait(joined, "not every worker has joined", everybody)
        yield Lab(network, client, tuple(found), coordinator, tuple(workers))


def wait_until_measured(running: Lab, say: Say) -> None:
    """Until the coordinator has measured every device and its link."""

    said = -1

    def measured() -> bool:
        nonlocal said
        done = sum(bool(each["profiled"]) for each in running.client.devices())
        if done != said:
            say(f"{done} of {running.devices} devices measured by the coordinator")
        said = done
        return done == running.devices

    everybody = [*running.workers, running.coordinator]
    _wait(measured, "not every device was measured", everybody, _PROFILE_S)


def _worker(network: Network, number: int, computer: Computer, folder: Path) -> children.Child:
    name = f"device-{number}"
    told = {
        "host": network.address(number),
        "port": WORKER_PORT,
        "state_dir": folder / name,
        "name": name,
        "secret": SECRET,
        "mdns": False,
        "pace": computer.pace,
        "message_ms": computer.message_ms,
        "byte_ns": computer.byte_ns,
        "task_ms": computer.task_ms,
    }
    file = _settings_file(folder / f"{name}.toml", told)
    within = network.inside(network.device(number))
    state = folder / name
    return children.start(
        name, ["worker", "--config", str(file)], state, state / "ready.json", within
    )


def _coordinator(
    network: Network,
    preset: Preset,
    computer: Computer,
    workers: list[str],
    folder: Path,
    settings: Mapping[str, object],
) -> children.Child:
    state = folder / "coordinator"
    told = {
        "host": HOST,
        "port": HTTP_PORT,
        "state_dir": state,
        "secret": SECRET,
        "workers": workers,
        "mdns": False,
        "models": [],
        "host_worker": HOST,
        "host_pace": computer.pace,
        "message_ms": computer.message_ms,
        "byte_ns": computer.byte_ns,
        "task_ms": computer.task_ms,
        "medium": preset.medium,
        "replan": 0,
        **settings,
    }
    file = _settings_file(folder / "coordinator.toml", told)
    within = network.inside(network.host)
    arguments = ["coordinator", "--config", str(file)]
    return children.start("coordinator", arguments, state, state / "ready.json", within)


def _settings_file(path: Path, told: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in told.items()))
    return path


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return f"'{value}'"


def _wait(
    done: Callable[[], bool],
    otherwise: str,
    alive: list[children.Child],
    timeout_s: float = _START_S,
) -> None:
    """Until `done`, as long as every process lives.

    Raises:
        ChildError: one of them has ended.
        Unavailable: it took longer.
    """
    deadline = time.monotonic() + timeout_s
    while not done():
        for child in alive:
            child.require_alive()
        if time.monotonic() > deadline:
            raise Unavailable(
                cause=f"{otherwise} within {timeout_s:.0f} s",
                cure="See that nothing else keeps this machine busy, and try again",
            )
        time.sleep(_POLL_S)
