"""Events: what happens to models, requests and devices.

Whoever waits holds a *ticket*; background work has a *work* number. Both are used once, so that the
outcome of work that was stopped can be recognised and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from coordinator.costs.observed import Observed
from coordinator.planning.groups import Grouping
from coordinator.plans.choice import Choice
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

Ticket = NewType("Ticket", int)
Work = NewType("Work", int)


class Event:
    """What a machine of this package takes."""

    __slots__ = ()


# ---------------------------------------------------------------- who comes and goes


@dataclass(frozen=True, slots=True)
class TicketEvent(Event):
    """Somebody waits for an answer to this ticket."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class PlanRequested(TicketEvent):
    """Somebody wants a plan of a model."""

    model: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Queued(TicketEvent):
    """A request wants its turn on the groups of a model, whose plan in force is `graph`."""

    model: str
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Left(Event):
    """The holder of this ticket leaves: it was answered, refused, or stopped waiting."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed."""


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class Changed(Event):
    """A reason to plan again, for one model or (empty) for all. `devices` are those that can be
    used now.
    """

    cause: str
    devices: frozenset[DeviceId]
    model: str = ""


@dataclass(frozen=True, slots=True)
class AnswerSeen(Event):
    """How fast devices and links were when a request to a model was answered."""

    model: str
    observed: Mapping[str, Observed]


@dataclass(frozen=True, slots=True)
class PlanGiven(Event):
    """A person's decision about a model."""

    model: str


@dataclass(frozen=True, slots=True)
class Held(PlanGiven):
    """Somebody sent a plan, and it is prepared: it stays in force until `PlanReleased`."""

    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class PlanReleased(PlanGiven):
    """The plan that was held may be replaced again."""


@dataclass(frozen=True, slots=True)
class PlanKept(PlanGiven):
    """Somebody sent a plan for requests to choose, and it is prepared."""

    choice: Choice
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Forgotten(PlanGiven):
    """The model was replaced or unloaded."""


# ---------------------------------------------------------------- what came of a work


@dataclass(frozen=True, slots=True)
class WorkOutcome(Event):
    """How a work ended."""

    work: Work


@dataclass(frozen=True, slots=True)
class Planned(WorkOutcome):
    """A planner proposes `plan`. `old_s` is the latency now predicted for the plan that it would
    replace; None if that one cannot go on, or no prediction was requested.
    """

    plan: Plan
    old_s: float | None = None


@dataclass(frozen=True, slots=True)
class Divided(WorkOutcome):
    """Groupings by their number of groups; that of 1 is the plan in force."""

    groupings: Mapping[int, Grouping]


@dataclass(frozen=True, slots=True)
class Prepared(WorkOutcome):
    """The programs of these plans are ready on their devices, after so many `seconds` for each."""

    graphs: tuple[TaskGraph, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Unprepared(WorkOutcome):
    """Devices that could not be prepared, and why."""

    errors: Mapping[DeviceId, ImbrexError]


@dataclass(frozen=True, slots=True)
class WorkFailed(WorkOutcome):
    """The work failed; `deserted`: because there is no device."""

    error: ImbrexError
    deserted: bool = False
