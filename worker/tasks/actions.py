"""The types of the task state: tasks, arriving pieces, and the actions to carry out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from models.tensors.boxes import Box
from models.tensors.selection import Selection

HOST = "host"

# The type of a program's outputs is unknown until it has run; nearly always float32.
_YIELD_ITEMSIZE = 4


# What is made for every halo, between two kernels that leave nothing in the caches, is a tuple, or
# is not frozen: these are made, compared and hashed without running Python code.


class TaskKey(NamedTuple):
    """One attempt of one task of one request."""

    request: str
    plan_version: int
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The box of a tensor that a task reads. `sources` maps the peers that send parts of it to
    their boxes; None: any peer may.
    """

    tensor: str
    box: Box
    dtype: np.dtype
    sources: tuple[tuple[str, Box], ...] | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """A box that a task sends, or of it the entries of a selection. `yields` is the box of this
    tensor that the program computes. If it is `dynamic` the boxes say nothing: its shape is known
    only once it is computed, and it is sent whole.
    """

    tensor: str
    box: Box
    yields: Box
    to: str
    address: str = ""
    to_task: int = 0
    to_attempt: int = 0
    selection: Selection | None = None
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Destination:
    """What goes to one destination, and so in one message: each output with where its box is in
    what the program yields (an ellipsis: all of it).
    """

    to: str
    address: str
    outputs: tuple[tuple[OutputSpec, tuple[slice, ...] | EllipsisType], ...]


def destinations_of(outputs: Iterable[OutputSpec]) -> tuple[Destination, ...]:
    """Outputs by destination, in order; without those of which there is nothing to send."""
    by_address: dict[
        tuple[str, str], list[tuple[OutputSpec, tuple[slice, ...] | EllipsisType]]
    ] = {}
    for entry in outputs:
        if not entry.box.is_empty:
            cut = ... if entry.dynamic else entry.box.slices(entry.yields)
            by_address.setdefault((entry.to, entry.address), []).append((entry, cut))
    return tuple(
        Destination(to, address, tuple(cuts)) for (to, address), cuts in by_address.items()
    )


@dataclass(frozen=True, eq=False)
class TaskForm:
    """The part of a task that is the same in every request of its plan. With `any_values`, what
    goes to peers need not be finite.
    """

    program: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    any_values: bool = False

    @cached_property
    def destinations(self) -> tuple[Destination, ...]:
        """Where its outputs go."""
        return destinations_of(self.outputs)

    @cached_property
    def yields(self) -> dict[str, Box]:
        """The boxes that the program computes."""
        return {entry.tensor: entry.yields for entry in self.outputs}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """The shapes of what it computes; None for one that is not known yet."""
        return {e.tensor: None if e.dynamic else e.yields.shape for e in self.outputs}

    @cached_property
    def checked(self) -> frozenset[str]:
        """The outputs that must be finite: they go to peers, and the host does not see them."""
        if self.any_values:
            return frozenset()
        return frozenset(entry.tensor for entry in self.outputs if entry.to != HOST)

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of its inputs."""
        return sum(entry.box.volume * entry.dtype.itemsize for entry in self.inputs)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of its inputs and outputs."""
        outputs = sum(box.volume * _YIELD_ITEMSIZE for box in self.yields.values())
        return self.input_bytes + outputs

    @cached_property
    def fault(self) -> str:
        """What is wrong with the task itself; empty if nothing."""
        names = [entry.tensor for entry in self.inputs]
        if len(set(names)) != len(names):
            return "an input is named twice"
        for entry in self.outputs:
            if self.yields[entry.tensor] != entry.yields:
                return f"output {entry.tensor!r} yields two different boxes"
            if entry.dynamic and entry.to != HOST:
                return f"output {entry.tensor!r} is dynamic and not for the host"
            if len(entry.box) != len(entry.yields) or not entry.yields.contains(entry.box):
                return f"output {entry.tensor!r} is to send {entry.box} of {entry.yields}"
            if entry.selection and not entry.selection.fits(entry.box):
                return f"output {entry.tensor!r} has no entries for {entry.selection}"
        return ""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """A task from the host. Answers go to the `stream` that it came from."""

    key: TaskKey
    form: TaskForm
    stream: int


@dataclass(slots=True, eq=False)
class TensorPiece:
    """A box of a tensor, addressed to a task's input or, towards the host, from its output.
    `sender` is the peer that sent it; empty: the host, or this device itself. `selection`: the host
    reads no other entries. The array is the whole tensor if that is `dynamic`.
    """

    key: TaskKey
    tensor: str
    box: Box
    array: np.ndarray
    sender: str = ""
    selection: Selection | None = None
    dynamic: bool = False


@dataclass(slots=True, eq=False)
class RunProgram:
    """Run the program now; `inputs` are contiguous and stay untouched until it has finished.
    `shapes` are those of its outputs, None where that is not known before. `checked` are the
    outputs that must be finite. `ready` holds the prepared run.
    """

    key: TaskKey
    program: str
    inputs: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...] | None]
    checked: frozenset[str] = frozenset()
    ready: Any = None


@dataclass(frozen=True, slots=True)
class SetUp:
    """Set up the runs of this request's other tasks when there is time: `Tasks.next_to_set_up`."""

    request: str


@dataclass(slots=True, eq=False)
class SendToHost:
    """Pieces for the host, and the end of their task (None for a resend). `more`: this device has
    other open tasks of the same request, so more will be sent.
    """

    stream: int
    pieces: tuple[TensorPiece, ...]
    done: TaskEnd | None
    more: bool


@dataclass(slots=True, eq=False)
class SendToPeer:
    """Pieces for one neighbour. Those lost with a broken stream are sent a second time, since the
    receiver drops duplicates; then a failure to send fails the task `source`.
    """

    device: str
    address: str
    pieces: tuple[TensorPiece, ...]
    source: TaskKey
    is_second: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of its pieces."""
        return sum([piece.array.nbytes for piece in self.pieces])


@dataclass(slots=True, eq=False)
class Keep:
    """A piece for a later task of this device: `Tasks.add_piece`."""

    piece: TensorPiece


@dataclass(slots=True)
class TaskEnd:
    """A task has finished; times are of this worker's clock, `peer_bytes` went to other devices.
    `described_last`: its inputs had come before it was assigned.
    """

    key: TaskKey
    ready_s: float
    start_s: float
    stop_s: float
    peer_bytes: int = 0
    described_last: bool = False


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """A task has failed; `code` as in `TaskFailed`."""

    stream: int
    key: TaskKey
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Cancels a run that was queued."""

    key: TaskKey


OutwardAction = SetUp | SendToHost | SendToPeer | ReportFailure | Discard
TaskAction = OutwardAction | RunProgram | Keep
