"""The scheduler: pure state, events in, actions out. No clock, no I/O, no asyncio.

A task's life, per attempt:

    waiting --(inputs at the host)--> running --(all output boxes merged)--> done
       ^                                 |
       +---- device lost, or failed -----+      (attempt + 1, on another device)

Rules:

* A task is assigned when its first input box can be sent; without a barrier its boxes go out as
  they come in, with a barrier all at once when every earlier block is merged.
* What a lost device was computing is computed again elsewhere, from the boxes that the host
  holds. Late results of an older attempt are dropped and counted.
* Where tasks pass their outputs straight to peers, all tasks are placed and assigned at once, so
  that every output has an address. If then a device is lost or cannot reach a peer, the request
  goes on through the host: whatever the host doesn't hold is computed again.
* A request ends exactly once, with `Complete` or `Abort`; then its devices are released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from coordinator.execution.events import (
    Abort,
    Action,
    Add,
    Assign,
    Cancel,
    Cancelled,
    Complete,
    Event,
    Failed,
    Finished,
    Joined,
    Lost,
    Merge,
    Received,
    Release,
    RequestId,
    Send,
    Submitted,
)
from coordinator.execution.tasks import TaskGraph, TaskInput, TaskSpec
from coordinator.planning.plan import DeviceId
from models.boxes import Box
from protos.errors import ImbrexError, LostWorker, PeerViolation

# A task that failed on this many devices fails everywhere: more attempts only cost time.
MAX_ATTEMPTS = 4


class Phase(Enum):
    """Where a task stands."""

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()


@dataclass(slots=True)
class TaskRun:
    """A task of one request. `merged` holds the boxes received in this attempt."""

    spec: TaskSpec
    device: DeviceId | None = None
    attempt: int = 0
    phase: Phase = Phase.WAITING
    sent: set[tuple[str, Box]] = field(default_factory=set)
    merged: dict[str, list[Box]] = field(default_factory=dict)

    def restart(self) -> None:
        """Back to waiting, as a new attempt."""
        self.attempt += 1
        self.device = None
        self.phase = Phase.WAITING
        self.sent.clear()
        self.merged.clear()

    def is_merged(self, direct: bool) -> bool:
        """Whether every output box that goes to the host has arrived."""
        return all(
            sum(box.volume for box in self.merged.get(output.tensor, ())) == output.box.volume
            for output in self.spec.outputs
            if output.to_host or not direct
        )


@dataclass(slots=True)
class RequestRun:
    """A request in flight."""

    graph: TaskGraph
    tasks: list[TaskRun]
    direct: bool
    touched: dict[DeviceId, None] = field(default_factory=dict)

    def is_available(self, source: int | None) -> bool:
        """Whether the host holds what a task made (None: what the request brought)."""
        return source is None or self.tasks[source].phase is Phase.DONE

    def passed_barrier(self, block: int) -> bool:
        """Whether every task of earlier blocks is done."""
        return all(t.phase is Phase.DONE for t in self.tasks if t.spec.block < block)


class Scheduler:
    """All requests in flight on all devices."""

    def __init__(self) -> None:
        self.requests: dict[RequestId, RequestRun] = {}
        self.devices: dict[DeviceId, None] = {}
        self.dropped: Counter[str] = Counter()
        self.retried: Counter[RequestId] = Counter()

    def step(self, event: Event) -> list[Action]:
        """Takes one event; returns what must be done, in order."""
        return list(self._step(event))

    def _step(self, event: Event) -> Iterator[Action]:
        match event:
            case Submitted(request, graph):
                yield from self._submit(request, graph)
            case Received():
                yield from self._received(event)
            case Finished():
                yield from self._computed(event)
            case Failed():
                yield from self._failed(event)
            case Joined(device):
                self.devices.setdefault(device)
            case Lost(device):
                yield from self._lost(device)
            case Cancelled(request) if request in self.requests:
                yield from self._end(request)
            case Cancelled():
                pass

    # ------------------------------------------------------------ events

    def _submit(self, request: RequestId, graph: TaskGraph) -> Iterator[Action]:
        run = RequestRun(graph, [TaskRun(spec) for spec in graph.tasks], graph.is_direct)
        self.requests[request] = run
        if run.direct:
            for task in run.tasks:
                task.device = self._place(task, None)
            if run.tasks[0].device is None:
                yield from self._abort(request, _no_device())
                return
            for task in run.tasks:
                yield from self._assign(request, run, task)
        yield from self._advance(request, [task.spec.id for task in run.tasks])

    def _received(self, event: Received) -> Iterator[Action]:
        run = self.requests.get(event.request)
        task = self._current(run, event.task, event.attempt)
        if run is None or task is None:
            self.dropped["late"] += 1
            return
        output = next((o for o in task.spec.outputs if o.tensor == event.tensor), None)
        boxes = task.merged.setdefault(event.tensor, [])
        overlaps = any(not box.intersect(event.box).is_empty for box in boxes)
        if output is None or not output.box.contains(event.box) or overlaps:
            self.dropped["stranger"] += 1
            return
        boxes.append(event.box)
        yield Merge(event.request, event.task, event.tensor, event.box, output.reduce)
        if task.is_merged(run.direct):
            for each in task.spec.outputs:
                if each.reduce:
                    yield Add(event.request, event.task, each.tensor, each.box)
            task.phase = Phase.DONE
            yield from self._finished(event.request, run, task)

    def _computed(self, event: Finished) -> Iterator[Action]:
        """Only news of tasks whose outputs all go to peers: the others are done when merged."""
        run = self.requests.get(event.request)
        task = self._current(run, event.task, event.attempt)
        if run is None or task is None or not run.direct:
            return
        if not any(output.to_host for output in task.spec.outputs):
            task.phase = Phase.DONE
            yield from self._finished(event.request, run, task)

    def _finished(self, request: RequestId, run: RequestRun, task: TaskRun) -> Iterator[Action]:
        if all(run.tasks[last].phase is Phase.DONE for last in run.graph.last_tasks):
            yield Complete(request)
            yield from self._end(request)
            return
        later = dict.fromkeys(
            reader
            for output in task.spec.outputs
            for reader in run.graph.readers.get((task.spec.id, output.tensor), ())
        )
        later.update(
            dict.fromkeys(
                each.spec.id
                for each in run.tasks
                if each.spec.barrier and each.phase is Phase.WAITING
            )
        )
        yield from self._advance(request, list(later))

    def _failed(self, event: Failed) -> Iterator[Action]:
        run = self.requests.get(event.request)
        task = self._current(run, event.task, event.attempt)
        if run is None or task is None:
            self.dropped["late"] += 1
            return
        if task.attempt + 1 >= MAX_ATTEMPTS or event.code == "bad_input":
            cause = f"task {event.task} failed on {task.device}: {event.message}"
            cure = "See the log of that device's worker."
            yield from self._abort(event.request, PeerViolation(cause=cause, cure=cure))
            return
        avoid = task.device
        self.retried[event.request] += 1
        if run.direct:
            yield from self._go_through_host(event.request, run, avoid)
            return
        task.restart()
        yield from self._advance(event.request, [event.task], avoid)

    def _lost(self, device: DeviceId) -> Iterator[Action]:
        self.devices.pop(device, None)
        for request, run in list(self.requests.items()):
            run.touched.pop(device, None)
            if run.direct and any(t.device == device for t in run.tasks):
                yield from self._go_through_host(request, run)
                continue
            orphans = [t for t in run.tasks if t.device == device and t.phase is Phase.RUNNING]
            for task in orphans:
                task.restart()
                self.retried[request] += 1
            if orphans:
                yield from self._advance(request, [task.spec.id for task in orphans])

    def _go_through_host(
        self, request: RequestId, run: RequestRun, avoid: DeviceId | None = None
    ) -> Iterator[Action]:
        """Gives up passing boxes from peer to peer: what the host doesn't hold is done again."""
        run.direct = False
        for task in run.tasks:
            if task.phase is Phase.DONE and task.is_merged(direct=False):
                continue
            if task.device in self.devices:
                yield Cancel(request, task.spec.id, task.attempt, task.device)
            self.retried[request] += 1
            task.restart()
        yield from self._advance(request, [task.spec.id for task in run.tasks], avoid)

    # ------------------------------------------------------------ progress

    def _advance(
        self, request: RequestId, tasks: list[int], avoid: DeviceId | None = None
    ) -> Iterator[Action]:
        """Assigns and feeds those of `tasks` that can go on."""
        run = self.requests[request]
        for index in tasks:
            task = run.tasks[index]
            boxes = [] if task.phase is Phase.DONE else list(self._sendable(run, task))
            if not boxes:
                continue
            if task.device is None:
                task.device = self._place(task, avoid)
                if task.device is None:
                    yield from self._abort(request, _no_device())
                    return
                yield from self._assign(request, run, task)
            for tensor, box in boxes:
                task.sent.add((tensor, box))
                yield Send(request, index, task.attempt, task.device, tensor, box)

    @staticmethod
    def _assign(request: RequestId, run: RequestRun, task: TaskRun) -> Iterator[Action]:
        assert task.device is not None
        task.phase = Phase.RUNNING
        run.touched.setdefault(task.device)
        yield Assign(request, task.spec.id, task.attempt, task.device)

    def _sendable(self, run: RequestRun, task: TaskRun) -> Iterator[tuple[str, Box]]:
        """Input boxes that the host holds and has not yet sent in this attempt."""
        if task.spec.barrier and not run.passed_barrier(task.spec.block):
            return
        for each in task.spec.inputs:
            for box in self._ready_boxes(run, task, each):
                if (each.tensor, box) not in task.sent:
                    yield each.tensor, box

    def _ready_boxes(self, run: RequestRun, task: TaskRun, each: TaskInput) -> list[Box]:
        if run.direct and task.spec.direct and each.pieces[0].source is not None:
            return []
        ready = [piece for piece in each.pieces if run.is_available(piece.source)]
        if len(ready) == len(each.pieces) and not any(t == each.tensor for t, _ in task.sent):
            return [each.box]
        if each.summed:
            return []
        return [piece.box for piece in ready if (each.tensor, each.box) not in task.sent]

    def _place(self, task: TaskRun, avoid: DeviceId | None) -> DeviceId | None:
        """The planned device if it is there, else the one with the fewest tasks in flight."""
        planned = task.spec.device
        if planned in self.devices and planned != avoid:
            return planned
        busy = Counter(
            each.device
            for other in self.requests.values()
            for each in other.tasks
            if each.phase is Phase.RUNNING
        )
        choices = [device for device in self.devices if device != avoid] or list(self.devices)
        return min(choices, key=lambda device: busy[device], default=None)

    # ------------------------------------------------------------ ends

    def _abort(self, request: RequestId, error: ImbrexError) -> Iterator[Action]:
        yield Abort(request, error)
        yield from self._end(request)

    def _end(self, request: RequestId) -> Iterator[Action]:
        run = self.requests.pop(request)
        self.retried.pop(request, None)
        if run.touched:
            yield Release(request, tuple(run.touched))

    @staticmethod
    def _current(run: RequestRun | None, task: int, attempt: int) -> TaskRun | None:
        """The task, if it is running in just this attempt."""
        if run is None or not 0 <= task < len(run.tasks):
            return None
        found = run.tasks[task]
        return found if found.phase is Phase.RUNNING and found.attempt == attempt else None


def _no_device() -> LostWorker:
    return LostWorker(
        cause="no worker is left to compute on",
        cure="Start a worker (imbrex worker) or see `imbrex status` for why none is ready.",
    )
