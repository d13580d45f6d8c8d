"""Workers and a coordinator in the lab's namespaces: real processes behind real links.

The coordinator runs at the host with a worker of its own; each other worker has a namespace.
Workers are listed, not found: mDNS would need a router for multicast where devices see only the
host. Everything else is as in a home.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.guard import guarded
from benchmarks.lab.namespace import inside
from benchmarks.lab.network import (
    HOST,
    QUEUE_BYTES,
    Network,
    Wiring,
    remove_leftovers,
    require_tools,
)
from benchmarks.members import make_members
from coordinator.costs.cluster import Device
from coordinator.devices import children
from imbrex.client import ANSWER_TIMEOUT_S, Client
from imbrex.demo.emulation.settings import Computer, command, settings_file
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import Preset
from models.catalogue.installed import VARIABLE, Store
from protos.rpc.channels import HOST as HOST_ID
from protos.rpc.channels import Caller

COORDINATOR = "coordinator"
SECRET = "lab"  # noqa: S105 - of a cluster that nobody else can reach
HTTP_PORT = 8460
WORKER_PORT = 8470
# What holds a lab's state carries its owner, as its namespaces do.
_FOLDER = "imbrex-lab-"
_START_S = 120.0
_PROFILE_S = 400.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab of `devices` computers, the host's among them. `addresses` are the workers',
    the host's first; `caller` is how its coordinator calls them, `models` the folder of its models,
    `turns` that of its emulated devices; `device` is what the preset says of the host.
    """

    network: Network
    client: Client
    models: Store
    turns: Path
    addresses: tuple[str, ...]
    device: Device
    caller: Caller
    coordinator: children.Child
    workers: tuple[children.Child, ...]

    @property
    def devices(self) -> int:
        """How many compute."""
        return len(self.addresses)


@contextmanager
def lab(
    preset: Preset,
    computers: Sequence[Computer],
    say: Say,
    queue_bytes: int = QUEUE_BYTES,
    **settings: object,
) -> Iterator[Lab]:
    """Builds the network, starts every process and waits until each worker has joined; this
    thread is at the host meanwhile. The context removes everything; so does a guard, if this
    process is killed.

    `preset` is scaled; `computers` are what to tell the daemons, the host's first; a port of the
    switch holds `queue_bytes` back; `settings` are further ones of the coordinator.
    """
    devices = len(computers)
    require_tools()
    if gone := remove_leftovers():
        say(f"removed what a killed lab left: {', '.join(gone)}")
    network = Network(Wiring(devices - 1, preset.medium, preset.mbps, queue_bytes))
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        stack.enter_context(guarded(os.getpid(), folder))
        say(f"{devices} devices, {preset.medium} of {preset.mbps:g} Mbps")
        network.build()
        caller = Caller(HOST_ID, SECRET)
        if preset.tls:
            members = [folder / _name(number) for number in range(1, devices)]
            caller = make_members(folder / COORDINATOR, members)
        workers = [
            _worker(network, number, computers[number], folder) for number in range(1, devices)
        ]
        stack.callback(children.stop, workers)
        listed = [f"{network.address(number)}:{WORKER_PORT}" for number in range(1, devices)]
        coordinator = _coordinator(network, preset, computers[0], listed, folder, settings)
        stack.callback(children.stop, [coordinator])
        stack.enter_context(inside(network.host))
        everybody = [*workers, coordinator]
        up = "the coordinator did not start"
        children.wait_until(lambda: coordinator.ready() is not None, up, everybody, _START_S)
        client = stack.enter_context(Client(f"http://{HOST}:{HTTP_PORT}"))
        found: list[str] = []

        def joined() -> bool:
            ready = [device for device in client.devices() if device.state == "ready"]
            found[:] = [
                device.address for device in sorted(ready, key=lambda device: not device.host)
            ]
            return len(found) == devices

        children.wait_until(joined, "not every worker has joined", everybody, _START_S)
        yield Lab(
            network=network,
            client=client,
            models=_models(folder),
            turns=_turns(folder),
            addresses=tuple(found),
            device=cluster_of(preset, 1).devices[0],
            caller=caller,
            coordinator=coordinator,
            workers=tuple(workers),
        )


def wait_until_measured(running: Lab, say: Say) -> None:
    """Until the coordinator has measured every device and its link."""

    said = -1

    def measured() -> bool:
        nonlocal said
        done = sum(device.profiled for device in running.client.devices())
        if done != said:
            say(f"{done} of {running.devices} devices measured by the coordinator")
        said = done
        return done == running.devices

    everybody = [*running.workers, running.coordinator]
    children.wait_until(measured, "not every device was measured", everybody, _PROFILE_S)


def _worker(network: Network, number: int, computer: Computer, folder: Path) -> children.Child:
    name = _name(number)
    told = {
        "host": network.address(number),
        "port": WORKER_PORT,
        "state_dir": folder / name,
        "name": name,
        "secret": SECRET,
        "mdns": False,
        "pace": computer.pace,
    }
    file = settings_file(folder / f"{name}.toml", told)
    emulation = computer.write(folder / f"{name}-emulation.toml", _turns(folder))
    within = (*network.inside(network.device(number)), *command(emulation))
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
    state = folder / COORDINATOR
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
        "medium": preset.medium,
        "replan": 0,
        # A crowd's clients wait until every device has the weights.
        "max_wait_s": ANSWER_TIMEOUT_S,
        **settings,
    }
    file = settings_file(folder / "coordinator.toml", told)
    models = ("env", f"{VARIABLE}={_models(folder).root}")
    emulation = computer.write(folder / "coordinator-emulation.toml", _turns(folder))
    within = (*network.inside(network.host), *models, *command(emulation))
    arguments = ["coordinator", "--config", str(file)]
    return children.start(COORDINATOR, arguments, state, state / "ready.json", within)


def _name(number: int) -> str:
    return f"device-{number}"


def _models(folder: Path) -> Store:
    return Store(folder / "models")


def _turns(folder: Path) -> Path:
    return folder / "turns"
