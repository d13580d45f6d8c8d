"""The tasks of this worker as a pure state machine: events in, a list of actions out.

    piece -> held early -+
    task --------------> waiting -> running -> done -> (released)
    piece --------------^             |
                                      +-> failed, cancelled -> (released)

A task is ready when its input boxes are complete, filled by the host and by the peers that the host
named for each box. Pieces that arrive before their task (peers may be faster than the host) are
held for a while, up to a cap. Outputs are kept until their request is released, so that recovery
can ask for them again; so are peers' pieces, so that the host can check them. Anything that does
not fit is dropped and counted, never an error: late and duplicate frames are normal when tasks
move.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

import numpy as np

from models.tensors.arrays import aligned_empty
from models.tensors.boxes import Box, minus
from protos.failures import BadInput, NoOutput, OutOfMemory
from worker.tasks.actions import (
    HOST,
    Destination,
    Discard,
    InputSpec,
    Keep,
    OutputSpec,
    ReportFailure,
    RunProgram,
    SendToHost,
    SendToPeer,
    SetUp,
    TaskAction,
    TaskEnd,
    TaskKey,
    TaskOrder,
    TensorPiece,
    destinations_of,
)
from worker.tasks.early import EarlyPieces

# Requests end within seconds; more open tasks than this on one device mean a runaway host.
MAX_TASKS = 4096
# A stalled peer may still send frames of a request that ended long ago.
_MAX_RELEASED = 4096

# Most gaps of an incomplete input: each piece is compared with every gap. The finest plans have a
# few dozen pieces, and messages of 4 MB cut them further.
_MOST_GAPS = 1024
# Boxes of a few plans, whose geometry is known.
_MOST_KNOWN = 4096
# More gaps than a plan's pieces leave are not kept: they would take the memory of many plans.
_MOST_KNOWN_GAPS = 8


class TaskPhase(Enum):
    """The state of a task."""

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()
    ENDED = auto()


# Geometry that every request of a plan repeats is worked out once: between two kernels, which leave
# nothing in the caches, working it out again takes longer than the rest of receiving a halo.
_contains = lru_cache(_MOST_KNOWN)(Box.contains)
_slices = lru_cache(_MOST_KNOWN)(Box.slices)


@lru_cache(_MOST_KNOWN)
def _shape(box: Box) -> tuple[int, ...]:
    return box.shape


def _without(gaps: tuple[Box, ...], part: Box) -> tuple[Box, ...]:
    """Disjoint boxes that cover the gaps but for a part; equal ones if it fills nothing."""
    return tuple(rest for gap in gaps for rest in minus(gap, part))


_few_without = lru_cache(_MOST_KNOWN)(_without)


@dataclass(slots=True, eq=False)
class _Input:
    spec: InputSpec
    missing: tuple[Box, ...]
    array: np.ndarray | None = None

    def take(self, piece: TensorPiece) -> str:
        """Copies a piece to its place, or has it as the whole input. Why it cannot be; empty if it
        can.
        """
        spec, box, array = self.spec, piece.box, piece.array
        if array.dtype != spec.dtype or len(box) != len(spec.box):
            return "wrong_size"
        if not _contains(spec.box, box) or array.shape != _shape(box):
            return "wrong_size"
        if piece.sender and spec.sources is not None:
            own = (part for device, part in spec.sources if device == piece.sender)
            if not any(_contains(part, box) for part in own):
                return "wrong_sender"
        few = len(self.missing) <= _MOST_KNOWN_GAPS
        missing = (_few_without if few else _without)(self.missing, box)
        if missing == self.missing:
            return "duplicate"
        if len(missing) > _MOST_GAPS:
            return "scattered"
        if self.array is None and box == spec.box and array.flags.c_contiguous:
            self.array = array
        else:
            if self.array is None:
                self.array = aligned_empty(_shape(spec.box), spec.dtype)
            self.array[_slices(box, spec.box)] = array
        self.missing = missing
        return ""


@dataclass(slots=True, eq=False)
class _Task:
    order: TaskOrder
    inputs: dict[str, _Input]
    reserved_bytes: int
    phase: TaskPhase = TaskPhase.WAITING
    ready_s: float = 0.0
    described_last: bool = False
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    from_peers: list[TensorPiece] = field(default_factory=list)
    from_peers_bytes: int = 0
    run: RunProgram | None = None

    def to_run(self) -> RunProgram:
        """Its run, with memory for inputs that have not arrived."""
        if self.run is None:
            for entry in self.inputs.values():
                if entry.array is None:
                    entry.array = aligned_empty(_shape(entry.spec.box), entry.spec.dtype)
            inputs = {
                name: entry.array for name, entry in self.inputs.items() if entry.array is not None
            }
            form = self.order.form
            self.run = RunProgram(self.order.key, form.program, inputs, form.shapes, form.checked)
        return self.run


@dataclass(slots=True, eq=False)
class _Request:
    """The tasks of a request in the order in which the host assigned them: all, those that wait or
    run, and those that wait and have not been set up.
    """

    tasks: dict[TaskKey, _Task] = field(default_factory=dict)
    open: set[TaskKey] = field(default_factory=set)
    bare: dict[TaskKey, _Task] = field(default_factory=dict)
    has_begun: bool = False
    is_being_set_up: bool = False


class Tasks:
    """All tasks of one worker. `own_id` is the device id that outputs to itself name."""

    def __init__(self, own_id: str, cap_bytes: int, early_cap_bytes: int = 64 << 20) -> None:
        self._own_id = own_id
        self._cap_bytes = cap_bytes
        self._tasks: dict[TaskKey, _Task] = {}
        self._requests: dict[str, _Request] = {}
        self._released: OrderedDict[str, None] = OrderedDict()
        self.reserved_bytes = 0
        self.dropped: Counter[str] = Counter()
        self._early = EarlyPieces(early_cap_bytes, self.dropped)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def early_bytes(self) -> int:
        """What is held for tasks that are still to come."""
        return self._early.held_bytes

    def running(self) -> bool:
        """Whether a task is being computed or is queued to be."""
        return any(task.phase is TaskPhase.RUNNING for task in self._tasks.values())

    def add_task(self, order: TaskOrder, now: float) -> list[TaskAction]:
        """The host assigned a task."""
        key = order.key
        if key in self._tasks or key.request in self._released:
            return self._drop("late_task" if key not in self._tasks else "duplicate_task")
        if order.form.fault:
            return [ReportFailure(order.stream, key, BadInput.code, order.form.fault)]
        needed = order.form.needed_bytes
        if len(self._tasks) >= MAX_TASKS or self.reserved_bytes + needed > self._cap_bytes:
            short = (
                f"the task needs {needed >> 10} KB for its tensors, but "
                f"{self.reserved_bytes >> 10} of {self._cap_bytes >> 10} KB are in use by "
                f"{len(self._tasks)} tasks"
            )
            return [ReportFailure(order.stream, key, OutOfMemory.code, short)]
        self.reserved_bytes += needed
        inputs = {
            entry.tensor: _Input(entry, () if entry.box.is_empty else (entry.box,))
            for entry in order.form.inputs
        }
        request = self._requests.setdefault(key.request, _Request())
        task = self._tasks[key] = request.tasks[key] = request.bare[key] = _Task(
            order, inputs, needed
        )
        request.open.add(key)
        actions: list[TaskAction] = []
        for piece in self._early.take(key):
            actions += self._fill(task, piece, now)
        actions = actions or self._go_on(task, now)
        task.described_last = task.phase is TaskPhase.RUNNING
        return actions

    def add_piece(self, piece: TensorPiece, now: float) -> list[TaskAction]:
        """A tensor frame arrived from the host or a peer."""
        self._early.expire(now)
        task = self._tasks.get(piece.key)
        if task is not None:
            return self._fill(task, piece, now)
        if piece.key.request in self._released:
            return self._drop("stranger")
        self._early.hold(piece, now)
        return []

    def finished(
        self, key: TaskKey, outputs: Mapping[str, np.ndarray], start_s: float, stop_s: float
    ) -> list[TaskAction]:
        """The program has run; this state owns `outputs` from now on."""
        task = self._tasks.get(key)
        if task is None or task.phase is not TaskPhase.RUNNING:
            return self._drop("unwanted_result")
        task.phase = TaskPhase.DONE
        self._requests[key.request].open.discard(key)
        task.outputs = dict(outputs)
        self._forget_inputs(task)
        done = TaskEnd(key, task.ready_s, start_s, stop_s, described_last=task.described_last)
        return self._deliver(task, task.order.form.destinations, done)

    def failed(self, key: TaskKey, code: str, message: str) -> list[TaskAction]:
        """The program could not be run, or its outputs could not be sent."""
        task = self._tasks.get(key)
        if task is None or task.phase is TaskPhase.ENDED:
            return self._drop("unwanted_result")
        if task.phase is TaskPhase.RUNNING:
            self._end(task)
        return [ReportFailure(task.order.stream, key, code, message)]

    def resend(
        self, key: TaskKey, outputs: tuple[OutputSpec, ...], stream: int
    ) -> list[TaskAction]:
        """The host asks for parts of a finished task's outputs, possibly for another device."""
        task = self._tasks.get(key)
        wrong = f"outputs of task {key.task} of request {key.request} are not kept here"
        if task is None or task.phase is not TaskPhase.DONE:
            return [ReportFailure(stream, key, NoOutput.code, wrong)]
        yields = task.order.form.yields
        for entry in outputs:
            if yields.get(entry.tensor) != entry.yields or not entry.yields.contains(entry.box):
                return [
                    ReportFailure(
                        stream, key, NoOutput.code, f"{wrong}: {entry.tensor} {entry.box}"
                    )
                ]
        return self._deliver(task, destinations_of(outputs), None)

    def show(self, key: TaskKey, tensor: str, box: Box, stream: int) -> list[TaskAction]:
        """The host asks for the pieces that peers sent of this box of a finished task's input."""
        task = self._tasks.get(key)
        pieces = tuple(
            TensorPiece(key, tensor, piece.box, piece.array)
            for piece in (task.from_peers if task is not None else ())
            if piece.tensor == tensor and box.contains(piece.box)
        )
        if task is None or not pieces:
            why = f"pieces that peers sent to task {key.task} of request {key.request} are not kept"
            return [ReportFailure(stream, key, NoOutput.code, f"{why}: {tensor} {box}")]
        return [SendToHost(stream, pieces, None, bool(self._requests[key.request].open))]

    def cancel(self, request: str, task: int, attempt: int) -> list[TaskAction]:
        """The host cancels this task."""
        actions: list[TaskAction] = []
        known = self._requests.get(request, _Request())
        for key, entry in known.tasks.items():
            if (key.task, key.attempt) == (task, attempt):
                actions += self._end(entry)
        return actions

    def release(self, requests: Iterable[str]) -> list[TaskAction]:
        """These requests have ended: drops everything kept for them."""
        actions: list[TaskAction] = []
        for request in requests:
            for key, task in self._requests.pop(request, _Request()).tasks.items():
                actions += self._end(task)
                del self._tasks[key]
            self._early.forget(request)
            self._released[request] = None
            while len(self._released) > _MAX_RELEASED:
                self._released.popitem(last=False)
        return actions

    def stream_closed(self, stream: int) -> list[TaskAction]:
        """The host that sent these tasks is gone. If it is back, new attempts of the same requests
        came over another stream; or they will, so requests are forgotten, but not released.
        """
        actions: list[TaskAction] = []
        gone = [task for task in self._tasks.values() if task.order.stream == stream]
        for task in gone:
            key = task.order.key
            actions += self._end(task)
            del self._tasks[key], self._requests[key.request].tasks[key]
        for request in sorted({task.order.key.request for task in gone}):
            if not self._requests[request].tasks:
                del self._requests[request]
                self._early.forget(request)
        return actions

    def next_to_set_up(self, request: str) -> RunProgram | None:
        """A task of this request whose inputs are not complete, to be set up, once; None if none
        is left. Its run may follow at any moment, or never.
        """
        known = self._requests.get(request)
        if known is None:
            return None
        if not known.bare:
            known.is_being_set_up = False
            return None
        return known.bare.pop(next(iter(known.bare))).to_run()

    def _fill(self, task: _Task, piece: TensorPiece, now: float) -> list[TaskAction]:
        entry = task.inputs.get(piece.tensor)
        if task.phase is not TaskPhase.WAITING:
            return self._drop("duplicate")
        if entry is None:
            return self._drop("stranger")
        if objection := entry.take(piece):
            return self._drop(objection)
        # Those of an honest neighbour do not overlap.
        kept_bytes = task.from_peers_bytes + piece.array.nbytes
        if piece.sender and kept_bytes <= task.order.form.input_bytes:
            task.from_peers.append(piece)
            task.from_peers_bytes = kept_bytes
        return self._go_on(task, now)

    def _go_on(self, task: _Task, now: float) -> list[TaskAction]:
        """Starts the task if its inputs are complete. While its first task computes, the others of
        a request can be set up.
        """
        key, actions = task.order.key, list[TaskAction]()
        request = self._requests[key.request]
        if task.phase is TaskPhase.WAITING and not any(e.missing for e in task.inputs.values()):
            actions.append(task.to_run())
            task.run, task.phase, task.ready_s = None, TaskPhase.RUNNING, now
            request.bare.pop(key, None)
            request.has_begun = True
        if request.has_begun and request.bare and not request.is_being_set_up:
            request.is_being_set_up = True
            actions.append(SetUp(key.request))
        return actions

    def _deliver(
        self, task: _Task, destinations: Iterable[Destination], done: TaskEnd | None
    ) -> list[TaskAction]:
        """One action, and so one message, for each destination."""
        key, stream = task.order.key, task.order.stream
        to_peers: list[TaskAction] = []
        to_this_device: list[TaskAction] = []
        to_host: tuple[TensorPiece, ...] = ()
        for destination in destinations:
            pieces = tuple(
                TensorPiece(
                    key
                    if destination.to == HOST
                    else TaskKey(key.request, key.plan_version, entry.to_task, entry.to_attempt),
                    entry.tensor,
                    entry.box,
                    task.outputs[entry.tensor][cut],
                    selection=entry.selection,
                    dynamic=entry.dynamic,
                )
                for entry, cut in destination.outputs
            )
            if destination.to == HOST:
                to_host = pieces
            elif destination.to == self._own_id:
                to_this_device += map(Keep, pieces)
            else:
                to_peers.append(
                    sending := SendToPeer(destination.to, destination.address, pieces, key)
                )
                if done is not None:
                    done.peer_bytes += sending.size_bytes
        if to_host or done is not None:
            report = SendToHost(stream, to_host, done, bool(self._requests[key.request].open))
            # Without pieces it waits for the next message, which neighbours may soon trigger.
            to_peers.insert(0 if report.more and not to_host else len(to_peers), report)
        # Last: neighbours need not wait for it.
        return to_peers + to_this_device

    def _end(self, task: _Task) -> list[TaskAction]:
        was_running = task.phase is TaskPhase.RUNNING
        task.phase = TaskPhase.ENDED
        if request := self._requests.get(task.order.key.request):
            request.open.discard(task.order.key)
            request.bare.pop(task.order.key, None)
        task.outputs = {}
        task.run = None
        task.from_peers.clear()
        task.from_peers_bytes = 0
        self._forget_inputs(task)
        self.reserved_bytes -= task.reserved_bytes
        task.reserved_bytes = 0
        return [Discard(task.order.key)] if was_running else []

    def _forget_inputs(self, task: _Task) -> None:
        for entry in task.inputs.values():
            entry.array = None
        received = task.from_peers_bytes
        spent = min(task.order.form.input_bytes - received, task.reserved_bytes)
        task.reserved_bytes -= spent
        self.reserved_bytes -= spent

    def _drop(self, why: str) -> list[TaskAction]:
        self.dropped[why] += 1
        return []
