"""What happens to models and requests. Whoever waits has a *ticket*, whatever is made in the
background is a *work*; both are numbers that are used once. What comes of a work that nobody wants
any more is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from coordinator.control.choice import Choice
from coordinator.control.switching import Observed
from coordinator.planning.groups import Grouping
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId, Plan
from protos.errors import ImbrexError

Ticket = NewType("Ticket", int)
Work = NewType("Work", int)


class Event:
    """What a machine of this room takes."""

    __slots__ = ()


# ---------------------------------------------------------------- who comes and goes


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """Somebody waits to be told."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Arrived(Asked):
    """A request wants a place; who wants to be `alone`, all of them, however long that takes."""

    alone: bool = False


@dataclass(frozen=True, slots=True)
class Wanted(Asked):
    """Somebody wants a model's plan."""

    model: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Queued(Asked):
    """A request wants its turn on the groups of a model, whose plan in force is `graph`."""

    model: str
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Left(Event):
    """Who has this ticket goes: it was `answered`, or refused, or does not wait any longer."""

    ticket: Ticket
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed."""


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class Changed(Event):
    """A cause to plan again, for a model or (empty) for all of them. `devices` are those that can
    be planned with now.
    """

    cause: str
    devices: frozenset[DeviceId]
    model: str = ""


@dataclass(frozen=True, slots=True)
class Seen(Event):
    """How fast devices and links were when a request to a model was answered."""

    model: str
    observed: Mapping[str, Observed]


@dataclass(frozen=True, slots=True)
class Given(Event):
    """Somebody decided something about a model."""

    model: str


@dataclass(frozen=True, slots=True)
class Held(Given):
    """Somebody gave a plan, which is prepared: it is in force until `Released`."""

    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Released(Given):
    """The plan that is held is let go of."""


@dataclass(frozen=True, slots=True)
class Kept(Given):
    """Somebody gave a plan, which is prepared, for requests that choose it."""

    choice: Choice
    graph: TaskGraph


@dataclass(frozen=True, slots=True)
class Forgotten(Given):
    """The model is another one from now on, or none."""


# ---------------------------------------------------------------- what came of a work


@dataclass(frozen=True, slots=True)
class Outcome(Event):
    """What came of a work."""

    work: Work


@dataclass(frozen=True, slots=True)
class Planned(Outcome):
    """A planner proposes `plan`. `old_s` is what the plan that it would replace is predicted to
    take now; None: that cannot go on, or was not asked for.
    """

    plan: Plan
    old_s: float | None = None


@dataclass(frozen=True, slots=True)
class Divided(Outcome):
    """Groupings by their number of groups; 1 is the plan in force."""

    groupings: Mapping[int, Grouping]


@dataclass(frozen=True, slots=True)
class Prepared(Outcome):
    """The programs of these plans are ready on their devices, after so many `seconds` for each."""

    graphs: tuple[TaskGraph, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Unprepared(Outcome):
    """Devices that could not be made ready, and why."""

    errors: Mapping[DeviceId, ImbrexError]


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """Nothing came of it; `deserted`: since there is no device."""

    error: ImbrexError
    deserted: bool = False


# ---------------------------------------------------------------- devices


@dataclass(frozen=True, slots=True)
class OfDevice(Event):
    """Something about a device."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Drained(OfDevice):
    """Somebody takes it out, which is on disk; `name` is what people call it."""

    name: str


@dataclass(frozen=True, slots=True)
class Replanned(OfDevice):
    """No plan is being made that could use it: what it is given now is the last."""


@dataclass(frozen=True, slots=True)
class Emptied(OfDevice):
    """Nothing runs there any more."""


@dataclass(frozen=True, slots=True)
class Resumed(OfDevice):
    """Somebody has it used again, whatever it was set aside for."""


@dataclass(frozen=True, slots=True)
class Wrong(OfDevice):
    """It gave a wrong result; `proven`: wrong beyond doubt."""

    cause: str
    proven: bool = False


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class LinksWanted(Event):
    """The links of these devices are to be measured; `cause` is the news then."""

    cause: str
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Probed(OfDevice):
    """How fast its link is; 0: it was lost. `disturbed`: something else was sent meanwhile."""

    bytes_per_s: float
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class ProfileWanted(OfDevice):
    """It is to be profiled: nothing is known of its kind, or somebody wants it measured again."""

    kind: str


@dataclass(frozen=True, slots=True)
class Profiled(OfDevice):
    """Whether a profile was `found` for its kind."""

    found: bool
