"""The driver: executes the scheduler's actions, and passes it what happens as events.

It owns the requests in flight and their tensors. A tensor's bytes are copied once into the message
that scatters them, and once out of the message that returns them into the merged array.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from coordinator.devices.announcements import Announcements
from coordinator.devices.connection import Receiver
from coordinator.devices.outbox import Letter
from coordinator.devices.pool import Pool
from coordinator.requests.messages import resend_item, task_item, tensor_items
from coordinator.requests.request_state import ComputedRequest, RequestState, UnusableResult
from coordinator.tasks.deadlines import SLACK_S, Expectations
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
    Resend,
    ResultRefused,
    Send,
    Submitted,
    Tick,
)
from coordinator.tasks.scheduler import Scheduler, dispatch
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import Timeline
from models.graph.shapes import TensorInfo
from models.tensors.arrays import is_finite
from models.tensors.boxes import Box
from models.tensors.selection import NO_SELECTION, Selections
from protos import imbrex_pb2 as pb
from protos.errors import (
    BadRequest,
    ImbrexError,
    LostWorker,
    NoAnswer,
    RequestAtFault,
    StreamRefused,
    WorkerStopped,
)
from protos.wire.convert import dtype_of, ranges
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)


# How often overdue devices are looked for: a tenth of the shortest deadline.
TICK_S = SLACK_S / 10

# A task that sends only to peers can be reported after the answer that depends on it. Its report
# was sent when the task ended, so the delay is small: at most that of a busy event loop. An answer
# without it would say wrong times, since a task that is not known to compute counts as scatter.
REPORTS_S = 0.05


@dataclass(frozen=True, slots=True)
class Accused:
    """A device gave a result that cannot be right."""

    device: DeviceId
    cause: str


class Driver:
    """Runs requests on the devices that are ready, with expectations from predictions. Announces
    which devices gave results that cannot be right.
    """

    def __init__(
        self,
        pool: Pool,
        announcements: Announcements,
        expectations: Expectations | None = None,
    ) -> None:
        self.scheduler = Scheduler(expectations)
        self._pool = pool
        self._announcements = announcements
        self._requests: dict[RequestId, RequestState] = {}
        # Who takes what devices keep of a request that has ended.
        self.evidence: dict[RequestId, Receiver] = {}
        # Taken off when they are used again.
        self._distrusted: set[DeviceId] = set()
        self._ticker: asyncio.Task[None] | None = None
        # Bound once: binding it for a line takes longer than to find that it is not written.
        self._log = log.bind()

    async def close(self) -> None:
        """Stops looking after requests; ending those in flight is left to the caller."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)

    async def released(self, device: DeviceId) -> None:
        """Returns when no request in flight runs on a device, or will by its plan."""
        while using := [
            self._requests[request].done
            for request, run in self.scheduler.requests.items()
            if device in run.touched or device in run.graph.plan.devices
        ]:
            await asyncio.wait(using)

    def distrust(self, device: DeviceId) -> None:
        """Restarts the requests in flight that a device took part in: its results are not
        trusted.
        """
        self._distrusted.add(device)
        for request, state in self._requests.items():
            if device in state.attempts.values():
                self._end(request, _Distrusted())

    async def run(
        self,
        graph: TaskGraph,
        feeds: Mapping[str, np.ndarray],
        request_id: str | None = None,
        selections: Selections = NO_SELECTION,
    ) -> ComputedRequest:
        """Runs one request, from its input tensors to its output tensors; of outputs with a
        selection, entries outside it may be zeros. Its devices keep what they have of it until
        `release`.

        Raises:
            BadRequest: its id is already in use.
            ImbrexError: the error with which the scheduler aborted it.
        """
        request = RequestId(request_id or uuid.uuid4().hex[:12])
        if request in self._requests:
            raise BadRequest(
                cause=f"a request with the id {request!r} is already being computed",
                cure="Give every request its own id, or none.",
            )
        tried = request
        while True:
            try:
                computed = await self._run(graph, feeds, tried, selections, known_as=request)
                if not self._distrusted.isdisjoint(computed.answer.devices):
                    self.release(tried, computed.state.holders)
                    raise _Distrusted
            except _Distrusted:
                # Devices treat the id of a released request as a late message, so it needs a new
                # one.
                tried = RequestId(f"{request}-{uuid.uuid4().hex[:4]}")
                log.warning("request started again", request=request, as_=tried)
            else:
                return computed

    async def _run(
        self,
        graph: TaskGraph,
        feeds: Mapping[str, np.ndarray],
        request: RequestId,
        selections: Selections,
        known_as: RequestId,
    ) -> ComputedRequest:
        """One try at a request, under an id of its own; its caller knows it by another one."""
        arrays = {
            name: np.empty(info.shape, dtype_of(info.data_type))
            for name, info in graph.tensors.items()
            if name not in graph.inputs
        }
        arrays.update({name: np.ascontiguousarray(feeds[name]) for name in graph.inputs})
        done = asyncio.get_running_loop().create_future()
        timeline = Timeline(time.monotonic())
        state = RequestState(graph, arrays, done, timeline, graph.selectable(selections))
        for other in self._requests.values():
            state.meet(other)
        self._requests[request] = state
        finite = all(is_finite(arrays[name]) for name in graph.inputs)
        try:
            self.step(Submitted(request, graph, finite))
            if self._ticker is None or self._ticker.done():
                self._ticker = asyncio.create_task(self._tick())
            await done
            timeline.ended_s = time.monotonic()
            if not state.retried:  # the timing is complete with reports that the answer overtook
                with suppress(TimeoutError):
                    async with asyncio.timeout(REPORTS_S):
                        await state.all_reported.wait()
        except BaseException:
            self.step(Cancelled(request))
            self.release(request, state.holders)
            raise
        finally:
            self._requests.pop(request, None)
        try:
            if graph.ending is None:
                answer = state.answer(known_as)
            else:  # ranking thousands of scores would hold up the event loop
                answer = await asyncio.to_thread(state.answer, known_as)
        except BaseException:
            self.release(request, state.holders)
            raise
        return ComputedRequest(request, state, answer)

    def step(self, event: Event, payload: np.ndarray | None = None) -> None:
        """Passes an event to the scheduler and executes its actions; one letter is sent per device,
        and later ones describe tasks that cannot begin yet.
        """
        if isinstance(event, Lost) and (lost := self._pool.get(event.device)):
            lost.outbox.clear()
        actions = self.scheduler.step(event, time.monotonic())
        for action in actions:
            if isinstance(action, Assign):
                state = self._requests[action.request]
                state.retried += action.attempt > 0
                state.attempts[action.task, action.attempt] = action.device
        now, later = dispatch(actions)
        letters: defaultdict[DeviceId, Letter] = defaultdict(Letter)
        for action in now:
            self._act(action, payload, letters)
        for device, letter in letters.items():
            self._post(device, letter)
        if later:
            asyncio.get_running_loop().call_soon(self._describe, deque(later))

    def _describe(self, later: deque[list[Assign]]) -> None:
        """Describes tasks to one device, if they are still to be computed there; a request whose
        tasks cannot be described fails. In between, the event loop sends what was posted.
        """
        letters: defaultdict[DeviceId, Letter] = defaultdict(Letter)
        part = later.popleft()
        try:
            for assign in part:
                if self.scheduler.current(assign.request, assign.task, assign.attempt):
                    self._assign(assign, letters)
            for device, letter in letters.items():
                self._post(device, letter)
        except Exception as error:
            for request in {assignment.request for assignment in part}:
                self._end(request, error)
        if later:
            asyncio.get_running_loop().call_soon(self._describe, later)

    async def _tick(self) -> None:
        while self._requests:
            await asyncio.sleep(TICK_S)
            self.step(Tick())

    def devices(self, ready: Iterable[DeviceId]) -> None:
        """Sets the devices that can be used now; missing ones are lost."""
        present = dict.fromkeys(ready)
        self._distrusted.difference_update(present)
        for device in [device for device in self.scheduler.devices if device not in present]:
            self.step(self._lost(device))
        for device in present:
            if device not in self.scheduler.devices:
                self.step(Joined(device))

    def _lost(self, device: DeviceId) -> Lost:
        if self._pool.get(device):
            return Lost(device, is_connected=True)
        match self._pool.departures.get(device):
            case StreamRefused(request=request):
                return Lost(device, False, "refused", RequestId(request) if request else None)
            case NoAnswer() | WorkerStopped():
                return Lost(device)
            case LostWorker():
                return Lost(device, False, "crashed")
            case _:  # its own fault, or it was closed from here
                return Lost(device)

    # ------------------------------------------------------------ what devices send

    def received(
        self, device: DeviceId, item: pb.Item, payload: np.ndarray | memoryview | None
    ) -> bool:
        """An item from a device's stream: evidence of a request, or what it sends while one is in
        flight. What comes late, or from a device that was not asked for it, is dropped; results are
        counted then.
        """
        kind = item.WhichOneof("kind")
        if kind not in ("tensor", "done", "failed"):
            return True
        news: pb.Tensor | pb.TaskDone | pb.TaskFailed = getattr(item, kind)
        request = RequestId(news.request)
        evidence = self.evidence.get(request)
        if evidence is not None and evidence.received(device, item, payload):
            return True
        if kind == "failed":
            which = {"request": news.request, "task": news.task, "device": device}
            log.warning("task failed", **which, code=item.failed.code, message=item.failed.message)
        state = self._requests.get(request)
        if state is None or state.attempts.get((news.task, news.attempt)) != device:
            if kind == "tensor":
                self.scheduler.dropped["late" if state is None else "stranger"] += 1
        elif kind == "done":
            connection = self._pool.get(device)
            state.computed(device, item.done, connection.clock.offset_s if connection else 0.0)
            self.step(Finished(request, news.task, news.attempt))
        elif kind == "failed":
            self._task_failed(device, state, item.failed)
        elif isinstance(payload, np.ndarray):
            self._received_tensor(device, state, item.tensor, payload)
        return True

    def _received_tensor(
        self, device: DeviceId, state: RequestState, header: pb.Tensor, payload: np.ndarray
    ) -> None:
        request = RequestId(header.request)
        size, finite = payload.nbytes, is_finite(payload)
        try:
            payload = state.unpack(header, payload)
        except UnusableResult as error:
            cause = str(error)
            refused = {"request": request, "task": header.task}
            log.warning("result refused", **refused, device=device, cause=cause)
            self.step(ResultRefused(request, header.task, header.attempt, cause))
            return
        state.timeline.arrivals.add(header.task, header.attempt, size, time.monotonic())
        box = Box.of(*ranges(header.box))
        event = Received(request, header.task, header.attempt, header.tensor, box, finite)
        self.step(event, payload)

    def _task_failed(self, device: DeviceId, state: RequestState, failed: pb.TaskFailed) -> None:
        if failed.code == "no_program" and (connection := self._pool.get(device)):
            connection.programs.forget(state.graph.tasks[failed.task].program)
        request = RequestId(failed.request)
        self.step(Failed(request, failed.task, failed.attempt, failed.code, failed.message))

    # ------------------------------------------------------------ letters

    def _post(self, device: DeviceId, letter: Letter) -> None:
        """Sends a letter. From when it is queued its attempts are timed; if its programs cannot be
        prepared, or the device has gone, they fail, on the next turn of the event loop.
        """
        try:
            posted = self._pool.connection(device).outbox.post(letter)
        except LostWorker as gone:
            posted = asyncio.get_running_loop().create_future()
            posted.set_exception(gone)
        posted.add_done_callback(partial(self._posted, letter))

    def _posted(self, letter: Letter, posted: asyncio.Future[None]) -> None:
        if posted.cancelled():
            return  # the device was lost, and its tasks with it
        error = posted.exception()
        for key in letter.attempts:
            if error is None:
                self.scheduler.step(Delivered(*key), time.monotonic())
            else:
                assert isinstance(error, ImbrexError)
                self.step(Failed(*key, error.code, str(error)))

    # ------------------------------------------------------------ actions

    def _act(
        self, action: Action, payload: np.ndarray | None, letters: defaultdict[DeviceId, Letter]
    ) -> None:
        match action:
            case Assign():
                self._assign(action, letters)
            case Send():
                self._send(action, letters)
            case Resend(request, device=device):
                letter = letters[device]
                letter.items.append(resend_item(action, self._requests[request].graph))
                letter.attempts[request, action.task, action.attempt] = None
            case Cancel(request, number, attempt, device):
                cancel = pb.Cancel(request=request, task=number, attempt=attempt)
                letters[device].items.append(pb.Item(cancel=cancel))
            case Merge(request, task, tensor, box, aside):
                assert payload is not None
                self._requests[request].merge(task, tensor, box, aside, payload)
            case Add(request, task, tensor, box):
                self._requests[request].add(task, tensor, box)
            case Complete(request):
                self._end(request, None)
            case Abort(request, error):
                self._end(request, error)
            case Accuse(device, cause):
                # Not within a step: it may lead to the next one.
                announce = self._announcements.announce
                asyncio.get_running_loop().call_soon(announce, Accused(device, cause))
            case Release(request, devices):
                self._requests[request].holders = devices

    def release(self, request: RequestId, devices: Iterable[DeviceId]) -> None:
        """Lets devices drop everything that they keep of a request."""
        for device in devices:
            if connection := self._pool.get(device):
                item = pb.Item(release=pb.Release(requests=[request]))
                connection.outbox.post_with_next(item)

    def _end(self, request: RequestId, error: Exception | None) -> None:
        state = self._requests.get(request)
        if state is None or state.done.done():
            return
        if error is None:
            state.done.set_result(None)
        else:
            state.done.set_exception(error)

    def _assign(self, action: Assign, letters: defaultdict[DeviceId, Letter]) -> None:
        state = self._requests[action.request]
        self._log.debug("task", request=action.request, task=action.task, device=action.device)
        graph = state.graph
        run = self.scheduler.requests.get(action.request)
        if run is None:
            return  # the attempt ended in the same step
        state.direct = run.direct
        letter = letters[action.device]
        letter.items.append(task_item(action, run, self._address, state.selections))
        letter.attempts[action.request, action.task, action.attempt] = None
        program = graph.programs[graph.tasks[action.task].program]
        letter.programs.append((program, graph.blobs))

    def _address(self, device: DeviceId) -> str:
        """Where peers reach a device, as `host:port`; empty if it is gone."""
        connection = self._pool.get(device)
        return connection.address if connection else ""

    def _send(self, action: Send, letters: defaultdict[DeviceId, Letter]) -> None:
        state = self._requests[action.request]
        letter = letters[action.device]
        letter.attempts[action.request, action.task, action.attempt] = None
        array, info = state.arrays[action.tensor], state.graph.tensors[action.tensor]
        fits = info.is_dynamic or array.shape == info.shape
        if array.dtype != dtype_of(info.data_type) or not fits:
            self._end(action.request, _undeclared(action.tensor, array, info))
            return
        for item, view in tensor_items(action, state.graph, array):
            state.timeline.departures.add(
                action.task, action.attempt, view.nbytes, time.monotonic()
            )
            letter.items.append(item)
            letter.payloads.append(view)


def _undeclared(tensor: str, array: np.ndarray, declared: TensorInfo) -> RequestAtFault:
    """That a tensor is not what its receivers were told: they would refuse it, and end the
    stream of all requests.
    """
    return RequestAtFault(
        cause=f"the tensor {tensor!r} is {array.dtype} {array.shape}, and was announced as "
        f"{declared.dtype} {declared.shape}",
        cure="Report this with the model: it is a fault of imbrex, and nothing was sent",
    )


class _Distrusted(Exception):
    """A device that took part was found to compute wrong results."""
