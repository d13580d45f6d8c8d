"""Two coordinators at one address: what happens to them, their machines and their store while their
workers are harmed, too.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from benchmarks.lab.cuts import cut, cut_peers
from benchmarks.pair.machines import COORDINATORS, House
from benchmarks.pair.processes import START_S
from benchmarks.workers import until
from coordinator.devices import children

EVERY_S = (3.0, 8.0)
FOR_S = (0.3, 8.0)
KINDS = (
    "coordinator killed",
    "coordinator ended",
    "coordinator stopped",
    "machine dead",
    "machines apart",
    "store killed",
)


class PairHarm:
    """Harms one of two coordinators, its machine, or a server of the store; then, when both answer
    again, another one.
    """

    def __init__(self, made: House, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._made = made
        self._random = random.Random(seed)

    async def until(self, deadline_s: float) -> None:
        """Until then, and until everything is mended."""
        luck, loop = self._random, asyncio.get_running_loop()
        while (pause := luck.uniform(*EVERY_S)) + loop.time() < deadline_s:
            await asyncio.sleep(pause)
            kind, number = luck.choice(KINDS), luck.choice(COORDINATORS)
            self.done[kind] += 1
            await self._harm(kind, number, luck.uniform(*FOR_S))
            for coordinator in self._made.coordinators:
                await until(coordinator.is_ready, START_S)

    async def _harm(self, kind: str, number: int, seconds: float) -> None:
        network, coordinator = self._made.network, self._made.coordinators[number - 1]
        match kind:
            case "coordinator killed":
                coordinator.kill()
                await asyncio.sleep(seconds)
                coordinator.start()
            case "coordinator ended":
                assert coordinator.child is not None
                await asyncio.to_thread(children.stop, [coordinator.child])
                coordinator.start()
            case "coordinator stopped":
                coordinator.pause()
                await asyncio.sleep(seconds)
                coordinator.pause(end=True)
            case "store killed":
                node = self._made.store.nodes[number]
                node.kill()
                await asyncio.sleep(seconds)
                node.start()
            case _:
                dead = kind == "machine dead"
                mend = cut(network, number) if dead else cut_peers(network, *COORDINATORS)
                await asyncio.sleep(seconds)
                mend()
