"""What is to be done about what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.control.choice import Choice
from coordinator.control.events import Ticket, Work
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId, Plan
from protos.errors import ImbrexError


class Action:
    """What a machine of this room wants done."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Start(Action):
    """Who has this ticket goes on: it has its place, or a plan to go by."""

    ticket: Ticket
    graph: TaskGraph | None = None


@dataclass(frozen=True, slots=True)
class Refuse(Action):
    """Who has this ticket gets this error."""

    ticket: Ticket
    error: ImbrexError


@dataclass(frozen=True, slots=True)
class Make(Action):
    """Something to do in the background for a model; what comes of it is an `Outcome`."""

    work: Work
    model: str


@dataclass(frozen=True, slots=True)
class Propose(Make):
    """Find a plan, without devices that could not be prepared. `old` is a plan that goes on unless
    the new one is better by far: how long that takes now is asked for, too.
    """

    choice: Choice
    causes: tuple[str, ...]
    without: Mapping[DeviceId, ImbrexError]
    old: Plan | None


@dataclass(frozen=True, slots=True)
class Divide(Make):
    """Find a plan for each of several groups of devices, for every number of them."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Prepare(Make):
    """Make the programs of these plans ready on their devices."""

    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """Nobody wants what this work is for."""

    work: Work


@dataclass(frozen=True, slots=True)
class Swap(Action):
    """A plan took over, in force or as a chosen one: tell people."""

    model: str
    choice: Choice
    graph: TaskGraph
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Regroup(Action):
    """So many groups take the requests of a model from now on: tell people."""

    model: str
    groups: int
    outstanding: float


@dataclass(frozen=True, slots=True)
class Replan(Action):
    """Other devices than before are to be planned with."""

    cause: str


@dataclass(frozen=True, slots=True)
class Empty(Action):
    """Tell when no plan is being made any more (`Replanned`), then when nothing runs on the device
    (`Emptied`).
    """

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Withdraw(Action):
    """What still runs on the device goes on elsewhere."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class LeaveOut(Action):
    """The device is in quarantine for so long; for ever if it is not to be believed at all."""

    device: DeviceId
    cause: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Probe(Action):
    """Probe a device's link when nothing is computed."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Profile(Action):
    """Measure how fast a device computes, while nothing else is computed."""

    device: DeviceId
