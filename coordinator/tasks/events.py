"""What happens to the scheduler, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId
from models.boxes import Box
from protos.errors import ImbrexError

RequestId = NewType("RequestId", str)


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request was admitted; its input tensors lie in the host's memory. `finite`: they hold
    neither NaN nor infinity.
    """

    request: RequestId
    graph: TaskGraph
    finite: bool = True


@dataclass(frozen=True, slots=True)
class Delivered:
    """An attempt's program is ready on its device, and what was to be sent so far has left."""

    request: RequestId
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Received:
    """A box of a task's output arrived at the host. Nothing is merged before `Merge` says so.
    `finite`: it holds neither NaN nor infinity.
    """

    request: RequestId
    task: int
    attempt: int
    tensor: str
    box: Box
    finite: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """A device computed a task and passed on its outputs."""

    request: RequestId
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Refused:
    """What a device sent for a task can't be its result; `cause` says why."""

    request: RequestId
    task: int
    attempt: int
    cause: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A device could not run a task."""

    request: RequestId
    task: int
    attempt: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A device can be used."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Lost:
    """A device is gone, with everything it was doing."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nobody waits for the request any more."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: whoever is overdue is helped."""


Event = (
    Submitted
    | Delivered
    | Received
    | Finished
    | Refused
    | Failed
    | Joined
    | Lost
    | Cancelled
    | Tick
)


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Assign:
    """Tell the device about the task: program, input boxes, where the outputs go."""

    request: RequestId
    task: int
    attempt: int
    device: DeviceId


@dataclass(frozen=True, slots=True)
class Send:
    """Send a box of a tensor from the host's memory to a task's input."""

    request: RequestId
    task: int
    attempt: int
    device: DeviceId
    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class Resend:
    """Have the device send the host these outputs of a task that it has computed, and keeps."""

    request: RequestId
    task: int
    attempt: int
    device: DeviceId
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Copy the box just received into the request's tensor; a partial sum is set `aside` until
    it is whole, since a task that is tried again must not be added twice.
    """

    request: RequestId
    task: int
    tensor: str
    box: Box
    aside: bool


@dataclass(frozen=True, slots=True)
class Add:
    """Add a task's partial sum, now whole, to the request's tensor."""

    request: RequestId
    task: int
    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell the device that an attempt of a task is not wanted any more."""

    request: RequestId
    task: int
    attempt: int
    device: DeviceId


@dataclass(frozen=True, slots=True)
class Complete:
    """Every output of the request is merged."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Abort:
    """The request cannot be answered."""

    request: RequestId
    error: ImbrexError


@dataclass(frozen=True, slots=True)
class Release:
    """The devices may forget everything of the request."""

    request: RequestId
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Accuse:
    """Note against a device that what it sent can't be right: its form is wrong, or another
    device's result has disproved it.
    """

    device: DeviceId
    cause: str


Action = Assign | Send | Resend | Cancel | Merge | Add | Complete | Abort | Release | Accuse
