"""A coordinator inside this process with real workers beside it, for benchmarks to look into."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.members import make_members
from coordinator.devices import children
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings

READY_S = 120.0


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """What `local_cluster` started."""

    coordinator: Coordinator
    workers: tuple[children.Child, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(child.process.pid for child in self.workers)


@asynccontextmanager
async def local_cluster(
    workers: int,
    *,
    pace: float | None = None,
    strategy: str = "aofl",
    profiles: Path | None = None,
    certified: bool = False,
    engine: str = "auto",
    **settings: object,
) -> AsyncIterator[LocalCluster]:
    """`workers` processes, each paced to 1.6/N of a core unless told otherwise, and a coordinator
    that has measured them. `profiles` keeps what was measured for the next run. `certified`: the
    cluster has an authority, and all of them speak mutual TLS. An `engine` other than `auto` and
    onnxruntime cannot be paced.
    """
    share = min(1.0, 1.6 / workers) if pace is None else pace
    with tempfile.TemporaryDirectory(prefix="imbrex-bench-") as folder:
        state = profiles or Path(folder) / "coordinator"
        if certified:
            make_members(state, [_state(Path(folder), index) for index in range(workers)])
        started = [_worker(Path(folder), index, share, engine) for index in range(workers)]
        try:
            addresses = [await _address(child) for child in started]
            coordinator = Coordinator(
                CoordinatorSettings(
                    state_dir=state,
                    workers=tuple(addresses),
                    mdns=False,
                    models=(),
                    strategy=strategy,
                    host_computes=False,
                    **settings,  # type: ignore[arg-type]
                )
            )
            await coordinator.start()
            try:
                await _measured(coordinator, workers, bool(settings.get("profile", True)))
                yield LocalCluster(coordinator, tuple(started))
            finally:
                await coordinator.stop()
        finally:
            await asyncio.to_thread(children.stop, started)


def _state(folder: Path, index: int) -> Path:
    return folder / f"worker-{index}"


def _worker(folder: Path, index: int, pace: float, engine: str) -> children.Child:
    state = _state(folder, index)
    arguments = ["worker", "--name", f"worker-{index}", "--pace", f"{pace:.6g}", "--no-mdns"]
    arguments += ["--host", "127.0.0.1", "--port", "0", "--state-dir", str(state)]
    arguments += ["--engine", engine]
    return children.start(f"worker-{index}", arguments, state, state / "ready.json")


async def _address(child: children.Child) -> str:
    deadline = asyncio.get_running_loop().time() + READY_S
    while asyncio.get_running_loop().time() < deadline:
        if (ready := child.ready()) is not None:
            return str(ready["address"])
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{child.name} did not start")


async def _measured(coordinator: Coordinator, workers: int, profile: bool) -> None:
    """Until every worker is ready and, if asked for, profiled and probed."""
    deadline = asyncio.get_running_loop().time() + READY_S
    while asyncio.get_running_loop().time() < deadline:
        ready = [device for device in coordinator.device_statuses() if device.state == "ready"]
        if len(ready) >= workers and (not profile or all(device.profiled for device in ready)):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the workers were not measured in time")
