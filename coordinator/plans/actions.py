"""Actions: what the control machines ask the runtime to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.planning.groups import Grouping
from coordinator.plans.choice import Choice
from coordinator.plans.events import Ticket, Work
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId


class Action:
    """What a machine of this package asks for."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Start(Action):
    """The holder of this ticket goes on, by this plan."""

    ticket: Ticket
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Refuse(Action):
    """The holder of this ticket gets this error."""

    ticket: Ticket
    error: ImbrexError


@dataclass(frozen=True, slots=True)
class Make(Action):
    """Background work for a model, which ends in an `Outcome`."""

    work: Work
    model: str


@dataclass(frozen=True, slots=True)
class Propose(Make):
    """Find a plan that avoids the devices in `without`, which could not be prepared. `old` is a
    plan that stays unless the new one is much better; its latency is then predicted for now, too.
    """

    choice: Choice
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
class Stop(Action):
    """Stop this work: its result is no longer wanted."""

    work: Work


@dataclass(frozen=True, slots=True)
class Swap(Action):
    """A plan took over, in force or as a chosen one; to be logged and published."""

    model: str
    choice: Choice
    graph: TaskGraph
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Regroup(Action):
    """This many groups take the requests of a model from now on; to be logged and published."""

    model: str
    groups: int
    outstanding: float
