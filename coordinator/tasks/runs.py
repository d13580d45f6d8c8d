"""Requests in flight, as the scheduler keeps them: their tasks and attempts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from weakref import WeakSet

from coordinator.tasks.events import Received
from coordinator.tasks.task_graph import TaskGraph, TaskOutput, TaskSpec
from models.tensors.boxes import Box
from protos.wire.facts import DeviceId

# A device that is told to stop a task may go on computing it for a while.
LINGERS_S = 2.0


class RunPhase(Enum):
    """The state of a task. DONE: it is computed, and merged if the host needs it; or it is no
    longer needed.
    """

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()


@dataclass(slots=True)
class Attempt:
    """A device's try at a task.

    `sent` are the input boxes that the host sent, `merged` the output boxes that came back.
    `since_s` is when the device was last given data for it; `delivered` whether that has been sent.
    `resent`: it was computed before, and only its outputs are requested. `hedged`: it is overdue,
    and another device tries as well.
    """

    number: int
    device: DeviceId
    since_s: float
    delivered: bool = False
    resent: bool = False
    hedged: bool = False
    sent: set[tuple[str, Box]] = field(default_factory=set)
    merged: dict[str, list[Box]] = field(default_factory=dict)

    def has_merged(self, output: TaskOutput) -> bool:
        """Whether all of an output came back from this attempt."""
        return sum(box.volume for box in self.merged.get(output.tensor, ())) == output.box.volume


@dataclass(slots=True)
class TaskRun:
    """A task of one request. `held` are the outputs that are complete at the host, `kept` is the
    attempt whose device keeps all of them. `failed` counts failed attempts, `failures` those that
    were a device's fault, by device; `doubted` are devices whose results were not finite.
    """

    spec: TaskSpec
    phase: RunPhase = RunPhase.WAITING
    attempts: dict[int, Attempt] = field(default_factory=dict)
    tries: int = 0
    failed: int = 0
    failures: Counter[DeviceId] = field(default_factory=Counter)
    doubted: list[DeviceId] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    kept: Attempt | None = None

    @property
    def latest(self) -> Attempt | None:
        """The active attempt that began last."""
        return next(reversed(self.attempts.values()), None)

    @property
    def is_at_host(self) -> bool:
        """Whether every output is complete at the host."""
        return len(self.held) == len(self.spec.outputs)

    def begin(self, device: DeviceId, now: float) -> Attempt:
        """Starts another attempt beside the active ones."""
        attempt = Attempt(self.tries, device, now)
        self.tries += 1
        self.attempts[attempt.number] = attempt
        self.phase = RunPhase.RUNNING
        return attempt

    def give_up(self, attempt: Attempt) -> None:
        """Ends an attempt without a result; without any other, the task waits again."""
        del self.attempts[attempt.number]
        for other in self.attempts.values():
            other.hedged = False
        if not self.attempts:
            self.phase = RunPhase.WAITING

    def finish(self, attempt: Attempt) -> list[Attempt]:
        """Takes an attempt's result; returns the other attempts, which are no longer needed."""
        others = [other for other in self.attempts.values() if other is not attempt]
        self.attempts.clear()
        self.held.update(
            output.tensor for output in self.spec.outputs if attempt.has_merged(output)
        )
        self.phase, self.kept = RunPhase.DONE, attempt
        return others

    def resend(self, now: float) -> Attempt:
        """Reactivates the attempt whose device keeps the outputs, until the host has them."""
        kept = self.kept
        assert kept is not None, "only kept outputs can be sent again"
        kept.resent, kept.since_s, self.kept = True, now, None
        kept.merged.clear()
        self.attempts[kept.number] = kept
        self.phase = RunPhase.RUNNING
        return kept

    def is_fed(self, attempt: Attempt) -> bool:
        """Whether the host has sent all of the task's inputs in this attempt."""
        return all(
            (entry.tensor, entry.box) in attempt.sent
            or all((entry.tensor, piece.box) in attempt.sent for piece in entry.pieces)
            for entry in self.spec.inputs
        )


