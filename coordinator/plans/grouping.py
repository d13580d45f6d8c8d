"""Whether a model's requests get all devices, or groups of them, depending on its load.

A model's *line* is its waiting requests and the groups that take them. With few requests there is
one group, which executes the plan in force. When so many arrive that another grouping is predicted
to answer them sooner, its plans are prepared in the background, and then take over; requests in
flight finish on the plan that they began with. Returning to one group needs no preparation.

Pure state: events in, actions out. A line does one work at a time: planning its groupings, or
preparing one. After a model is forgotten, its groups still answer the requests in its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from math import inf

from coordinator.answers import LoadStatus
from coordinator.planning.groups import Grouping, ServiceTimes
from coordinator.plans import actions, events
from coordinator.plans.actions import Action
from coordinator.plans.book import PlanBook
from coordinator.plans.events import Event, Ticket, Work
from coordinator.plans.group_choice import DeviceGroup, starts
from coordinator.plans.load import Load
from coordinator.plans.machine import ControlMachine
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


@dataclass(slots=True, eq=False)
class _Line:
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
    worked_on: TaskGraph | Grouping | None = None

    @property
    def count(self) -> int:
        """How many groups take requests."""
        return len(self.groups)

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
        if self.count > 1 and not present >= used:
            self.groups = self.ready[1]

    def let_in(self) -> Iterator[Action]:
        """Starts the requests for which there is room."""
        tickets = list(self.waiting)
        for position, group in starts(self.groups, len(tickets)):
            ticket = tickets[position]
            del self.waiting[ticket]
            group.in_flight += 1
            self.started[ticket] = group
            yield actions.Start(ticket, group.graph)

    def leave(self, ticket: Ticket) -> bool:
        """A request was answered or given up. Returns whether it had been started."""
        self.waiting.pop(ticket, None)
        group = self.started.pop(ticket, None)
        if group is not None:
            group.in_flight -= 1
        return group is not None


class Regrouping(ControlMachine):
    """Assigns every request its turn and the plan that computes it."""

    def __init__(self, plans: PlanBook, works: Iterator[int], objective: Objective) -> None:
        self._plans = plans
        self._works = works
        self._objective = objective
        self._lines: dict[str, _Line] = {}
        self._line_of: dict[Ticket, _Line] = {}
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
            groups=line.count,
            arrivals_per_s=line.load.rate_per_s(now),
            capacity_per_s=line.planned.get(line.count, line.planned[1]).capacity_per_s,
        )

    def programs(self, model: str = "") -> set[str]:
        """Hashes of the programs that the groups of one model, or of all, need."""
        lines = [each for each in self._lines.values() if model in ("", each.model)]
        groups = [group for line in lines for each in line.all_groups for group in each]
        return {sha256 for group in groups for sha256 in group.graph.programs}

    # ------------------------------------------------------------ what happens

    def queue(self, ticket: Ticket, model: str, graph: TaskGraph, now: float) -> list[Action]:
        """A request wants its turn on the groups of a model, whose plan in force is `graph`."""
        return self.step(events.Queued(ticket, model, graph), now)

    def leave(self, ticket: Ticket, now: float) -> list[Action]:
        """The holder of this ticket leaves."""
        return self.step(events.Left(ticket), now)

    def devices_changed(self, devices: frozenset[DeviceId], now: float) -> list[Action]:
        """Devices came or went."""
        return self.step(events.Changed("", devices), now)

    def forget(self, model: str) -> list[Action]:
        """The model was replaced or unloaded."""
        return self.step(events.Forgotten(model), 0.0)

    def ended(self, outcome: events.WorkOutcome, now: float) -> list[Action]:
        """A work ended."""
        return self.step(outcome, now)

    # ------------------------------------------------------------ events

    def _react(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case events.Queued(ticket, model, graph):
                line = self._lines.setdefault(model, _Line(model))
                line.follow(graph)
                line.load.arrived(now)
                line.waiting[ticket] = None
                self._line_of[ticket] = line
                yield from self._look(line, now)
                yield from line.let_in()
            case events.Left(ticket) if ticket in self._line_of:
                line = self._line_of.pop(ticket)
                if line.leave(ticket):
                    yield from self._look(line, now)
                yield from line.let_in()
                line.load.ended(now)
            case events.Changed(_, devices):
                self._devices = devices
                for line in self._lines.values():
                    line.drop(devices)
                    yield from line.let_in()
            case events.Forgotten(model) if model in self._lines:
                line = self._lines.pop(model)
                if line.work is not None:
                    yield actions.Stop(line.work)
            case events.WorkOutcome(work):
                for line in [each for each in self._lines.values() if each.work == work]:
                    yield from self._made(line, event, now)

    def _made(self, line: _Line, event: events.WorkOutcome, now: float) -> Iterator[Action]:
        worked_on, line.work, line.worked_on = line.worked_on, None, None
        if isinstance(worked_on, Grouping):
            count = len(worked_on.plans)
            if line.planned.get(count) is not worked_on:
                return
            if not isinstance(event, events.Prepared):
                del line.planned[count]
                return
            pairs = zip(event.graphs, worked_on.services, strict=True)
            line.ready[count] = [DeviceGroup(graph, service) for graph, service in pairs]
            yield from self._look(line, now)
        else:
            if line.ready[1][0].graph is not worked_on:
                return
            line.planned_s = now
            if not isinstance(event, events.Divided):
                return
            line.divide(event.groupings)
            line.drop(self._devices)
        yield from line.let_in()

    # ------------------------------------------------------------ which grouping

    def _look(self, line: _Line, now: float) -> Iterator[Action]:
        """Switches to the best grouping if it is ready, and has it prepared otherwise; has
        groupings planned when all devices together are busy.
        """
        if line.load.outstanding > 1 and now - line.looked_s < LOOK_S:
            return
        line.looked_s = now
        outstanding = 1.0 if self._plans.held(line.model) else line.load.mean_outstanding(now)
        best = self._best(line, outstanding)
        if best in line.ready and line.ready[best] is not line.groups:
            line.groups = line.ready[best]
            yield actions.Regroup(line.model, best, outstanding)
        if line.work is not None or self._lines.get(line.model) is not line:
            return
        if best not in line.ready:
            line.work, line.worked_on = Work(next(self._works)), line.planned[best]
            yield actions.Prepare(line.work, line.model, line.planned[best].plans)
        elif outstanding > CROWD and self._are_old(line, now):
            line.work, line.worked_on = Work(next(self._works)), line.ready[1][0].graph
            ready = tuple(line.planned[each] for each in line.ready if each > 1)
            yield actions.Divide(line.work, line.model, line.worked_on.plan, ready)

    def _are_old(self, line: _Line, now: float) -> bool:
        """Whether groupings are missing, or were planned beside another plan in force or for other
        speeds of the devices.
        """
        changed = self._plans.switching.looked_s(line.model) > line.planned_s
        missing = changed or len(line.planned) == 1
        return line.planned_s == -inf or (missing and now - line.planned_s > KEEP_S)

    def _best(self, line: _Line, outstanding: float) -> int:
        """The number of groups to aim for: the present one unless another is clearly better."""

        def cost(count: int) -> tuple[float, float]:
            grouping = line.planned[count]
            seconds = (grouping.response_s(outstanding), 1.0 / grouping.capacity_per_s)
            return seconds[::-1] if self._objective == "throughput" else seconds

        best = min(line.planned, key=cost)
        if line.count not in line.planned:
            return best
        old, new = cost(line.count), cost(best)
        # If the first criterion is equal, the second one decides.
        index = int(old[0] == new[0])
        return best if new[index] < (1.0 - WORTHWHILE_GAIN) * old[index] else line.count
