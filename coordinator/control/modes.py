"""One image over all devices, or several at once on groups of them: as the load asks.

A model's *line* is its requests that wait, and the groups that take them. With few requests there
is one group, which executes the plan in force. When so many arrive that another grouping is
predicted to answer them sooner, its plans are prepared in the background, and then take over;
requests in flight end on the plan that they began with. The way back needs no preparation.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf

import structlog

from coordinator.answers import LoadStatus
from coordinator.control.choice import IN_FORCE, Choice
from coordinator.control.lines import Group, starts
from coordinator.control.load import Load
from coordinator.control.making import Maker
from coordinator.control.plans import Plans
from coordinator.costs.devices import Cluster
from coordinator.planning.groups import Grouping, Service, counts
from coordinator.settings import Objective
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId
from protos.errors import ImbrexError

log = structlog.get_logger(__name__)

# Another grouping must promise this much; a change costs nothing but the work to get ready.
WORTHWHILE_GAIN = 0.03
# Groupings are planned anew after this: devices change their speed.
KEEP_S = 60.0
# With fewer at a time, one group for all has nothing to gain from others.
CROWD = 1.5
# How often a line looks whether another grouping is better.
LOOK_S = 0.25


@dataclass(slots=True, eq=False)
class _Line:
    """One model's requests, and its groupings by their number of groups: `planned` at
    `planned_s`, and `ready` on the devices. 1 is the plan in force, always ready. `groups` take
    requests now: `count` of them, maybe as an earlier plan had them.
    """

    planned: dict[int, Grouping] = field(default_factory=dict)
    planned_s: float = -inf
    ready: dict[int, list[Group]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    waiting: deque[asyncio.Future[Group]] = field(default_factory=deque)
    looked_s: float = -inf
    work: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many groups take requests."""
        return len(self.groups)

    def follow(self, graph: TaskGraph) -> None:
        """The plan in force is `graph`. How many it answers per second is not known yet: one
        after the other.
        """
        all_devices = self.ready.get(1)
        if all_devices and all_devices[0].graph is graph:
            return
        latency_s = graph.plan.predicted_latency_s
        service = Service(latency_s, latency_s, 0.0)
        self.planned[1], self.planned_s = Grouping((graph.plan,), (service,)), -inf
        if all_devices:  # it stays the same group, at what it is at
            all_devices[0].graph, all_devices[0].service = graph, service
        else:
            self.groups = self.ready[1] = [Group(graph, service)]

    def drop(self, present: Set[DeviceId]) -> None:
        """Groupings that need other devices than these are gone."""
        for count, grouping in list(self.planned.items()):
            if count > 1 and not present >= grouping.devices:
                del self.planned[count]
                self.ready.pop(count, None)
        used = {device for group in self.groups for device in group.graph.plan.devices}
        if self.count > 1 and not present >= used:
            self.groups = self.ready[1]

    def let_in(self) -> None:
        """Starts those for whom there is room."""
        self.waiting = deque(future for future in self.waiting if not future.done())
        found = starts(self.groups, len(self.waiting))
        for future, group in [(self.waiting[position], group) for position, group in found]:
            self.waiting.remove(future)
            group.in_flight += 1
            future.set_result(group)


