"""Does anything grow? The resident memory of every process under a steady load.

    python -m benchmarks.soak --minutes 30 --json

Worker processes, and a coordinator that is a process too, asked over HTTP. What they can answer is
measured first; then pictures come at four fifths of that rate, at random intervals as from people.
After a tenth of the time everything has warmed up: how much larger is each process in the last
tenth than in the first one after that?
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.report import command_line, emit
from benchmarks.workers import WorkerProcess, running, until
from coordinator import children
from models.digits.examples import examples

MODEL = "digits"
WORKERS = 4
# Whoever has something else to do beside it takes a small one: all workers together use so many
# times this of a core.
PACE = 0.2
LOAD = 0.8
CLIENTS = 8
SAMPLE_S = 5.0
TIMEOUT_S = 60.0
# The largest growth that is called none: allocators and page tables breathe by about this much.
MOST_GROWTH = 0.05


@dataclass(slots=True)
class Log:
    """What was seen: seconds of each answer, errors, and bytes of each process over time."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    bytes_by_process: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


class Soak:
    """Asks a service and watches its processes."""

    def __init__(self, url: str, pids: dict[str, int]) -> None:
        self.log = Log()
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._pictures = [example.path.read_bytes() for example in examples()]
        self._right: list[object] = [None] * len(self._pictures)

    async def close(self) -> None:
        """Ends its connections."""
        await self._http.aclose()

    async def ask(self, number: int) -> None:
        """One picture; its predictions must be what they were the first time."""
        which = number % len(self._pictures)
        began = time.monotonic()
        try:
            answer = await self._http.post(
                f"/v1/models/{MODEL}/infer",
                content=self._pictures[which],
                headers={"Content-Type": "image/png"},
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            self.log.errors.append(repr(error))
            return
        self.log.seconds.append(time.monotonic() - began)
        said = answer.json()["predictions"]
        self._right[which] = self._right[which] or said
        self.log.wrong += said != self._right[which]

    async def capacity_per_s(self, seconds: float) -> float:
        """Answers per second to clients that always ask."""
        until_s = time.monotonic() + seconds

        async def client(first: int) -> int:
            asked = 0
            while time.monotonic() < until_s:
                await self.ask(first + asked * CLIENTS)
                asked += 1
            return asked

        began = time.monotonic()
        asked = sum(await asyncio.gather(*(client(first) for first in range(CLIENTS))))
        return asked / (time.monotonic() - began)

    async def load(self, per_s: float, seconds: float, seed: int) -> None:
        """Requests at random intervals, whether earlier ones are answered or not."""
        chance = random.Random(seed)
        asked: list[asyncio.Task[None]] = []
        due = began = time.monotonic()
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asked.append(asyncio.create_task(self.ask(len(asked))))
            due += chance.expovariate(per_s)
        await asyncio.gather(*asked)

    async def watch(self) -> None:
        """Notes the resident memory of every process, until it is cancelled."""
        began = time.monotonic()
        while True:
            for name, process in self._processes.items():
                seen = self.log.bytes_by_process.setdefault(name, [])
                seen.append((time.monotonic() - began, process.memory_info().rss))
            await asyncio.sleep(SAMPLE_S)


def growth(seen: Sequence[tuple[float, int]]) -> float:
    """By how much of itself a process is larger in the last tenth of the time than in the first
    tenth after its warming up, medians each. `seen` are (seconds, bytes).
    """
    last_s = seen[-1][0]

    def typical(start: float, stop: float) -> float:
        return statistics.median(size for at, size in seen if start * last_s <= at <= stop * last_s)

    return typical(0.9, 1.0) / typical(0.1, 0.2) - 1.0


async def measure(minutes: float, seed: int, pace: float) -> dict[str, Any]:
    """Everything that is printed."""
    with tempfile.TemporaryDirectory(prefix="imbrex-soak-") as name:
        folder = Path(name)
        workers = [
            WorkerProcess(f"worker-{i}", folder / f"worker-{i}", pace) for i in range(WORKERS)
        ]
        async with running(workers):
            coordinator = _coordinator(folder / "coordinator", workers)
            try:
                await until(lambda: coordinator.ready() is not None)
                url = str((coordinator.ready() or {})["url"])
                pids = {worker.name: worker.pid for worker in workers}
                soak = Soak(url, {**pids, "coordinator": coordinator.process.pid})
                per_s = await _soaked(soak, minutes, seed)
                await soak.close()
            finally:
                await asyncio.to_thread(children.stop, [coordinator])
    log = soak.log
    ordered = sorted(log.seconds)
    processes: dict[str, dict[str, Any]] = {
        name: {
            "growth": growth(seen),
            "first_bytes": seen[0][1],
            "last_bytes": seen[-1][1],
            "largest_bytes": max(size for _, size in seen),
            "samples": [size for _, size in seen],
        }
        for name, seen in log.bytes_by_process.items()
    }
    return {
        "minutes": minutes,
        "seed": seed,
        "workers": WORKERS,
        "pace": pace,
        "model": MODEL,
        "capacity_per_s": per_s / LOAD,
        "asked_per_s": per_s,
        "answers": len(ordered),
        "errors": len(log.errors),
        "wrong": log.wrong,
        "first_errors": log.errors[:10],
        "p50_s": statistics.median(ordered),
        "p99_s": ordered[int(0.99 * (len(ordered) - 1))],
        "worst_growth": max(each["growth"] for each in processes.values()),
        "sample_s": SAMPLE_S,
        "processes": processes,
    }


async def _soaked(soak: Soak, minutes: float, seed: int) -> float:
    """Runs it; requests per second that were asked for."""
    await _ready(soak)
    warm = await soak.capacity_per_s(10.0)
    # Long enough for a hundred answers, if that is not for ever.
    per_s = LOAD * await soak.capacity_per_s(min(60.0, 100.0 / warm))
    soak.log.seconds.clear()
    watching = asyncio.create_task(soak.watch())
    await soak.load(per_s, minutes * 60, seed)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return per_s


async def _ready(soak: Soak) -> None:
    for _ in range(600):
        answer = await soak._http.get("/readyz")
        if answer.is_success:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the coordinator is not ready after a minute")


def _coordinator(state: Path, workers: Sequence[WorkerProcess]) -> children.Child:
    arguments = ["coordinator", "--no-mdns", "--port", "0", "--state-dir", str(state)]
    arguments += ["--no-host-computes", "--no-profile", "--model", MODEL]
    for worker in workers:
        arguments += ["--worker", worker.address]
    return children.start("coordinator", arguments, state, state / "ready.json")


def main() -> int:
    """Prints the result; fails if a process grew, or an answer was lost or wrong."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=PACE, help="of each worker")
    chosen = parser.parse_args()
    result = asyncio.run(measure(chosen.minutes, chosen.seed, chosen.pace))
    lines = [
        f"{name:12} {each['growth']:+.1%}  ({each['first_bytes'] >> 20} to "
        f"{each['last_bytes'] >> 20} MB)"
        for name, each in result["processes"].items()
    ]
    lines.append(
        f"{result['answers']} answers at {result['asked_per_s']:.2f} per second, "
        f"{result['errors']} errors, {result['wrong']} wrong; median {result['p50_s']:.2f} s, "
        f"99 % {result['p99_s']:.2f} s"
    )
    emit(result, chosen, "\n".join(lines))
    bad = result["errors"] or result["wrong"] or result["worst_growth"] >= MOST_GROWTH
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
