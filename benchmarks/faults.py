"""What a killed device costs the request that it computed, and how soon a slow one is relieved.

    python -m benchmarks.faults --json

*Killed*: four workers, one of which is killed at a random moment of a request; then it comes back.
Against the undisturbed requests between the kills: how much longer the harmed ones take, and how
long it is until the next plan is in force. *Slowed*: one of four workers begins to take three times
as long; requests follow each other. After how many requests and seconds does a plan in force give
it less, and how far are latencies then from what a coordinator plans that never knew it faster?
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import command_line, emit
from benchmarks.workers import (
    Tensors,
    WorkerProcess,
    coordinated,
    questions,
    ready,
    running,
    until,
)
from coordinator.service import Coordinator
from coordinator.tasks.plan import Plan
from coordinator.tasks.runs import RunPhase
from models.run.reference import compare
from protos.wire.facts import DeviceId

WORKERS = 4
# Together less than a core, so that nobody waits for this machine.
PACE = 0.2
EXACT = 1e-5
WARM = 12
AFTER = 10
# A device that computes less than this share of what it did has been relieved.
RELIEVED = 0.7
MOST_REQUESTS = 500
_THROTTLED = (sys.executable, "-m", "benchmarks.throttled")

Question = tuple[Tensors, Tensors]


class Cluster:
    """A coordinator and its workers, asked one thing after another."""

    def __init__(self, coordinator: Coordinator, model: str, question: Question) -> None:
        self.coordinator = coordinator
        self.model = model
        self._feeds, self._whole = question

    async def ask(self) -> float:
        """Seconds until the answer, which must be right."""
        began = time.monotonic()
        answer = await self.coordinator.infer(self.model, self._feeds)
        seconds = time.monotonic() - began
        error = compare(answer.outputs, self._whole).max_rel_error
        assert error <= EXACT, f"wrong by {error}"
        return seconds

    async def median_s(self, count: int) -> float:
        """Of so many requests."""
        return statistics.median([await self.ask() for _ in range(count)])

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        graph = self.coordinator.plans.book.graph(self.model)
        assert graph is not None
        return graph.plan

    def share(self, device: str) -> float:
        """How much of the plan's work is a device's."""
        tiles = [tile for block in self.plan.blocks for tile in block.tiles]
        total = sum(tile.flop for tile in tiles)
        return sum(tile.flop for tile in tiles if tile.device == device) / total

    def computing(self) -> set[DeviceId]:
        """Devices that compute something now."""
        return {
            attempt.device
            for run in self.coordinator.requests.scheduler.requests.values()
            for task in run.tasks
            if task.phase is RunPhase.RUNNING
            for attempt in task.attempts.values()
        }

    async def planned(self, device: str, wanted: bool) -> None:
        """Until the plan in force has a device, or does without it."""
        await until(lambda: (device in self.plan.devices) == wanted)

    async def settle(self) -> None:
        """Requests until what devices and links do is no news."""
        for _ in range(WARM):
            await self.ask()
        await self.replan()

    async def quiet(self) -> None:
        """Requests until so long nothing was reconsidered that a drift would be at once."""
        switching = self.coordinator.plans.book.switching
        watched = switching._watched[self.model]
        while time.monotonic() - watched.looked_s < switching.period_s:
            await self.ask()

    async def replan(self) -> None:
        """The plan for what is known now, whatever it costs to change."""
        self.coordinator.plans.devices_changed("asked to by a benchmark")
        await self.coordinator.plans.settled()


async def killed(model: str, strategy: str, kills: int, seed: int) -> dict[str, Any]:
    """Every harmed request beside an undisturbed one."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="imbrex-faults-") as name:
        workers = _workers(Path(name))
        async with (
            running(workers),
            coordinated(Path(name) / "host", workers, strategy=strategy) as coordinator,
        ):
            cluster = Cluster(coordinator, model, questions(model, 1)[0])
            await cluster.settle()
            usual: list[float] = []
            harmed: list[float] = []
            replaced: list[float] = []
            while len(harmed) < kills:
                usual.append(await cluster.ask())
                used = [worker for worker in workers if worker.id in cluster.plan.devices]
                victim = used[len(harmed) % len(used)]
                asked = asyncio.create_task(cluster.ask())
                await asyncio.sleep(chance.uniform(0.05, 0.95) * statistics.median(usual))
                if asked.done() or victim.id not in cluster.computing():
                    await asked  # too early or too late: another moment
                    continue
                device = victim.id
                began = time.monotonic()
                victim.signal(signal.SIGKILL)
                planned = asyncio.create_task(cluster.planned(device, False))
                harmed.append(await asked)
                await planned
                replaced.append(time.monotonic() - began)
                await victim.end(signal.SIGKILL)
                await victim.start()
                await until(lambda: ready(coordinator) == WORKERS)
                await cluster.replan()
                await cluster.ask()
    return {
        "model": model,
        "strategy": strategy,
        "kills": kills,
        "undisturbed_s": statistics.median(usual),
        "harmed_s": statistics.median(harmed),
        "ratio": statistics.median(harmed) / statistics.median(usual),
        "worst_ratio": max(harmed) / statistics.median(usual),
        "next_plan_s": statistics.median(replaced),
        "worst_next_plan_s": max(replaced),
        "samples": {"undisturbed_s": usual, "harmed_s": harmed, "next_plan_s": replaced},
    }


