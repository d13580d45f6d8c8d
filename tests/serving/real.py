"""A coordinator with HTTP in this process and real worker processes beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import onnx

from coordinator.devices import children
from coordinator.service import Coordinator
from coordinator.serving.app import create_app
from coordinator.settings import CoordinatorSettings
from models.onnx_file.builder import NetworkBuilder, square
from tests import forked
from tests.waiting import until

PACE = 0.5


def save_tiny(folder: Path) -> Path:
    """A network that is small but worth several tiles; over HTTP it is called `tiny`."""
    net = NetworkBuilder("tiny", seed=3)
    x = net.input("image", (1, 3, 64, 64))
    for number, channels in enumerate((8, 16, 16), start=1):
        x = x.conv(f"conv{number}", channels, square(3)).relu()
    x = x.max_pool("pool", square(2, 2)).conv("conv4", 8, square(3))
    path = folder / "tiny.onnx"
    onnx.save(net.model(x), path)
    return path


@contextmanager
def started_workers(folder: Path, count: int, pace: float = PACE) -> Iterator[list[children.Child]]:
    """Worker processes called worker-1 and so on."""
    started = []
    for number in range(1, count + 1):
        name, state = f"worker-{number}", folder / f"worker-{number}"
        arguments = ["worker", "--name", name, "--no-mdns", "--port", "0"]
        arguments += ["--state-dir", str(state), "--pace", str(pace)]
        started.append(forked.start(name, arguments, state, state / "ready.json"))
    try:
        yield started
    finally:
        children.stop(started)


@dataclass(frozen=True)
class Real:
    """What a test talks to."""

    coordinator: Coordinator
    http: httpx.AsyncClient


def _settled(coordinator: Coordinator) -> bool:
    """Links are measured and the first plan is there: no plan changes by itself any more."""
    return (
        not coordinator.measuring._probing.busy
        and bool(coordinator.plans.book.in_force())
        and not coordinator.plans.book.is_busy()
    )


@asynccontextmanager
async def running(
    folder: Path, workers: Sequence[children.Child], model: Path, **settings: object
) -> AsyncIterator[Real]:
    """A coordinator that all of the workers have joined."""
    await until(lambda: all(child.ready() for child in workers))
    addresses = tuple(str((child.ready() or {})["address"]) for child in workers)
    chosen = {"strategy": "ofl", "profile": False, **settings}
    coordinator = Coordinator(
        CoordinatorSettings(
            state_dir=folder,
            workers=addresses,
            mdns=False,
            models=(str(model),),
            host_computes=False,
            host_names=("test",),
            **chosen,  # type: ignore[arg-type]
        )
    )
    await coordinator.start()
    transport = httpx.ASGITransport(create_app(coordinator), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=60
        ) as http:
            await until(
                lambda: (
                    sum(d.state == "ready" for d in coordinator.device_statuses()) == len(workers)
                )
            )
            await until(lambda: _settled(coordinator))
            yield Real(coordinator, http)
    finally:
        await coordinator.stop()
