"""Worker processes that things happen to: they end, and come back at the port that they had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np

from coordinator.devices import children
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, random_inputs

START_S = 60.0
_POLL_S = 0.02

Tensors = dict[str, np.ndarray]


@dataclass(slots=True)
class WorkerProcess:
    """One worker, which serves within `start_s`. `within` is a command that executes another, as
    `ip netns exec` does; `engine`: the one that it is told to compute with; `busy`: something is
    happening to it.
    """

    name: str
    folder: Path
    pace: float
    host: str = "127.0.0.1"
    port: int = 0
    within: Sequence[str] = ()
    secret: str = ""
    mdns: bool = False
    engine: str = ""
    start_s: float = START_S
    child: children.Child | None = None
    busy: bool = False

    @property
    def address(self) -> str:
        """Where it listens, or did last."""
        return f"{self.host}:{self.port}"

    @property
    def id(self) -> str:
        """Its device id."""
        return str(self.told()["id"])

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self.child is not None
        return self.child.process.pid

    def told(self) -> dict[str, Any]:
        """What it says of itself; nothing before it serves."""
        assert self.child is not None
        return self.child.ready() or {}

    async def start(self) -> None:
        """Returns when it serves."""
        self.begin()
        await until(lambda: bool(self.told()), self.start_s)
        self.port = int(str(self.told()["address"]).rpartition(":")[2])

    def begin(self) -> None:
        """Starts its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder.with_suffix(".toml")
        told = {"secret": self.secret} | ({"engine": self.engine} if self.engine else {})
        config.write_text("".join(f"{name} = '{value}'\n" for name, value in told.items()))
        mdns = "--mdns" if self.mdns else "--no-mdns"
        arguments = ["worker", "--name", self.name, mdns, "--host", self.host]
        arguments += ["--port", str(self.port), "--pace", f"{self.pace:.6g}"]
        arguments += ["--state-dir", str(self.folder), "--config", str(config)]
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        self.child = children.start(self.name, arguments, self.folder, ready, self.within)

    def signal(self, number: Signals) -> None:
        """Sends a signal to its process."""
        assert self.child is not None
        self.child.process.send_signal(number)

    async def end(self, number: Signals) -> None:
        """Ends its process."""
        self.signal(number)
        assert self.child is not None
        await asyncio.to_thread(self.child.process.wait)


@asynccontextmanager
async def running(workers: Sequence[WorkerProcess]) -> AsyncIterator[None]:
    """All of them, for as long as the context lasts."""
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        yield
    finally:
        await asyncio.to_thread(children.stop, [worker.child for worker in workers if worker.child])


@asynccontextmanager
async def coordinated(
    folder: Path, workers: Sequence[WorkerProcess], **settings: object
) -> AsyncIterator[Coordinator]:
    """A coordinator in this process that all of the workers have joined; nothing else computes."""
    made = Coordinator(
        CoordinatorSettings(
            state_dir=folder,
            workers=tuple(worker.address for worker in workers),
            mdns=False,
            models=(),
            host_computes=False,
            profile=False,
            **settings,  # type: ignore[arg-type]
        )
    )
    await made.start()
    try:
        await until(lambda: ready(made) == len(workers))
        yield made
    finally:
        await made.stop()


def ready(coordinator: Coordinator) -> int:
    """How many devices can be used."""
    return sum(status.state == "ready" for status in coordinator.device_statuses())


def questions(model: str, count: int) -> list[tuple[Tensors, Tensors]]:
    """Inputs, and the whole model's answers."""
    proto = load(model).proto
    whole = WholeModel(proto, 1)
    feeds = [random_inputs(load_graph(proto), seed=number) for number in range(count)]
    return [(feed, whole.run(feed)) for feed in feeds]


async def until(condition: Callable[[], bool], within_s: float = START_S) -> float:
    """Waits for something to be so; the seconds that took.

    Raises:
        TimeoutError: it isn't so in time.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"it is not so after {within_s:.0f} s")
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - began
