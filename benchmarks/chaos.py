"""What a home does to its devices, for minutes: is any request lost, or any answer wrong?

    python -m benchmarks.chaos --minutes 10 --seed 1 --json

Worker processes on this machine, a coordinator, and a steady stream of requests by plans of every
kind. Every few seconds something happens to a worker: it is killed and comes back, with its disk or
with an empty one; it is stopped for a while, as a frozen device is; it is asked to end; it becomes
slower or faster. One worker is always left alone. A request is *lost* if it ends with an error, and
*wrong* if its answer is not the whole model's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from benchmarks.report import emit
from coordinator import children
from coordinator.choice import Choice
from coordinator.core import Coordinator
from coordinator.settings import CoordinatorSettings
from models.catalogue import load
from models.graph import load_graph
from models.reference import WholeModel, compare, random_inputs
from protos.errors import ImbrexError

MODEL = "digits"
WORKERS = 6
STRATEGIES = ("", "halo", "ofl", "lw", "aofl", "single")
# Slow enough that a fault comes in the middle of a request, and that all fit on two cores.
PACES = (0.04, 0.08)
REQUEST_EVERY_S = 1.0
FAULT_EVERY_S = (2.0, 5.0)
STOPPED_S = (0.3, 6.0)
GONE_S = (0.0, 3.0)
INPUTS = 8
# Of the output's largest magnitude [docs/architecture.md].
EXACT = 1e-5
START_S = 60.0
# Whoever waits for longer than this counts as lost.
PATIENCE_S = 60.0


@dataclass(slots=True)
class Worker:
    """One worker that things happen to."""

    name: str
    folder: Path
    pace: float
    child: children.Child | None = None
    port: int = 0
    busy: bool = False

    async def start(self) -> None:
        """A process at the port that it had before."""
        arguments = ["worker", "--name", self.name, "--no-mdns", "--host", "127.0.0.1"]
        arguments += ["--port", str(self.port), "--pace", f"{self.pace:.6g}"]
        arguments += ["--state-dir", str(self.folder)]
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        self.child = children.start(self.name, arguments, self.folder, ready)
        await _until(lambda: self.child is not None and self.child.ready() is not None)
        told = self.child.ready() or {}
        self.port = int(str(told["address"]).rpartition(":")[2])

    async def end(self, number: signal.Signals) -> None:
        """Its process ends."""
        assert self.child is not None
        self.child.process.send_signal(number)
        await asyncio.to_thread(self.child.process.wait)


@dataclass(slots=True)
class Outcome:
    """What became of the requests."""

    seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: int = 0
    retried: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class Chaos:
    """Requests and faults, side by side. `seed` repeats the same faults at the same times."""

    def __init__(self, coordinator: Coordinator, workers: list[Worker], seed: int) -> None:
        self.outcome = Outcome()
        self._coordinator = coordinator
        self._workers = workers
        self._random = random.Random(seed)
        self._choices = random.Random(seed + 1)
        proto = load(MODEL).proto
        whole = WholeModel(proto, 1)
        feeds = [random_inputs(load_graph(proto), seed=each) for each in range(INPUTS)]
        self._questions = [(each, whole.run(each)) for each in feeds]

    async def run(self, seconds: float) -> None:
        """For so long, and until everything that was begun has ended."""
        until = time.monotonic() + seconds
        await asyncio.gather(self._requests(until), self._faults(until))

    async def _requests(self, until: float) -> None:
        asked: list[asyncio.Task[None]] = []
        while time.monotonic() < until:
            question = self._questions[len(asked) % INPUTS]
            strategy = self._choices.choice(STRATEGIES)
            asked.append(asyncio.create_task(self._ask(*question, strategy)))
            await asyncio.sleep(REQUEST_EVERY_S)
        await asyncio.gather(*asked)

    async def _ask(
        self, feeds: dict[str, np.ndarray], whole: dict[str, np.ndarray], strategy: str
    ) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await self._coordinator.infer(MODEL, feeds, choice=Choice(strategy))
        except (ImbrexError, TimeoutError) as error:
            self.outcome.lost.append(f"{strategy or 'in force'}: {error or 'no answer in time'}")
            return
        self.outcome.seconds.append(time.monotonic() - began)
        self.outcome.retried += bool(answer.retried_tasks)
        self.outcome.wrong += not compare(answer.outputs, whole).max_rel_error <= EXACT

    async def _faults(self, until: float) -> None:
        going: list[asyncio.Task[None]] = []
        while (pause := self._random.uniform(*FAULT_EVERY_S)) + time.monotonic() < until:
            await asyncio.sleep(pause)
            free = [worker for worker in self._workers[1:] if not worker.busy]
            if free:
                worker = self._random.choice(free)
                going.append(asyncio.create_task(self._harm(worker)))
        await asyncio.gather(*going)

    async def _harm(self, worker: Worker) -> None:
        kind = self._random.choice(("kill", "term", "empty disk", "stop", "stop", "pace"))
        pause_s = self._random.uniform(*(STOPPED_S if kind == "stop" else GONE_S))
        pace = self._random.uniform(*PACES)
        worker.busy = True
        self.outcome.faults[kind] += 1
        if kind == "stop":
            assert worker.child is not None
            worker.child.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(pause_s)
            worker.child.process.send_signal(signal.SIGCONT)
        else:
            await worker.end(signal.SIGTERM if kind in ("term", "pace") else signal.SIGKILL)
            if kind == "empty disk":
                await asyncio.to_thread(shutil.rmtree, worker.folder)
            if kind == "pace":
                worker.pace = pace
            await asyncio.sleep(pause_s)
            await worker.start()
        worker.busy = False


async def measure(minutes: float, seed: int) -> dict[str, Any]:
    """Everything that is printed."""
    with tempfile.TemporaryDirectory(prefix="imbrex-chaos-") as name:
        folder = Path(name)
        workers = [Worker(f"worker-{i}", folder / f"{i}", PACES[0]) for i in range(WORKERS)]
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            outcome = await _harmed(folder, workers, minutes, seed)
        finally:
            await asyncio.to_thread(children.stop, [w.child for w in workers if w.child])
    ordered = sorted(outcome.seconds)
    return {
        "requests": len(outcome.seconds) + len(outcome.lost),
        "faults": sum(outcome.faults.values()),
        "lost": len(outcome.lost),
        "wrong": outcome.wrong,
        "retried": outcome.retried,
        "p50_s": statistics.median(ordered) if ordered else None,
        "p99_s": ordered[int(0.99 * (len(ordered) - 1))] if ordered else None,
        "worst_s": ordered[-1] if ordered else None,
        "kinds": dict(outcome.faults),
        "losses": outcome.lost[:20],
        "minutes": minutes,
        "seed": seed,
        "workers": WORKERS,
        "model": MODEL,
    }


async def _harmed(folder: Path, workers: list[Worker], minutes: float, seed: int) -> Outcome:
    coordinator = Coordinator(
        CoordinatorSettings(
            state_dir=folder / "coordinator",
            workers=tuple(f"127.0.0.1:{worker.port}" for worker in workers),
            mdns=False,
            models=(MODEL,),
            host_computes=False,
            profile=False,
        )
    )
    await coordinator.start()
    try:
        await _until(
            lambda: sum(each.state == "ready" for each in coordinator.devices()) == WORKERS
        )
        chaos = Chaos(coordinator, workers, seed)
        await chaos.run(minutes * 60)
        return chaos.outcome
    finally:
        with suppress(ImbrexError):
            await coordinator.stop()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if condition():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"the workers are not ready after {START_S:.0f} s")


def main() -> int:
    """Prints the result; fails if a request was lost or an answer wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    result = asyncio.run(measure(chosen.minutes, chosen.seed))
    text = (
        f"{result['requests']} requests, {result['faults']} faults: {result['lost']} lost, "
        f"{result['wrong']} wrong; median {result['p50_s']:.2f} s, 99 % {result['p99_s']:.2f} s"
    )
    emit(result, chosen.json, text)
    return 1 if result["lost"] or result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