async def slowed(model: str, strategy: str, times: int) -> dict[str, Any]:
    """A device becomes slower while requests follow each other; each time on fresh workers."""
    rounds = [await _slowed_once(model, strategy) for _ in range(times)]
    return {
        "model": model,
        "strategy": strategy,
        **{key: statistics.median(one[key] for one in rounds) for key in rounds[0]},
        "worst_over_optimum": max(one["over_optimum"] for one in rounds),
        "rounds": rounds,
    }


async def _slowed_once(model: str, strategy: str) -> dict[str, float]:
    question = questions(model, 1)[0]
    with tempfile.TemporaryDirectory(prefix="imbrex-faults-") as name:
        workers = _workers(Path(name), within=_THROTTLED)
        victim = workers[0]
        async with running(workers):
            async with coordinated(Path(name) / "a", workers, strategy=strategy) as coordinator:
                cluster = Cluster(coordinator, model, question)
                await cluster.settle()
                await cluster.quiet()
                usual_s = await cluster.median_s(AFTER)
                before = cluster.share(victim.id)
                victim.signal(signal.SIGUSR1)
                began, requests = time.monotonic(), 0
                stuck_s = 0.0
                while cluster.share(victim.id) > RELIEVED * before and requests < MOST_REQUESTS:
                    seconds = await cluster.ask()
                    stuck_s = max(stuck_s, seconds)
                    requests += 1
                relieved_s = time.monotonic() - began
                after_s = await cluster.median_s(AFTER)
            # Another coordinator, which never knew it faster.
            async with coordinated(Path(name) / "b", workers, strategy=strategy) as coordinator:
                cluster = Cluster(coordinator, model, question)
                await cluster.settle()
                await cluster.settle()
                optimum_s = await cluster.median_s(AFTER)
    return {
        "usual_s": usual_s,
        "stuck_s": stuck_s,
        "requests": requests,
        "relieved_s": relieved_s,
        "after_s": after_s,
        "optimum_s": optimum_s,
        "over_optimum": after_s / optimum_s,
    }


def _workers(folder: Path, within: Sequence[str] = ()) -> list[WorkerProcess]:
    return [
        WorkerProcess(f"worker-{i}", folder / f"worker-{i}", PACE, within=within)
        for i in range(WORKERS)
    ]


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that is printed."""
    strategies = arguments.strategies.split(",")
    return {
        "workers": WORKERS,
        "pace": PACE,
        "killed": [
            await killed(arguments.model, strategy, arguments.kills, arguments.seed)
            for strategy in strategies
            if arguments.kills
        ],
        "slowed": [
            await slowed(arguments.model, strategy, arguments.times)
            for strategy in strategies
            if arguments.times
        ],
    }


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{row['strategy']}: killed in mid-request x{row['ratio']:.2f} (median of "
        f"{row['kills']}, worst x{row['worst_ratio']:.2f}), next plan after "
        f"{row['next_plan_s']:.2f} s (worst {row['worst_next_plan_s']:.2f} s)"
        for row in result["killed"]
    ]
    lines += [
        f"{row['strategy']}: slowed to a third, relieved after {row['requests']:.0f} requests or "
        f"{row['relieved_s']:.1f} s, then x{row['over_optimum']:.2f} of the optimum"
        for row in result["slowed"]
    ]
    return "\n".join(lines)


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--strategies", default="auto,halo")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    result = asyncio.run(measure(chosen))
    emit(result, chosen, _text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
