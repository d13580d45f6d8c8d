"""The resident memory of every process under a steady load.

What the workers can answer is measured first; then requests come at four fifths of that rate, at
random intervals as from people. After a tenth of the time everything has warmed up: how much
larger is each process in the last tenth than in the first one after that?
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.soak.question import Question, wrong
from benchmarks.soak.service import service, wait_until_ready

WORKERS = 4
LOAD = 0.8
CLIENTS = 8
SAMPLE_S = 5.0
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Log:
    """What was seen: seconds of each answer, errors, and bytes of each process over time."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    bytes_by_process: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


class Soak:
    """Asks a service and watches its processes."""

    def __init__(self, url: str, pids: dict[str, int], mix: Sequence[Question]) -> None:
        self.log = Log()
        self._mix = mix
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        """Ends its connections."""
        await self.http.aclose()

    async def ask(self, number: int) -> None:
        """One request; its answer must be the right one."""
        question = self._mix[number % len(self._mix)]
        began = time.monotonic()
        try:
            answer = await self.http.post(
                f"/v1/models/{question.model}/infer",
                content=question.body,
                headers=question.headers,
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            self.log.errors.append(repr(error))
            return
        self.log.seconds.append(time.monotonic() - began)
        self.log.wrong += wrong(question, answer)

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


async def measure(
    mix: Sequence[Question], minutes: float, seed: int, pace: float
) -> dict[str, Any]:
    """Everything that is printed."""
    models = sorted({question.model for question in mix})
    with tempfile.TemporaryDirectory(prefix="imbrex-soak-") as name:
        async with service(Path(name), WORKERS, pace, models) as (url, pids):
            soak = Soak(url, pids, mix)
            per_s = await _soaked(soak, minutes, seed)
            await soak.close()
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
        "models": models,
        "capacity_per_s": per_s / LOAD,
        "asked_per_s": per_s,
        "answers": len(ordered),
        "errors": len(log.errors),
        "wrong": log.wrong,
        "first_errors": log.errors[:10],
        "p50_s": statistics.median(ordered),
        "p99_s": ordered[int(0.99 * (len(ordered) - 1))],
        "worst_growth": max(process["growth"] for process in processes.values()),
        "sample_s": SAMPLE_S,
        "processes": processes,
    }


async def _soaked(soak: Soak, minutes: float, seed: int) -> float:
    """Runs it; requests per second that were asked for."""
    await wait_until_ready(soak.http)
    warm = await soak.capacity_per_s(10.0)
    # Long enough for a hundred answers, if that is not for ever.
    per_s = LOAD * await soak.capacity_per_s(min(60.0, 100.0 / warm))
    soak.log.seconds.clear()
    watching = asyncio.create_task(soak.watch())
    await soak.load(per_s, minutes * 60, seed)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return per_s


def lines(result: dict[str, Any]) -> list[str]:
    """The same for people."""
    return [
        *(
            f"{name:12} {process['growth']:+.1%}  ({process['first_bytes'] / 1e6:.1f} to "
            f"{process['last_bytes'] / 1e6:.1f} MB)"
            for name, process in result["processes"].items()
        ),
        f"{result['answers']} answers at {result['asked_per_s']:.2f} per second, "
        f"{result['errors']} errors, {result['wrong']} wrong; median {result['p50_s']:.2f} s, "
        f"99 % {result['p99_s']:.2f} s",
    ]
