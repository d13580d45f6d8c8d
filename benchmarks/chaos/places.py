"""Where chaos happens: processes on this machine, or the same in the lab's network namespaces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.cluster import SECRET, WORKER_PORT
from benchmarks.lab.guard import guarded
from benchmarks.lab.namespace import inside
from benchmarks.lab.network import HOST, Network, Wiring, remove_leftovers, require_tools
from benchmarks.pair.machines import FRONT, SHARED, THIRD, House, house
from benchmarks.workers import WorkerProcess, running, until
from coordinator.devices import children
from imbrex.client import Client

LOOPBACK = "127.0.0.1"
# What can happen to a worker, and in the lab its network.
PROCESS = ("kill", "term", "empty disk", "stop", "stop", "pace", "full disk", "memory")
NETWORK = ("cut", "cut", "one way", "peers", "peers", "slow link")
# With an empty disk a worker would be a member no longer; and two coordinators are not at the host.
NOT_OF_MEMBERS = ("empty disk", "full disk", "one way")
# Devices at their full pace stay there: engines other than onnxruntime cannot be slowed down.
NOT_AT_FULL_PACE = ("pace",)
# A home's Ethernet; devices reach each other directly, so that halos travel between them.
MBPS = 100.0


@dataclass(frozen=True, slots=True)
class Place:
    """Workers, the client of the coordinator that they joined, their network, if they have one
    whose cables can be pulled, of which worker 0 is device `first`; the kinds of harm, and two
    coordinators if there are two.
    """

    workers: Sequence[WorkerProcess]
    client: Client
    network: Network | None = None
    first: int = 1
    kinds: Sequence[str] = PROCESS
    house: House | None = None


@asynccontextmanager
async def here(
    folder: Path,
    count: int,
    pace: float,
    model: str,
    engines: Sequence[str] = ("",),
    liar: Sequence[str] = (),
) -> AsyncIterator[Place]:
    """On loopback; workers compute with these engines in turn, and the first one is executed by the
    command `liar`.
    """
    workers = [
        WorkerProcess(
            f"worker-{i}",
            folder / f"worker-{i}",
            pace,
            within=() if i else liar,
            engine=engines[i % len(engines)],
        )
        for i in range(count)
    ]
    async with running(workers), _asked(folder, workers, model, LOOPBACK) as client:
        yield Place(workers, client, kinds=_kinds(PROCESS, pace))


@asynccontextmanager
async def in_the_lab(
    folder: Path,
    count: int,
    pace: float,
    model: str,
    engines: Sequence[str] = ("",),
    mdns: bool = False,
) -> AsyncIterator[Place]:
    """Every process in a network namespace of its own, behind a switch; root only. Workers compute
    with these engines in turn.
    """
    with _wired(folder, count) as network:
        workers = [
            WorkerProcess(
                f"worker-{i}",
                folder / f"worker-{i}",
                pace,
                host=network.address(i + 1),
                port=WORKER_PORT,
                within=network.inside(network.device(i + 1)),
                secret=SECRET,
                mdns=mdns,
                engine=engines[i % len(engines)],
            )
            for i in range(count)
        ]
        async with running(workers), _asked(folder, workers, model, HOST, network) as client:
            yield Place(workers, client, network, kinds=_kinds(PROCESS + NETWORK, pace))


@asynccontextmanager
async def with_two(folder: Path, count: int, pace: float, model: str) -> AsyncIterator[Place]:
    """Two coordinators at one address, every machine in a network namespace; root only."""
    require_tools()
    remove_leftovers()
    kinds = [kind for kind in PROCESS + NETWORK if kind not in NOT_OF_MEMBERS]
    with (
        guarded(os.getpid(), folder),
        house(folder, model, pace, count) as made,
        Client(f"http://{SHARED}:{FRONT}") as client,
    ):
        yield Place(made.workers, client, made.network, THIRD, kinds, made)


def _kinds(of: Sequence[str], pace: float) -> Sequence[str]:
    return of if pace < 1 else [kind for kind in of if kind not in NOT_AT_FULL_PACE]


@contextmanager
def _wired(folder: Path, count: int) -> Iterator[Network]:
    """The network; this thread is at the host meanwhile."""
    require_tools()
    remove_leftovers()
    network = Network(Wiring(count, "switch", MBPS))
    with guarded(os.getpid(), folder):
        network.build()
        try:
            with inside(network.host):
                yield network
        finally:
            network.remove()


@asynccontextmanager
async def _asked(
    folder: Path,
    workers: Sequence[WorkerProcess],
    model: str,
    host: str,
    network: Network | None = None,
) -> AsyncIterator[Client]:
    """A coordinator process that all of the workers have joined, and a client of it."""
    state = folder / "coordinator"
    state.mkdir()
    config = folder / "coordinator.toml"
    config.write_text(f"secret = '{workers[0].secret}'\nhost = '{host}'\n")
    arguments = ["coordinator", "--config", str(config), "--state-dir", str(state), "--port", "0"]
    arguments += ["--mdns" if workers[0].mdns else "--no-mdns"]
    arguments += ["--no-host-computes", "--no-profile", "--model", model]
    for worker in workers:
        arguments += ["--worker", worker.address]
    within = network.inside(network.host) if network else ()
    child = children.start("coordinator", arguments, state, state / "ready.json", within)
    try:
        await until(lambda: child.ready() is not None)
        with Client(str((child.ready() or {})["url"])) as client:
            await until(lambda: _joined(client) == len(workers))
            yield client
    finally:
        await asyncio.to_thread(children.stop, [child])


def _joined(client: Client) -> int:
    return sum(device.state == "ready" for device in client.devices())