@dataclass(slots=True)
class RequestRun:
    """A request in flight. While it is `direct`, tasks exchange boxes between devices as planned;
    `progress_s` is the time of its last event. `is_as_planned` until a task is tried again, or on
    another device than planned. `refusals` counts devices that refused what was sent for it,
    `crashes` those that ended while they computed for it; one that `is_suspect` is computed alone.
    `cancelled` is when attempts that a device may still be computing were last cancelled there.
    """

    graph: TaskGraph
    tasks: list[TaskRun]
    direct: bool
    progress_s: float
    touched: dict[DeviceId, None] = field(default_factory=dict)
    cancelled: dict[DeviceId, float] = field(default_factory=dict)
    unusual: bool = False
    is_as_planned: bool = True
    refusals: int = 0
    crashes: int = 0
    is_suspect: bool = False

    @property
    def computing(self) -> set[DeviceId]:
        """The devices with active attempts."""
        return {attempt.device for task in self.tasks for attempt in task.attempts.values()}

    @property
    def occupied(self) -> set[DeviceId]:
        """The devices that may be computing for it: those with active attempts, and those where
        attempts were cancelled just now.
        """
        return self.computing | self.cancelled.keys()

    def forget_cancelled(self, now: float) -> None:
        """Forgets what was cancelled so long ago that it has ended."""
        lately = {
            request: at_s for request, at_s in self.cancelled.items() if now - at_s < LINGERS_S
        }
        self.cancelled = lately

    def awaited(self, task: TaskRun) -> list[TaskOutput]:
        """Outputs that the host needs and does not have."""
        return [
            output
            for output in task.spec.outputs
            if (output.to_host or not self.direct) and output.tensor not in task.held
        ]

    def sendable(self, task: TaskRun, attempt: Attempt | None) -> Iterator[tuple[str, Box]]:
        """Input boxes that the host has and has not yet sent in this (or a new) attempt."""
        if attempt is not None and attempt.resent:
            return
        sent = attempt.sent if attempt else set()
        for entry in task.spec.inputs:
            if self.direct and task.spec.direct and entry.pieces[0].source is not None:
                continue
            boxes = [
                piece.box
                for piece in entry.pieces
                if piece.source is None or entry.tensor in self.tasks[piece.source].held
            ]
            if len(boxes) == len(entry.pieces) and not any(t == entry.tensor for t, _ in sent):
                boxes = [entry.box]
            elif entry.summed or (entry.tensor, entry.box) in sent:
                continue
            for box in boxes:
                if (entry.tensor, box) not in sent:
                    yield entry.tensor, box

    def feeds_others(self, task: TaskRun) -> bool:
        """Whether a peer that reads this task's outputs has not finished."""
        return any(
            self.tasks[route.reader].phase is not RunPhase.DONE
            for output in task.spec.outputs
            for route in output.routes
        )

    def has_reached(self, block: int) -> bool:
        """Whether every task of earlier blocks is done. Of these, the last ones are seen first:
        they are the least likely to be.
        """
        first = bisect_left(self.tasks, block, key=attrgetter("spec.block"))
        return all(self.tasks[k].phase is RunPhase.DONE for k in range(first - 1, -1, -1))


@dataclass(frozen=True, slots=True)
class Objection:
    """Why something is refused; `proven`: no later result can show that it was right."""

    cause: str
    proven: bool


class Judge:
    """Whether received data can be a task's result, by its box and values. Remembers the graphs
    that yield values that are not finite by themselves (`unusual`).
    """

    def __init__(self) -> None:
        self.unusual: WeakSet[TaskGraph] = WeakSet()

    def objection(
        self, run: RequestRun, task: TaskRun, attempt: Attempt, came: Received
    ) -> Objection | None:
        """Why it cannot be part of the task's result; None if it can."""
        box, before = came.box, attempt.merged.get(came.tensor, ())
        whole = next((o.box for o in task.spec.outputs if o.tensor == came.tensor), None)
        is_part = whole is not None and len(box) == len(whole) and whole.contains(box)
        if not is_part or box.is_empty or any(box.overlaps(other) for other in before):
            cause = f"it sent {came.box} of {came.tensor!r}, which was not requested"
            return Objection(cause, proven=True)
        if not came.finite and not self._believes(run, task, attempt.device):
            return Objection(f"it sent values of {came.tensor!r} that are not finite", proven=False)
        return None

    def _believes(self, run: RequestRun, task: TaskRun, device: DeviceId) -> bool:
        """Whether the model itself yields values that are not finite: two attempts agree on
        them.
        """
        if not run.unusual:
            task.doubted.append(device)
        if len(task.doubted) > 1:
            run.unusual = True
            self.unusual.add(run.graph)
        return run.unusual
