"""Which devices have passed their exams: none computes before the first, and all repeat them."""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Set

import structlog

from coordinator.audit.arbiter import Arbiter
from coordinator.audit.collector import Collector
from coordinator.audit.exam import entrance, of_task, tasks_to_try
from coordinator.devices.announcements import Announcements, DevicesChanged
from coordinator.devices.devices import Devices
from coordinator.devices.withheld import state_of
from coordinator.tasks.task_graph import TaskGraph
from models.check.tolerance import PLAIN
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)

# A device whose exam could not run is tried again, for as long as it is connected.
AGAIN_S = 5.0
# Tasks of each network in use: when a device joins, and for `imbrex doctor`.
TASKS_AT_JOIN = 1
TASKS_FOR_DOCTOR = 3
# Pairs of device and network: ids can be forged.
MOST_REMEMBERED = 1024


class Examiner:
    """Runs exams. Announces every verdict, and when another device may compute."""

    def __init__(
        self, devices: Devices, collector: Collector, announcements: Announcements
    ) -> None:
        self.arbiter = Arbiter()
        self._pool, self._withheld = devices.pool, devices.withheld
        self._collector = collector
        self._announcements = announcements
        # In which state each device was examined by tasks of each network.
        self._tried: OrderedDict[tuple[DeviceId, str], tuple[str, str]] = OrderedDict()
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

    def joined(self, device: DeviceId) -> None:
        """A device is connected. If it was allowed to compute before, it may go on meanwhile."""
        self._start(self._enter(device))

    def switched(self, device: DeviceId) -> None:
        """A device has changed its engine: one that may compute goes on, and repeats its exams."""
        if (facts := self._pool.facts(device)) is not None:
            self._withheld.admit_again(facts)
            self.joined(device)

    def planned(self, graph: TaskGraph) -> None:
        """A plan is in force: each of its devices takes a task of it as an exam, once per
        network.
        """
        for device in graph.plan.devices:
            facts, about = self._pool.facts(device), (device, graph.plan.model)
            if facts is not None and self._tried.get(about) != state_of(facts):
                self._tried.pop(about, None)
                while len(self._tried) >= MOST_REMEMBERED:
                    self._tried.popitem(last=False)
                self._tried[about] = state_of(facts)
                self._trying[self._start(self._try(graph, device))] = frozenset(graph.programs)

    def give_up(self, programs: Set[str]) -> None:
        """Ends exams with these programs, which are about to be dropped, so that none is prepared
        again.
        """
        for task, needed in self._trying.items():
            if needed & programs:
                task.cancel()

    async def examine(
        self, devices: Iterable[DeviceId], graphs: Iterable[TaskGraph]
    ) -> dict[DeviceId, str]:
        """Examines devices now: the entrance exam and tasks of these plans. Verdicts are reported
        as always; returns why some devices could not be examined.
        """
        plans, failures = list(graphs), {}
        for device in devices:
            try:
                self._announcements.announce(await entrance(device, self._pool, self._collector))
                for graph in plans:
                    await self._tasks(graph, device, TASKS_FOR_DOCTOR)
            except ImbrexError as error:
                failures[device] = error.cause
        return failures

    async def _enter(self, device: DeviceId) -> None:
        while (facts := self._pool.facts(device)) is not None:
            if facts.tolerance > PLAIN:
                self._withheld.not_examined(
                    device,
                    f"its engine {facts.engine} promises results within {facts.tolerance:g} of the "
                    f"largest magnitude, but {PLAIN:g} is needed: set another engine there",
                )
                return
            try:
                verdict = await entrance(device, self._pool, self._collector)
            except ImbrexError as error:
                log.warning("entrance exam failed to run", device=device, cause=error.cause)
                self._withheld.not_examined(device, f"it could not be examined: {error.cause}")
                await asyncio.sleep(AGAIN_S)
                continue
            is_new = self._withheld.admit(facts)
            self._announcements.announce(verdict)
            if is_new:
                self._announcements.announce(DevicesChanged(f"{device} was examined"))
            return
        self._withheld.not_examined(device)

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
            self._announcements.announce(await asked)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        self._trying.pop(task, None)
