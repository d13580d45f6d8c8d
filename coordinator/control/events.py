"""What happens to models and requests, and what is to be done about it: events in, actions out.

Whoever waits has a *ticket*, whatever is made in the background is a *work*; both are numbers that
are used once. What comes of a work that nobody wants any more is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from coordinator.control.choice import Choice
from coordinator.planning.groups import Grouping
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId, Plan
from protos.errors import ImbrexError

Ticket = NewType("Ticket", int)
Work = NewType("Work", int)


# ---------------------------------------------------------------- who comes and goes


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request wants a place; `alone`: all of them."""

    ticket: Ticket
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody wants a model's plan."""

    ticket: Ticket
    model: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Queued:
    """A request wants its turn on the groups of a model, whose plan in force is `graph`."""

    ticket: Ticket
    model: str
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Left:
    """Who has this ticket goes: it was `answered`, or refused, or does not wait any longer."""

    ticket: Ticket
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class Changed:
    """A cause to plan again, for a model or (empty) for all of them. `devices` are those that can
    be planned with now.
    """

    cause: str
    devices: frozenset[DeviceId]
    model: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody gave a plan, which is prepared: it is in force until `Released`."""

    model: str
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Released:
    """The plan that is held is let go of."""

    model: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Somebody gave a plan, which is prepared, for requests that choose it."""

    model: str
    choice: Choice
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The model is another one from now on, or none."""

    model: str


# ---------------------------------------------------------------- what came of a work


@dataclass(frozen=True, slots=True)
class Planned:
    """A planner proposes `plan`. `old_s` is what the plan that it would replace is predicted to
    take now; None: that cannot go on, or was not asked for.
    """

    work: Work
    plan: Plan
    old_s: float | None = None


@dataclass(frozen=True, slots=True)
class Divided:
    """Groupings by their number of groups; 1 is the plan in force."""

    work: Work
    groupings: Mapping[int, Grouping]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The programs of these plans are ready on their devices."""

    work: Work
    graphs: tuple[TaskGraph, ...]


@dataclass(frozen=True, slots=True)
class Unprepared:
    """Devices that could not be made ready, and why."""

    work: Work
    errors: Mapping[DeviceId, ImbrexError]


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing came of it; `deserted`: since there is no device."""

    work: Work
    error: ImbrexError
    deserted: bool = False


@dataclass(frozen=True, slots=True)
class Took:
    """Some plan's programs were made ready in this time."""

    seconds: float


Event = (
    Arrived
    | Wanted
    | Queued
    | Left
    | Tick
    | Changed
    | Held
    | Released
    | Kept
    | Forgotten
    | Planned
    | Divided
    | Prepared
    | Unprepared
    | Failed
    | Took
)


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Admit:
    """A request has its place."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Start:
    """Who has this ticket goes on, by this plan."""

    ticket: Ticket
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Refuse:
    """Who has this ticket gets this error."""

    ticket: Ticket
    error: ImbrexError


@dataclass(frozen=True, slots=True)
class Propose:
    """Find a plan, without devices that could not be prepared. `old` is a plan that goes on unless
    the new one is better by far: how long that takes now is asked for, too.
    """

    work: Work
    model: str
    choice: Choice
    causes: tuple[str, ...]
    without: Mapping[DeviceId, ImbrexError]
    old: Plan | None


@dataclass(frozen=True, slots=True)
class Divide:
    """Find a plan for each of several groups of devices, for every number of them."""

    work: Work
    model: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the programs of these plans ready on their devices."""

    work: Work
    model: str
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Nobody wants what this work is for."""

    work: Work


@dataclass(frozen=True, slots=True)
class Swap:
    """A plan took over, in force or as a chosen one: tell people."""

    model: str
    choice: Choice
    graph: TaskGraph
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Regroup:
    """So many groups take the requests of a model from now on: tell people."""

    model: str
    groups: int
    outstanding: float


Action = Admit | Start | Refuse | Propose | Divide | Prepare | Stop | Swap | Regroup