class Modes:
    """Gives every request its turn, and the plan that computes it."""

    def __init__(
        self, plans: Plans, maker: Maker, cluster: Callable[[], Cluster], objective: Objective
    ) -> None:
        self._plans = plans
        self._maker = maker
        self._cluster = cluster
        self._objective = objective
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, model: str, choice: Choice = IN_FORCE) -> AsyncIterator[TaskGraph]:
        """Waits until the request may start; the plan to execute.

        Raises:
            NotFound, Unavailable, Infeasible: as `Plans.current`.
        """
        graph = await self._plans.current(model, choice)
        if choice != IN_FORCE:
            yield graph
            return
        line = self._lines.setdefault(model, _Line())
        line.follow(graph)
        line.load.arrived(time.monotonic())
        try:
            self._look(model, line)
            group = await _admitted(line)
            try:
                yield group.graph
            finally:
                group.in_flight -= 1
                self._look(model, line)
                line.let_in()
        finally:
            line.load.ended(time.monotonic())

    def is_busy(self, model: str) -> bool:
        """Whether a request to a model waits or is computed."""
        line = self._lines.get(model)
        return line is not None and line.load.outstanding > 0

    def status(self, model: str) -> LoadStatus:
        """What is known of a model's load."""
        line = self._lines.get(model)
        if line is None:
            return LoadStatus()
        return LoadStatus(
            groups=line.count,
            arrivals_per_s=line.load.rate_per_s(time.monotonic()),
            capacity_per_s=line.planned.get(line.count, line.planned[1]).capacity_per_s,
        )

    def forget(self, model: str) -> set[str]:
        """Forgets a model's groups; their programs. Who waits in line is answered by them."""
        line = self._lines.pop(model, None)
        if line is None:
            return set()
        if line.work is not None:
            line.work.cancel()
        groups = (group for ready in (*line.ready.values(), line.groups) for group in ready)
        return {sha256 for group in groups for sha256 in group.graph.programs}

    async def close(self) -> None:
        """Stops planning."""
        works = [line.work for line in self._lines.values() if line.work]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ------------------------------------------------------------ which grouping

    def _look(self, model: str, line: _Line) -> None:
        """Takes the best grouping if it is ready, and has it made ready if not; plans them when
        one group for all is busy.
        """
        now = time.monotonic()
        if line.load.outstanding > 1 and now - line.looked_s < LOOK_S:
            return
        line.looked_s = now
        if len(line.planned) > 1:
            line.drop({device.id for device in self._cluster().devices})
        outstanding = 1.0 if self._plans.held(model) else line.load.mean_outstanding(now)
        best = self._best(line, outstanding)
        if best in line.ready and line.ready[best] is not line.groups:
            log.info("groups", model=model, groups=best, outstanding=round(outstanding, 1))
            line.groups = line.ready[best]
        if line.work is not None and not line.work.done():
            return
        if best not in line.ready:
            line.work = asyncio.create_task(self._prepare(model, line, best, line.planned[best]))
        elif now - line.planned_s > KEEP_S and outstanding > CROWD:
            line.work = asyncio.create_task(self._plan(model, line))

    def _best(self, line: _Line, outstanding: float) -> int:
        """The number of groups to go for; the present one unless another is clearly better."""

        def cost(count: int) -> tuple[float, float]:
            grouping = line.planned[count]
            seconds = (grouping.response_s(outstanding), 1.0 / grouping.capacity_per_s)
            return seconds[::-1] if self._objective == "throughput" else seconds

        best = min(line.planned, key=cost)
        if line.count not in line.planned:
            return best
        old, new = cost(line.count), cost(best)
        # Where the first are alike, the second tells them apart.
        index = int(old[0] == new[0])
        return best if new[index] < (1.0 - WORTHWHILE_GAIN) * old[index] else line.count

    async def _plan(self, model: str, line: _Line) -> None:
        """Plans every number of groups that the objective allows."""
        graph, cluster = line.ready[1][0].graph, self._cluster()
        most = 1 if self._objective == "latency" else len(cluster.devices)
        try:
            found = await self._maker.groupings(model, graph.plan, cluster, counts(most))
        except ImbrexError as error:
            log.warning("groups cannot be planned", model=model, error=str(error))
            return
        finally:
            line.planned_s = time.monotonic()
        if line.ready[1][0].graph is not graph:
            return
        # The groups in force go on until their successors are ready.
        line.planned, line.ready = found, {1: line.ready[1]}
        line.ready[1][0].service = found[1].services[0]
        line.let_in()

    async def _prepare(self, model: str, line: _Line, count: int, grouping: Grouping) -> None:
        """Makes a grouping ready."""
        try:
            graphs = [await self._maker.prepared(model, plan) for plan in grouping.plans]
        except ImbrexError as error:
            log.warning("groups cannot be prepared", model=model, error=str(error))
            if line.planned.get(count) is grouping:
                del line.planned[count]
            return
        if line.planned.get(count) is grouping:
            pairs = zip(graphs, grouping.services, strict=True)
            line.ready[count] = [Group(graph, service) for graph, service in pairs]
            self._look(model, line)
            line.let_in()


async def _admitted(line: _Line) -> Group:
    """Waits in line."""
    future: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
    line.waiting.append(future)
    line.let_in()
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.result().in_flight -= 1
        line.let_in()
        raise
