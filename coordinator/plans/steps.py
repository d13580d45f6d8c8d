"""What plans and groups ask to be done, and what comes of the work that they ask for.

Whoever waits holds a *ticket*; background work has a *work* number. Both are used once, so that the
outcome of work that was stopped can be recognised and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from coordinator.answers import PlanChoice
from coordinator.planning.groups import Grouping
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

Ticket = NewType("Ticket", int)
Work = NewType("Work", int)


@dataclass(frozen=True, slots=True)
class Start:
    """The holder of this ticket goes on, by this plan."""

    ticket: Ticket
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Refuse:
    """The holder of this ticket gets this error."""

    ticket: Ticket
    error: ImbrexError


@dataclass(frozen=True, slots=True)
class Make:
    """Background work for a model, which ends in an `WorkOutcome`."""

    work: Work
    model: str


@dataclass(frozen=True, slots=True)
class Propose(Make):
    """Find a plan that avoids the devices in `without`, which could not be prepared. `old` is a
    plan that stays unless the new one is much better; its latency is then predicted for now, too.
    """

    choice: PlanChoice
    causes: tuple[str, ...]
    without: Mapping[DeviceId, ImbrexError]
    old: Plan | None


@dataclass(frozen=True, slots=True)
class Divide(Make):
    """Find a plan for each group of devices, for every number of groups. Those that are `ready`
    stay unless others are clearly better.
    """

    plan: Plan
    ready: tuple[Grouping, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepare(Make):
    """Prepare the programs of these plans on their devices."""

    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this work: its result is no longer wanted."""

    work: Work


@dataclass(frozen=True, slots=True)
class Swap:
    """A plan took over, in force or as a chosen one; to be logged and published."""

    model: str
    choice: PlanChoice
    graph: TaskGraph
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Regroup:
    """This many groups take the requests of a model from now on; to be logged."""

    model: str
    groups: int
    outstanding: float


PlanStep = Start | Refuse | Propose | Divide | Prepare | Stop | Swap | Regroup


# ---------------------------------------------------------------- what came of a work


@dataclass(frozen=True, slots=True)
class WorkOutcome:
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
