"""What happens to devices: each kind of harm to a random one, for a while."""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable

import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.chaos.places import NETWORK, Place
from benchmarks.lab import cuts
from benchmarks.workers import WorkerProcess

EVERY_S = (2.0, 5.0)
STOPPED_S = (0.3, 6.0)
GONE_S = (0.0, 3.0)
# Slow enough that harm comes in the middle of a request, and that all fit on two cores.
PACES = (0.04, 0.08)
# What a worker may still write, or take of memory, where it is made short of it.
LEFT_ON_DISK_BYTES = 20_000
LEFT_OF_MEMORY_BYTES = 30 << 20
_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

SLOW_MBPS = 3.0


class Harm:
    """Harms devices until it is told to end; the first one is always left alone. `seed` repeats
    the same harm at the same times. A worker that ends by itself is started again, as systemd does.
    """

    def __init__(self, place: Place, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._place = place
        self._random = random.Random(seed)

    async def until(self, deadline_s: float) -> None:
        """Until then, and until everything is mended."""
        loop = asyncio.get_running_loop()
        going: list[asyncio.Task[None]] = []
        while (pause := self._random.uniform(*EVERY_S)) + loop.time() < deadline_s:
            await asyncio.sleep(pause)
            free = [worker for worker in self._place.workers[1:] if not worker.busy]
            if free:
                victim = self._random.choice(free)
                kind = self._random.choice(self._place.kinds)
                going.append(asyncio.create_task(self._harm(victim, kind)))
        await asyncio.gather(*going)

    async def _harm(self, worker: WorkerProcess, kind: str) -> None:
        long = kind == "stop" or kind in NETWORK
        seconds = self._random.uniform(*(STOPPED_S if long else GONE_S))
        worker.busy = True
        self.done[kind] += 1
        match kind:
            case "stop":
                worker.signal(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                worker.signal(signal.SIGCONT)
            case "kill" | "term" | "empty disk" | "pace":
                await self._restart(worker, kind, seconds)
            case "full disk":
                await self._restart(worker, "empty disk", 0.0)
                await _short_of(worker, resource.RLIMIT_FSIZE, LEFT_ON_DISK_BYTES, seconds)
            case "memory":
                most = psutil.Process(worker.pid).memory_info().vms + LEFT_OF_MEMORY_BYTES
                await _short_of(worker, resource.RLIMIT_AS, most, seconds)
            case _:
                mend = self._cut(worker, kind)
                await asyncio.sleep(seconds)
                mend()
        worker.busy = False

    async def _restart(self, worker: WorkerProcess, kind: str, pause_s: float) -> None:
        await worker.end(signal.SIGTERM if kind in ("term", "pace") else signal.SIGKILL)
        if kind == "empty disk":
            await asyncio.to_thread(shutil.rmtree, worker.folder)
        if kind == "pace":
            worker.pace = self._random.uniform(*PACES)
        await asyncio.sleep(pause_s)
        await worker.start()

    def _cut(self, worker: WorkerProcess, kind: str) -> Callable[[], None]:
        network = self._place.network
        assert network is not None, "only then there are such kinds"
        first, workers = self._place.first, self._place.workers
        numbers, number = range(first, first + len(workers)), first + workers.index(worker)
        if kind == "cut":
            return cuts.cut(network, number)
        if kind == "slow link":
            return cuts.slow(network, number, SLOW_MBPS)
        if kind == "one way":
            return cuts.cut_one_way(network, number)
        other = self._random.choice([other for other in numbers if other != number])
        return cuts.cut_peers(network, number, other)


async def _short_of(worker: WorkerProcess, what: int, most: int, seconds: float) -> None:
    """For so long the worker gets no more than that; if it ends of it, it is started again."""
    resource.prlimit(worker.pid, what, (most, resource.RLIM_INFINITY))
    await asyncio.sleep(seconds)
    assert worker.child is not None
    if worker.child.process.poll() is None:
        resource.prlimit(worker.pid, what, _NO_LIMIT)
    else:
        await worker.start()
