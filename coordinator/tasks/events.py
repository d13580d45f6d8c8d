"""The scheduler's events (what happened) and actions (what is to be done)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NewType

from coordinator.tasks.task_graph import TaskGraph
from models.tensors.boxes import Box
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

RequestId = NewType("RequestId", str)


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request was admitted; its input tensors are in the host's memory. `finite`: they contain
    neither NaN nor infinity.
    """

    request: RequestId
    graph: TaskGraph
    finite: bool = True


@dataclass(frozen=True, slots=True)
class Delivered:
    """An attempt's program is ready on its device, and the data queued so far has been sent."""

    request: RequestId
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Received:
    """A box of a task's output arrived at the host. It is merged only after a `Merge`. `finite`: it
    contains neither NaN nor infinity.
    """

    request: RequestId
    task: int
    attempt: int
    tensor: str
    box: Box
    finite: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """A device has computed a task and passed on its outputs."""

    request: RequestId
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ResultRefused:
    """A device sent something for a task that cannot be its result; `cause` says why."""

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


Departure = Literal["gone", "crashed", "refused"]


@dataclass(frozen=True, slots=True)
class Lost:
    """A device is gone, with all of its attempts. While it is connected it keeps what it has of
    requests until these are released. `departure`: it went silent or was taken away, its process
    ended, or it refused what was sent to it for `request`.
    """

    device: DeviceId
    is_connected: bool = False
    departure: Departure = "gone"
    request: RequestId | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client no longer waits for the request."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: overdue attempts are acted on."""


Event = (
    Submitted
    | Delivered
    | Received
    | Finished
    | ResultRefused
    | Failed
    | Joined
    | Lost
    | Cancelled
    | Tick
)


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Assign:
    """Give the device the task: program, input boxes, and where the outputs go."""

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
    """Have the device send these outputs of a task, which it has computed and keeps, to the
    host.
    """

    request: RequestId
    task: int
    attempt: int
    device: DeviceId
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Copy the received box into the request's tensor. A partial sum is first set `aside` until all
    of it is there, since a task that is tried again must not be added twice.
    """

    request: RequestId
    task: int
    tensor: str
    box: Box
    aside: bool


@dataclass(frozen=True, slots=True)
class Add:
    """Add a task's complete partial sum to the request's tensor."""

    request: RequestId
    task: int
    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell the device that an attempt is no longer needed."""

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
    """The devices may drop all data of the request."""

    request: RequestId
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Accuse:
    """Record a fault of a device: what it sent has the wrong form, or another device's result
    disproved it.
    """

    device: DeviceId
    cause: str


Action = Assign | Send | Resend | Cancel | Merge | Add | Complete | Abort | Release | Accuse
