"""The scheduler: pure state, events in, actions out. No clock, no I/O, no asyncio.

A task's life:

    waiting --(inputs at the host)--> running --(all output boxes merged)--> done
       ^                                 |
       +--- no attempt at it goes on ----+

Rules:

* A task is assigned when its first input box can be sent. Without a barrier its boxes are sent as
  they become available, with a barrier all at once when every earlier block is done. A task without
  inputs, which computes from constants alone, is assigned at once, or after its barrier.
* What a lost device was computing is computed elsewhere, from the boxes that the host has. Late
  results of an attempt that was given up are dropped and counted.
* If an attempt is overdue, another device tries as well; the first result is taken, and the other
  attempts are cancelled (`deadlines`).
* Data that cannot be a result is refused and counted, and its task runs elsewhere. Values that are
  not finite are accepted if a second attempt yields them as well; otherwise its device is accused.
* If tasks pass their outputs directly to peers, all tasks are placed and assigned at once, so that
  every output has an address. If then a device is lost, cannot reach a peer, or nothing is heard
  for too long, the request goes on through the host (`recovery`).
* When the last device is gone, requests wait a while for one to come back.
* A request that ends device after device, or that they refuse, is aborted (`suspicion`).
* A request ends exactly once, with `Complete` or `Abort`; then its devices are released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from coordinator.tasks.deadlines import MOST_AT_ONCE, Expectations, OverdueWatch
from coordinator.tasks.events import (
    Abort,
    Accuse,
    Action,
    Add,
    Assign,
    Cancel,
    Cancelled,
    Complete,
    Delivered,
    Event,
    Failed,
    Finished,
    Joined,
    Lost,
    Merge,
    Received,
    Release,
    RequestId,
    ResultRefused,
    Send,
    Submitted,
    Tick,
)
from coordinator.tasks.recovery import recover
from coordinator.tasks.runs import Attempt, Judge, Objection, RequestRun, RunPhase, TaskRun
from coordinator.tasks.suspicion import Suspicion, at_fault
from protos.errors import ImbrexError, LostWorker, PeerViolation
from protos.wire.facts import DeviceId

# A task that failed this often would fail everywhere.
MAX_FAILURES = 4
# How long requests wait for a device after the last one has gone: a restarting router, or a host
# that was suspended, makes all of them disappear at once.
STRANDED_S = 10.0
# Errors that are not the fault of the device that reports them: it lacks knowledge that it was not
# given, or another device cannot be reached.
_BLAMELESS = ("no_program", "send")

# So many descriptions take about as long as one more message (`benchmarks.handover`).
MESSAGE_TASKS = 6
# Fewer for each device are not worth a message, although no device waits for that.
FEW_TASKS = 3

T = TypeVar("T")
_Found = tuple[RequestRun, TaskRun, Attempt]


class Scheduler:
    """All requests in flight on all devices. `refused` counts wrong results by device."""

    def __init__(self, expectations: Expectations | None = None) -> None:
        self.requests: dict[RequestId, RequestRun] = {}
        self.devices: dict[DeviceId, None] = {}
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[DeviceId] = Counter()
        self._expected = expectations or Expectations()
        self._watch = OverdueWatch(self._expected)
        self._judge = Judge()
        self._suspicion = Suspicion()
        self._now = 0.0
        # When the last device was lost.
        self._empty_s = 0.0

    def step(self, event: Event, now: float = 0.0) -> list[Action]:
        """Takes one event; returns the actions, in order. `now` is a monotonic time in seconds."""
        self._now = now
        actions: Iterable[Action] = ()
        match event:
            case Submitted():
                actions = self._submit(event)
            case Joined(device):
                actions = self._joined(device)
            case Delivered(request, task, number):
                if found := self.current(request, task, number):
                    run, _, attempt = found
                    attempt.delivered = True
                    attempt.since_s = run.progress_s = now
            case Received():
                actions = self._received(event)
            case Finished():
                actions = self._computed(event)
            case ResultRefused(request, task, number, cause):
                if found := self.current(request, task, number):
                    actions = self._refuse(request, found, Objection(cause, proven=True))
            case Failed():
                actions = self._failed(event)
            case Lost(device, is_connected):
                actions = chain(self._suspect(event), self._lost(device, is_connected))
            case Cancelled(request):
                actions = self._end(request)
            case Tick():
                actions = chain.from_iterable(
                    self._help_overdue(request, run) for request, run in list(self.requests.items())
                )
        return list(actions)

    # ------------------------------------------------------------ events

    def _submit(self, event: Submitted) -> Iterator[Action]:
        request, graph = event.request, event.graph
        unusual = not event.finite or graph in self._judge.unusual
        direct = graph.is_direct and bool(self.devices)
        tasks = [TaskRun(spec) for spec in graph.tasks]
        run = RequestRun(graph, tasks, direct, self._now, unusual=unusual)
        self.requests[request] = run
        if run.direct:
            begun = [(task, self._begin(run, task)) for task in run.tasks]
            for task, attempt in begun:
                assert attempt is not None, "there is at least one device"
                yield Assign(request, task.spec.id, attempt.number, attempt.device)
        yield from self._advance(request, range(len(run.tasks)))

    def _joined(self, device: DeviceId) -> Iterator[Action]:
        was_empty = not self.devices
        self.devices.setdefault(device)
        self._suspicion.began(device)
        if was_empty:
            for request, run in self.requests.items():
                yield from self._advance(request, range(len(run.tasks)))

    def _received(self, event: Received) -> Iterator[Action]:
        found = self.current(event.request, event.task, event.attempt)
        if found is None:
            self.dropped["late"] += 1
            return
        run, task, attempt = found
        if event.tensor in task.held or event.box in attempt.merged.get(event.tensor, ()):
            self.dropped["duplicate"] += 1
            return
        if objection := self._judge.objection(*found, event):
            yield from self._refuse(event.request, found, objection)
            return
        self._watch.heard_s[attempt.device] = run.progress_s = self._now
        attempt.merged.setdefault(event.tensor, []).append(event.box)
        reduce = any(o.reduce for o in task.spec.outputs if o.tensor == event.tensor)
        yield Merge(event.request, event.task, event.tensor, event.box, reduce)
        awaited = run.awaited(task)
        if all(attempt.has_merged(output) for output in awaited):
            for output in awaited:
                if output.reduce:
                    yield Add(event.request, event.task, output.tensor, output.box)
            yield from self._finish(event.request, found)

    def _computed(self, event: Finished) -> Iterator[Action]:
        """Ends a task whose outputs all go to peers; other tasks end when they are merged."""
        found = self.current(event.request, event.task, event.attempt)
        if found is None:
            return
        run, task, attempt = found
        self._watch.heard_s[attempt.device] = run.progress_s = self._now
        if run.direct and not run.awaited(task):
            yield from self._finish(event.request, found)

    def _finish(self, request: RequestId, found: _Found) -> Iterator[Action]:
        """Ends a task that has its result."""
        run, task, attempt = found
        for device in () if run.unusual else task.doubted:
            yield Accuse(device, "its values were not finite, but another device's were")
        task.doubted.clear()
        for other in task.finish(attempt):
            yield Cancel(request, task.spec.id, other.number, other.device)
            run.cancelled[other.device] = self._now
        if all(tensor in run.tasks[number].held for number, tensor in run.graph.ends):
            yield Complete(request)
            yield from self._end(request)
            return
        later = dict.fromkeys(
            reader
            for output in task.spec.outputs
            for reader in run.graph.readers.get((task.spec.id, output.tensor), ())
        )
        later.update(dict.fromkeys(task.spec.id for task in run.tasks if task.spec.barrier))
        yield from self._advance(request, later)

    def _refuse(self, request: RequestId, found: _Found, objection: Objection) -> Iterator[Action]:
        _, task, attempt = found
        self.refused[attempt.device] += 1
        if objection.proven:
            yield Accuse(attempt.device, objection.cause)
        yield Cancel(request, task.spec.id, attempt.number, attempt.device)
        yield from self._failed(
            Failed(request, task.spec.id, attempt.number, "wrong_result", objection.cause)
        )

    def _failed(self, event: Failed) -> Iterator[Action]:
        found = self.current(event.request, event.task, event.attempt)
        if found is None:
            self.dropped["late"] += 1
            return
        run, task, attempt = found
        if event.code == "not_finite":
            self.refused[attempt.device] += 1
            task.doubted.append(attempt.device)
        if not attempt.resent:
            task.failures[attempt.device] += event.code not in _BLAMELESS
            task.failed += 1
        if task.failed >= MAX_FAILURES or event.code == "bad_input":
            cause = f"task {event.task} failed on {attempt.device}: {event.message}"
            cure = "See the log of that device's worker."
            yield from self._abort(event.request, PeerViolation(cause=cause, cure=cure))
            return
        task.give_up(attempt)
        yield from self._go_on(event.request, run, [event.task])

    def _lost(self, device: DeviceId, is_connected: bool) -> Iterator[Action]:
        self.devices.pop(device, None)
        if not self.devices:
            self._empty_s = self._now
        self._watch.heard_s.pop(device, None)
        for request, run in list(self.requests.items()):
            if not is_connected:
                run.touched.pop(device, None)
                run.cancelled.pop(device, None)
            broken = []
            for task in run.tasks:
                if task.kept is not None and task.kept.device == device:
                    task.kept = None
                    if run.direct and run.feeds_others(task):
                        broken.append(task.spec.id)
                for attempt in [
                    attempt for attempt in task.attempts.values() if attempt.device == device
                ]:
                    task.give_up(attempt)
                    broken.append(task.spec.id)
            if broken:
                yield from self._go_on(request, run, broken)

    def _suspect(self, event: Lost) -> Iterator[Action]:
        """Aborts the request because of which a device is lost, if that is known."""
        if event.departure == "refused" and event.request is not None:
            run = self.requests.get(event.request)
            if run is not None and (error := self._suspicion.refused(run)) is not None:
                yield from self._abort(event.request, error)
        elif event.departure != "gone":
            present = {
                request: run
                for request, run in self.requests.items()
                if event.device in run.occupied
            }
            guilty = self._suspicion.crashed(event.device, present, self._now)
            if guilty is not None:
                yield from self._abort(*guilty)

    # ------------------------------------------------------------ faults

    def _go_on(self, request: RequestId, run: RequestRun, tasks: Iterable[int]) -> Iterator[Action]:
        """Goes on after attempts at `tasks` ended without a result, or their outputs may be
        lost.
        """
        if run.graph.is_direct:
            yield from recover(request, run, self._now)
            tasks = range(len(run.tasks))
        yield from self._advance(request, tasks)

    def _help_overdue(self, request: RequestId, run: RequestRun) -> Iterator[Action]:
        """Acts on everything that is overdue."""
        run.forget_cancelled(self._now)
        if not self.devices:
            if self._now - self._empty_s >= STRANDED_S:
                error = LostWorker(
                    cause="no worker is left to compute on",
                    cure="Start a worker (imbrex worker) or see `imbrex status` for why none is "
                    "ready.",
                )
                yield from self._abort(request, error)
            return
        if run.is_suspect and not run.computing:
            yield from self._advance(request, range(len(run.tasks)))
            if not run.computing and self._now - run.progress_s >= STRANDED_S:
                yield from self._abort(request, at_fault(run))
            return
        if run.direct:
            if self._watch.is_stuck(run, len(self.requests), self._now):
                yield from self._go_on(request, run, [])
            return
        for task in run.tasks:
            for attempt in list(task.attempts.values()):
                if attempt.number in task.attempts and not attempt.hedged:
                    yield from self._help(request, (run, task, attempt))
                if request not in self.requests:
                    return

    def _help(self, request: RequestId, found: _Found) -> Iterator[Action]:
        """Starts another attempt beside an overdue one, or finally gives up the last one
        possible.
        """
        run, task, attempt = found
        delay = self._watch.delay(*found, self._now)
        if delay is None:
            return
        index = task.spec.id
        if attempt.resent:
            task.give_up(attempt)
            yield from self._go_on(request, run, [index])
        elif len(task.attempts) < MOST_AT_ONCE and (other := self._begin(run, task)) is not None:
            attempt.hedged = True
            yield Assign(request, index, other.number, other.device)
            yield from self._advance(request, [index])
        elif delay.is_hopeless:
            tried = ", ".join(attempt.device for attempt in task.attempts.values())
            cause = f"task {index} got no result for {delay.silent_s:.0f} s (from {tried})"
            cure = "See the logs of those devices' workers."
            yield from self._abort(request, LostWorker(cause=cause, cure=cure))

    # ------------------------------------------------------------ progress

    def _advance(self, request: RequestId, tasks: Iterable[int]) -> Iterator[Action]:
        """Assigns and feeds those of `tasks` that can go on."""
        run = self.requests[request]
        for index in tasks:
            task = run.tasks[index]
            if task.spec.barrier and not run.has_reached(task.spec.block):
                continue
            needs_none = not task.spec.inputs
            if task.phase is RunPhase.WAITING and (needs_none or any(run.sendable(task, None))):
                attempt = self._begin(run, task)
                if attempt is None:
                    return  # no device is left, or none for a suspect alone
                yield Assign(request, index, attempt.number, attempt.device)
            for attempt in task.attempts.values():
                for tensor, box in list(run.sendable(task, attempt)):
                    attempt.sent.add((tensor, box))
                    attempt.since_s = self._now
                    yield Send(request, index, attempt.number, attempt.device, tensor, box)

    def _begin(self, run: RequestRun, task: TaskRun) -> Attempt | None:
        """A new attempt on the best device that is not yet trying; None if there is none."""
        requests = self.requests.values()
        device = place(run, task, self.devices, requests, self._expected)
        if device is None:
            return None
        run.touched.setdefault(device)
        run.is_as_planned &= device == task.spec.device and not task.tries
        return task.begin(device, self._now)

    # ------------------------------------------------------------ ends

    def _abort(self, request: RequestId, error: ImbrexError) -> Iterator[Action]:
        yield Abort(request, error)
        yield from self._end(request)

    def _end(self, request: RequestId) -> Iterator[Action]:
        run = self.requests.pop(request, None)
        if run is None:
            return
        if run.crashes:
            self._suspicion.ended(run, self._now)
        if run.touched:
            yield Release(request, tuple(run.touched))

    def current(self, request: RequestId, task: int, number: int) -> _Found | None:
        """An attempt that goes on."""
        run = self.requests.get(request)
        if run is None or not 0 <= task < len(run.tasks):
            return None
        attempt = run.tasks[task].attempts.get(number)
        return (run, run.tasks[task], attempt) if attempt else None


def place(
    run: RequestRun,
    task: TaskRun,
    devices: Collection[DeviceId],
    requests: Collection[RequestRun],
    expected: Expectations,
) -> DeviceId | None:
    """The planned device if it is one of `devices`; otherwise, among those where the task failed
    least often, the one that would be ready first. None if all of them are already trying, or have
    no room for the program while another one tries. `requests` are all in flight. A suspect gets
    one device that computes for nobody else, and others avoid it if they can.
    """
    devices = _separated(run, devices, requests)
    planned = task.spec.device
    if not task.attempts and not task.failures and planned in devices:
        return planned
    trying = {attempt.device for attempt in task.attempts.values()}
    free = [
        device
        for device in devices
        if device not in trying
        and (not trying or expected.has_room(run.graph, task.spec.id, device))
    ]
    if planned in free and not task.failures:
        return planned
    # The work that devices have: the number of attempts, and their predicted seconds.
    attempts: Counter[DeviceId] = Counter()
    busy_s: dict[DeviceId, float] = {}
    for other in requests:
        for started in other.tasks:
            for attempt in started.attempts.values():
                task_s = expected.task_s(other.graph, started.spec.id, attempt.device)
                busy_s[attempt.device] = busy_s.get(attempt.device, 0.0) + task_s
                attempts[attempt.device] += 1

    def rank(device: DeviceId) -> tuple[int, bool, bool, float, int]:
        ready_s = expected.prepare_s(run.graph, task.spec.id, device)
        ready_s += expected.task_s(run.graph, task.spec.id, device)
        seconds = busy_s.get(device, 0.0) + ready_s
        # Beyond its limits a device computes with onnxruntime: better than losing the request.
        beyond = not expected.takes(run.graph, device)
        return task.failures[device], beyond, device != planned, seconds, attempts[device]

    return min(free, key=rank, default=None)


def _separated(
    run: RequestRun, devices: Collection[DeviceId], requests: Collection[RequestRun]
) -> Collection[DeviceId]:
    others = [
        other for other in requests if other is not run and (run.is_suspect or other.is_suspect)
    ]
    if run.is_suspect:
        own, used = run.computing, {device for other in others for device in other.occupied}
        return [device for device in devices if device not in used and (not own or device in own)]
    avoided = {device for other in others for device in other.occupied}
    return (
        [device for device in devices if device not in avoided] or devices if avoided else devices
    )


def dispatch(actions: Sequence[Action]) -> tuple[Sequence[Action], list[list[Assign]]]:
    """The actions to carry out at once; and assignments for whose inputs other devices have to
    compute first, each list for one device, to be described in this order. A plan with exchanges
    places all tasks of a request at once, dozens for each device: if all of them were described
    before anything is sent, no device would begin before the last description.
    """
    fed = {(action.request, action.task) for action in actions if isinstance(action, Send)}
    later: dict[DeviceId, list[Assign]] = {}
    for action in actions:
        if isinstance(action, Assign) and (action.request, action.task) not in fed:
            later.setdefault(action.device, []).append(action)
    follow = in_parts(later.values())
    if not follow:
        return actions, []
    waiting = set(chain.from_iterable(follow))
    return [
        action for action in actions if not (isinstance(action, Assign) and action in waiting)
    ], follow


def in_parts(later: Collection[Sequence[T]]) -> list[list[T]]:
    """What is described later, by device, in parts: to each device its next tasks, then to each all
    others. Empty if it is so little that it can be described with the first messages.
    """
    if sum(map(len, later)) <= FEW_TASKS * len(later):
        return []
    first = [tasks[:MESSAGE_TASKS] for tasks in later]
    others = [tasks[MESSAGE_TASKS:] for tasks in later]
    return [list(part) for part in (*first, *others) if part]
