"""Whether a model's requests get all devices, or groups of them, depending on its load.

A model's *line* is its waiting requests and the groups that take them. With few requests there is
one group, which executes the plan in force. When so many arrive that another grouping is predicted
to answer them sooner, its plans are prepared in the background, and then take over; requests in
flight finish on the plan that they began with. Returning to one group needs no preparation.

Pure state, whose methods are what happens. They return what to do. A line does one work at a time:
planning its groupings, or preparing one. After a model is forgotten, its groups still answer the
requests in its line.

Every waiting request is given, in order of arrival, to the group that would answer it first,
including the work that the group already has. It starts if that group has room, and waits
otherwise: a slow device is used only if the fast ones are so busy that it answers sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil, exp, inf

from coordinator.answers import LoadStatus
from coordinator.planning.groups import Grouping, ServiceTimes
from coordinator.plans.book import PlanBook
from coordinator.plans.steps import (
    Divide,
    Divided,
    PlanStep,
    Prepare,
    Prepared,
    Regroup,
    Start,
    Stop,
    Ticket,
    Work,
    WorkOutcome,
)
from coordinator.settings import Objective
from coordinator.tasks.task_graph import TaskGraph
from protos.wire.facts import DeviceId

# The least gain for which another grouping is taken; a switch costs only its preparation.
WORTHWHILE_GAIN = 0.03
# Groupings are planned again when devices have changed their speed, at most once in this time.
KEEP_S = 60.0
# With fewer requests at a time, groups have no advantage over all devices together.
CROWD = 1.5
# How often a line is checked for a better grouping.
LOOK_S = 0.25
# Time constant of a load: arrivals of this long ago weigh 1/e.
ARRIVALS_S = 5.0
# Shorter, since groups are to change while the waiting requests are still there.
OUTSTANDING_S = 1.0
# Requests that came together come together again: two cameras' detectors pause and go on at the
# same time. Assumed.
REMEMBERED_S = 10.0
# A shorter burst says little about the rate.
_LEAST_AGE_S = 1.0


@dataclass(slots=True)
class Load:
    """One model's requests, in exponentially weighted averages; `outstanding` of them wait or are
    being answered.
    """

    outstanding: int = 0
    _mean: float = 0.0
    _weight: float = 0.0
    _first_s: float | None = None
    _arrived_s: float = 0.0
    _changed_s: float = 0.0

    def arrived(self, now: float) -> None:
        """A request came."""
        self._weight = self._faded(now) + 1.0
        self._arrived_s = now
        self._first_s = now if self._first_s is None else self._first_s
        if self.outstanding:
            self._mean = self.mean_outstanding(now)
        else:  # after a pause, as many at a time as before are expected, the longer ago the fewer
            before = max(0.0, self._mean - 1.0)
            self._mean = 1.0 + before * exp(-(now - self._changed_s) / REMEMBERED_S)
        self._changed_s = now
        self.outstanding += 1

    def ended(self, now: float) -> None:
        """A request was answered, or given up."""
        self._mean = self.mean_outstanding(now)
        self._changed_s = now
        self.outstanding -= 1

    def rate_per_s(self, now: float) -> float:
        """Recent arrivals per second."""
        if self._first_s is None:
            return 0.0
        age = max(now - self._first_s, _LEAST_AGE_S)
        return self._faded(now) / (ARRIVALS_S * (1.0 - exp(-age / ARRIVALS_S)))

    def mean_outstanding(self, now: float) -> float:
        """Requests that were outstanding at a time, recently."""
        old = exp(-(now - self._changed_s) / OUTSTANDING_S)
        return old * self._mean + (1.0 - old) * self.outstanding

    def _faded(self, now: float) -> float:
        return self._weight * exp(-(now - self._arrived_s) / ARRIVALS_S)


@dataclass(slots=True, eq=False)
class DeviceGroup:
    """Devices that answer whole images by one plan, and the images that they have in flight."""

    graph: TaskGraph
    service: ServiceTimes
    in_flight: int = 0


def starts(groups: Sequence[DeviceGroup], waiting: int) -> list[tuple[int, DeviceGroup]]:
    """Positions in the queue that start now, each with its group."""
    given = [group.in_flight for group in groups]
    # Enough images at a time to keep a group's busiest device busy, and one in transit.
    most = [ceil(group.service.latency_s / group.service.period_s) + 1 for group in groups]
    found: list[tuple[int, DeviceGroup]] = []
    for position in range(waiting):
        ends_s = [
            group.service.latency_s + number * group.service.period_s
            for group, number in zip(groups, given, strict=True)
        ]
        soonest = ends_s.index(min(ends_s))
        if given[soonest] < most[soonest]:
            found.append((position, groups[soonest]))
        given[soonest] += 1
    return found


@dataclass(slots=True, eq=False)
class ModelLine:
    """One model's requests, and its groupings by their number of groups: `planned` at `planned_s`,
    and `ready` on the devices. Number 1 is the plan in force, which is always ready. `groups` take
    requests now; they may belong to an earlier plan.
    """

    model: str
    planned: dict[int, Grouping] = field(default_factory=dict)
    planned_s: float = -inf
    ready: dict[int, list[DeviceGroup]] = field(default_factory=dict)
    groups: list[DeviceGroup] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    waiting: dict[Ticket, None] = field(default_factory=dict)
    started: dict[Ticket, DeviceGroup] = field(default_factory=dict)
    looked_s: float = -inf
    work: Work | None = None
    # The plan that is being divided into groups, or the grouping that is being prepared.
    target: TaskGraph | Grouping | None = None

    @property
    def all_groups(self) -> list[list[DeviceGroup]]:
        """The groups that are ready, and those that take requests."""
        return [*self.ready.values(), self.groups]

    def follow(self, graph: TaskGraph) -> None:
        """The plan in force is `graph`. Its throughput is not known yet, so requests are assumed to
        be answered one after the other.
        """
        all_devices = self.ready.get(1)
        if all_devices and all_devices[0].graph is graph:
            return
        latency_s = graph.plan.predicted_latency_s
        service = ServiceTimes(latency_s, latency_s, 0.0)
        self.planned[1], self.planned_s = Grouping((graph.plan,), (service,)), -inf
        if all_devices:  # the same group with a new plan; its requests in flight are kept
            all_devices[0].graph, all_devices[0].service = graph, service
        else:
            self.groups = self.ready[1] = [DeviceGroup(graph, service)]

    def divide(self, groupings: Mapping[int, Grouping]) -> None:
        """Takes over new groupings. What is ready stays ready if its plans are the same, with its
        new times; the groups in force go on until their successors are ready.
        """
        kept = {1: self.ready[1]}
        for count, grouping in groupings.items():
            if count in self.ready and (count == 1 or self.planned[count].plans == grouping.plans):
                kept[count] = self.ready[count]
                for group, service in zip(kept[count], grouping.services, strict=True):
                    group.service = service
        self.planned, self.ready = dict(groupings), kept

    def drop(self, present: Set[DeviceId]) -> None:
        """Removes groupings that need devices other than these."""
        for count, grouping in list(self.planned.items()):
            if count > 1 and not present >= grouping.devices:
                del self.planned[count]
                self.ready.pop(count, None)
        used = {device for group in self.groups for device in group.graph.plan.devices}
        if len(self.groups) > 1 and not present >= used:
            self.groups = self.ready[1]

    def unite(self) -> bool:
        """Gives up all groupings and what is made of them, for the plan in force. Returns whether
        requests were divided.
        """
        divided = self.groups is not self.ready[1]
        self.work = self.target = None
        self.planned, self.ready = {1: self.planned[1]}, {1: self.ready[1]}
        self.groups = self.ready[1]
        return divided

    def let_in(self) -> Iterator[PlanStep]:
        """Starts the requests for which there is room."""
        tickets = list(self.waiting)
        for position, group in starts(self.groups, len(tickets)):
            ticket = tickets[position]
            del self.waiting[ticket]
            group.in_flight += 1
            self.started[ticket] = group
            yield Start(ticket, group.graph)

    def leave(self, ticket: Ticket) -> bool:
        """A request was answered or given up. Returns whether it had been started."""
        self.waiting.pop(ticket, None)
        group = self.started.pop(ticket, None)
        if group is not None:
            group.in_flight -= 1
        return group is not None


class Regrouping:
    """Assigns every request its turn and the plan that computes it."""

    def __init__(self, book: PlanBook, works: Iterator[int], objective: Objective) -> None:
        self._book = book
        self._works = works
        self._objective = objective
        self._lines: dict[str, ModelLine] = {}
        self._line_of: dict[Ticket, ModelLine] = {}
        self._devices: frozenset[DeviceId] = frozenset()

    def is_busy(self, model: str) -> bool:
        """Whether a request to a model waits or is being computed."""
        line = self._lines.get(model)
        return line is not None and line.load.outstanding > 0

    def status(self, model: str, now: float) -> LoadStatus:
        """What is known of a model's load."""
        line = self._lines.get(model)
        if line is None:
            return LoadStatus()
        return LoadStatus(
            groups=len(line.groups),
            arrivals_per_s=line.load.rate_per_s(now),
            capacity_per_s=line.planned.get(len(line.groups), line.planned[1]).capacity_per_s,
        )

    def programs(self, model: str = "") -> set[str]:
        """Hashes of the programs that the groups of one model, or of all, need."""
        lines = [line for line in self._lines.values() if model in ("", line.model)]
        groups = [group for line in lines for groups in line.all_groups for group in groups]
        return {sha256 for group in groups for sha256 in group.graph.programs}

    # ------------------------------------------------------------ what happens

    def queue(self, ticket: Ticket, model: str, graph: TaskGraph, now: float) -> list[PlanStep]:
        """A request wants its turn on the groups of a model, whose plan in force is `graph`."""
        line = self._lines.setdefault(model, ModelLine(model))
        line.follow(graph)
        line.load.arrived(now)
        line.waiting[ticket] = None
        self._line_of[ticket] = line
        return [*self._look(line, now), *line.let_in()]

    def leave(self, ticket: Ticket, now: float) -> list[PlanStep]:
        """The holder of this ticket was answered, or does not wait any longer."""
        line = self._line_of.pop(ticket, None)
        if line is None:
            return []
        steps = list(self._look(line, now)) if line.leave(ticket) else []
        steps += line.let_in()
        line.load.ended(now)
        return steps

    def devices_changed(self, devices: frozenset[DeviceId]) -> list[PlanStep]:
        """Devices came or went; `devices` can be used now."""
        self._devices = devices
        steps: list[PlanStep] = []
        for line in self._lines.values():
            line.drop(devices)
            steps += line.let_in()
        return steps

    def hold(self, model: str, graph: TaskGraph) -> list[PlanStep]:
        """The plan in force is held: it computes all requests, and nothing is divided."""
        line = self._lines.get(model)
        if line is None:
            return []
        steps: list[PlanStep] = [Stop(line.work)] if line.work is not None else []
        line.follow(graph)
        if line.unite():
            steps.append(Regroup(model, 1, 1.0))
        return [*steps, *line.let_in()]

    def forget(self, model: str) -> list[PlanStep]:
        """The model was replaced or unloaded."""
        line = self._lines.pop(model, None)
        return [Stop(line.work)] if line is not None and line.work is not None else []

    def ended(self, outcome: WorkOutcome, now: float) -> list[PlanStep]:
        """A work ended, for a line or for an entry of the book."""
        lines = [line for line in self._lines.values() if line.work == outcome.work]
        return [step for line in lines for step in self._made(line, outcome, now)]

    def _made(self, line: ModelLine, outcome: WorkOutcome, now: float) -> Iterator[PlanStep]:
        target, line.work, line.target = line.target, None, None
        if isinstance(target, Grouping):
            count = len(target.plans)
            if line.planned.get(count) is not target:
                return
            if not isinstance(outcome, Prepared):
                del line.planned[count]
                return
            pairs = zip(outcome.graphs, target.services, strict=True)
            line.ready[count] = [DeviceGroup(graph, service) for graph, service in pairs]
            yield from self._look(line, now)
        else:
            if line.ready[1][0].graph is not target:
                return
            line.planned_s = now
            if not isinstance(outcome, Divided):
                return
            line.divide(outcome.groupings)
            line.drop(self._devices)
        yield from line.let_in()

    # ------------------------------------------------------------ which grouping

    def _look(self, line: ModelLine, now: float) -> Iterator[PlanStep]:
        """Switches to the best grouping if it is ready, and has it prepared otherwise; has
        groupings planned when all devices together are busy.
        """
        if line.load.outstanding > 1 and now - line.looked_s < LOOK_S:
            return
        line.looked_s = now
        outstanding = 1.0 if self._book.held(line.model) else line.load.mean_outstanding(now)
        best = self._best(line, outstanding) if len(line.planned) > 1 else 1
        if best in line.ready and line.ready[best] is not line.groups:
            line.groups = line.ready[best]
            yield Regroup(line.model, best, outstanding)
        if line.work is not None or self._lines.get(line.model) is not line:
            return
        if best not in line.ready:
            line.work, line.target = Work(next(self._works)), line.planned[best]
            yield Prepare(line.work, line.model, line.planned[best].plans)
        elif outstanding > CROWD and self._are_old(line, now):
            line.work, line.target = Work(next(self._works)), line.ready[1][0].graph
            ready = tuple(line.planned[count] for count in line.ready if count > 1)
            yield Divide(line.work, line.model, line.target.plan, ready)

    def _are_old(self, line: ModelLine, now: float) -> bool:
        """Whether groupings are missing, or were planned beside another plan in force or for other
        speeds of the devices.
        """
        changed = self._book.switching.looked_s(line.model) > line.planned_s
        missing = changed or len(line.planned) == 1
        return line.planned_s == -inf or (missing and now - line.planned_s > KEEP_S)

    def _best(self, line: ModelLine, outstanding: float) -> int:
        """The number of groups to aim for: the present one unless another is clearly better."""

        def cost(count: int) -> tuple[float, float]:
            grouping = line.planned[count]
            seconds = (grouping.response_s(outstanding), 1.0 / grouping.capacity_per_s)
            return seconds[::-1] if self._objective == "throughput" else seconds

        best, count = min(line.planned, key=cost), len(line.groups)
        if count not in line.planned:
            return best
        old, new = cost(count), cost(best)
        # If the first criterion is equal, the second one decides.
        index = int(old[0] == new[0])
        return best if new[index] < (1.0 - WORTHWHILE_GAIN) * old[index] else count
