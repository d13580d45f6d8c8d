"""Which devices have passed their exams: none computes before the first, and all repeat them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Set
from typing import TypeVar

import structlog

from coordinator.audit.arbiter import Arbiter
from coordinator.audit.collector import Collector
from coordinator.audit.exam import entrance, of_task, tasks_to_try
from coordinator.audit.verdict import Verdict
from coordinator.devices.pool import Pool
from coordinator.tasks.task_graph import TaskGraph
from models.check.tolerance import PLAIN
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId, Facts

log = structlog.get_logger(__name__)

# A device whose exam could not run is tried again, for as long as it is connected.
AGAIN_S = 5.0
# Tasks of each network in use: when a device joins, and for `imbrex doctor`.
TASKS_AT_JOIN = 1
TASKS_FOR_DOCTOR = 3
# Devices, and pairs of device and network: ids can be forged, so both are capped.
MOST_REMEMBERED = 1024

# What an exam is valid for: this boot of this machine, with this processor and engine.
_Key = tuple[str, str]
K = TypeVar("K")


class Examiner:
    """Runs exams. `judged` gets every verdict, and `changed(cause)` is called when another device
    may compute.
    """

    def __init__(
        self,
        pool: Pool,
        collector: Collector,
        judged: Callable[[Verdict], None],
        changed: Callable[[str], None],
    ) -> None:
        self.arbiter = Arbiter()
        self._pool = pool
        self._collector = collector
        self._judged = judged
        self._changed = changed
        # What was examined in which state: by device, and by device and network.
        self._entered: OrderedDict[DeviceId, _Key] = OrderedDict()
        self._tried: OrderedDict[tuple[DeviceId, str], _Key] = OrderedDict()
        self._failures: dict[DeviceId, str] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        # The tasks among them that need programs of a plan.
        self._trying: dict[asyncio.Task[None], frozenset[str]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def close(self) -> None:
        """Stops all exams."""
        for task in self._at_work:
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)
        self.arbiter.close()

    def may_compute(self, facts: Facts) -> bool:
        """Whether a device has taken the entrance exam; one that failed is in quarantine."""
        return self._entered.get(facts.id) == _key(facts)

    def reason(self, device: DeviceId) -> str:
        """Why a device may not compute yet."""
        return self._failures.get(device, "it is taking its entrance exam")

    def joined(self, device: DeviceId) -> None:
        """A device has connected. If it was allowed to compute before, it may go on."""
        self._start(self._enter(device))

    def goes_on(self, facts: Facts) -> None:
        """A device that may compute has changed its engine: it goes on, and repeats its exams."""
        if facts.id in self._entered:
            _remember(self._entered, facts.id, _key(facts))
        self.joined(facts.id)

    def planned(self, graph: TaskGraph) -> None:
        """A plan is in force: each of its devices takes a task of it as an exam, once per
        network.
        """
        for device in graph.plan.devices:
            facts, about = self._pool.facts(device), (device, graph.plan.model)
            if facts is not None and self._tried.get(about) != _key(facts):
                _remember(self._tried, about, _key(facts))
                self._trying[self._start(self._try(graph, device))] = frozenset(graph.programs)

    async def give_up(self, programs: Set[str]) -> None:
        """Ends exams with these programs, which are about to be dropped, so that none is prepared
        again.
        """
        needless = [task for task, needed in self._trying.items() if needed & programs]
        for task in needless:
            task.cancel()
        await asyncio.gather(*needless, return_exceptions=True)

    async def examine(
        self, devices: Iterable[DeviceId], graphs: Iterable[TaskGraph]
    ) -> dict[DeviceId, str]:
        """Examines devices now: the entrance exam and tasks of these plans. Verdicts are reported
        as always; returns why some devices could not be examined.
        """
        plans, failures = list(graphs), {}
        for device in devices:
            try:
                self._judged(await entrance(device, self._pool, self._collector))
                for graph in plans:
                    await self._tasks(graph, device, TASKS_FOR_DOCTOR)
            except ImbrexError as error:
                failures[device] = error.cause
        return failures

    async def _enter(self, device: DeviceId) -> None:
        while (facts := self._pool.facts(device)) is not None:
            if facts.tolerance > PLAIN:
                self._failures[device] = (
                    f"its engine {facts.engine} promises results within {facts.tolerance:g} of the "
                    f"largest magnitude, but {PLAIN:g} is needed: set another engine there"
                )
                return
            try:
                verdict = await entrance(device, self._pool, self._collector)
            except ImbrexError as error:
                log.warning("entrance exam failed to run", device=device, cause=error.cause)
                self._failures[device] = f"it could not be examined: {error.cause}"
                await asyncio.sleep(AGAIN_S)
                continue
            self._failures.pop(device, None)
            was_in = self.may_compute(facts)
            _remember(self._entered, device, _key(facts))
            self._judged(verdict)
            if not was_in:
                self._changed(f"{device} was examined")
            return
        self._failures.pop(device, None)

    async def _try(self, graph: TaskGraph, device: DeviceId) -> None:
        async with self._one_at_a_time:
            try:
                await self._tasks(graph, device, TASKS_AT_JOIN)
            except ImbrexError as error:
                model = graph.plan.model
                log.warning("exam failed to run", device=device, model=model, cause=error.cause)

    async def _tasks(self, graph: TaskGraph, device: DeviceId, most: int) -> None:
        for task in tasks_to_try(graph, device, most):
            asked = of_task(graph, task, device, self._pool, self._collector, self.arbiter)
            self._judged(await asked)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        self._trying.pop(task, None)


def _key(facts: Facts) -> _Key:
    return facts.boot_id, facts.fingerprint


def _remember(table: OrderedDict[K, _Key], about: K, key: _Key) -> None:
    table.pop(about, None)
    while len(table) >= MOST_REMEMBERED:
        table.popitem(last=False)
    table[about] = key
