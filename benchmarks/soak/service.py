"""The processes that a soak watches: workers, and a coordinator that is a process too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from benchmarks.workers import WorkerProcess, running, until
from coordinator.devices import children

READY_S = 120.0
POLL_S = 0.1
COORDINATOR = "coordinator"


@asynccontextmanager
async def service(
    folder: Path, count: int, pace: float, models: Sequence[str] = ()
) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """The coordinator's URL, and the process ids by name."""
    workers = [WorkerProcess(f"worker-{i}", folder / f"worker-{i}", pace) for i in range(count)]
    async with running(workers):
        state = folder / COORDINATOR
        arguments = ["coordinator", "--no-mdns", "--port", "0", "--state-dir", str(state)]
        arguments += ["--no-host-computes", "--no-profile"]
        for model in models:
            arguments += ["--model", model]
        for worker in workers:
            arguments += ["--worker", worker.address]
        made = children.start(COORDINATOR, arguments, state, state / "ready.json")
        try:
            await until(lambda: made.ready() is not None)
            url = str((made.ready() or {})["url"])
            yield url, {**{w.name: w.pid for w in workers}, COORDINATOR: made.process.pid}
        finally:
            await asyncio.to_thread(children.stop, [made])


async def wait_until(holds: Callable[[], Awaitable[bool]], most_s: float = READY_S) -> None:
    """Returns when what is asked holds.

    Raises:
        TimeoutError: not within `most_s`.
    """
    for _ in range(int(most_s / POLL_S)):
        if await holds():
            return
        await asyncio.sleep(POLL_S)
    raise TimeoutError(f"not within {most_s:.0f} s")


async def wait_until_ready(http: httpx.AsyncClient) -> None:
    """Returns when every configured model can be asked.

    Raises:
        TimeoutError: not in two minutes.
    """

    async def ready() -> bool:
        return (await http.get("/readyz")).is_success

    await wait_until(ready)
