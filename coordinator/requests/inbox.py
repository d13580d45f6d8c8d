"""Messages from devices: checked against the requests in flight, then passed to the scheduler.

Late results, and results that a device was not asked for, are dropped and counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import structlog

from coordinator.requests.flight import Flight
from coordinator.requests.results import NoResult, whole
from coordinator.tasks.events import Event, Failed, Finished, Received, RequestId, ResultRefused
from coordinator.tasks.timeline import TaskTimes
from models.tensors.arrays import is_finite
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.wire.convert import ranges
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)

# Passes the scheduler an event; that of a tensor comes with its payload.
StepScheduler = Callable[[Event, np.ndarray | None], None]


class Receiver(Protocol):
    """The connections to workers, as who receives from them needs them."""

    def forget(self, device: DeviceId, program: str) -> None:
        """The device reported that it no longer has this program."""
        ...

    def offset_s(self, device: DeviceId) -> float:
        """Seconds to add to the device's clock to get this process's monotonic clock."""
        ...


class Inbox:
    """Turns items from devices into events. `flights` and `dropped` belong to the caller."""

    def __init__(
        self,
        receiver: Receiver,
        flights: Mapping[RequestId, Flight],
        dropped: Counter[str],
        step: StepScheduler,
    ) -> None:
        self._receiver = receiver
        self._flights = flights
        self._dropped = dropped
        self._step = step

    def take(
        self, device: DeviceId, item: pb.Item, payload: np.ndarray | memoryview | None
    ) -> None:
        """An item from a device's stream."""
        match item.WhichOneof("kind"):
            case "tensor" if isinstance(payload, np.ndarray):
                self._tensor(device, item.tensor, payload)
            case "done":
                self._done(device, item.done)
            case "failed":
                self._failed(device, item.failed)
            case _:
                pass

    def _tensor(self, device: DeviceId, header: pb.Tensor, payload: np.ndarray) -> None:
        request = RequestId(header.request)
        flight = self._flights.get(request)
        if flight is None:
            self._dropped["late"] += 1
            return
        if flight.attempts.get((header.task, header.attempt)) != device:
            self._dropped["stranger"] += 1
            return
        size, finite = payload.nbytes, is_finite(payload)
        try:
            payload = whole(header, payload, flight)
        except NoResult as error:
            cause = str(error)
            log.warning("result refused", device=device, task=header.task, cause=cause)
            self._step(ResultRefused(request, header.task, header.attempt, cause), None)
            return
        flight.gather_bytes += size
        flight.timeline.received(header.task, header.attempt, size, time.monotonic())
        box = Box.of(*ranges(header.box))
        event = Received(request, header.task, header.attempt, header.tensor, box, finite)
        self._step(event, payload)

    def _done(self, device: DeviceId, done: pb.TaskDone) -> None:
        flight = self._asked(device, done)
        if flight is None:
            return
        offset = self._receiver.offset_s(device)
        times = TaskTimes(
            task=done.task,
            attempt=done.attempt,
            device=device,
            ready_s=done.ready_s + offset,
            start_s=done.start_s + offset,
            stop_s=done.stop_s + offset,
            described_last=done.described_last,
        )
        flight.computed(times, done.peer_bytes)
        self._step(Finished(RequestId(done.request), done.task, done.attempt), None)

    def _failed(self, device: DeviceId, failed: pb.TaskFailed) -> None:
        log.warning("task failed", device=device, code=failed.code, message=failed.message)
        flight = self._asked(device, failed)
        if flight is None:
            return
        if failed.code == "no_program":
            self._receiver.forget(device, flight.graph.tasks[failed.task].program)
        request = RequestId(failed.request)
        self._step(Failed(request, failed.task, failed.attempt, failed.code, failed.message), None)

    def _asked(self, device: DeviceId, news: pb.TaskDone | pb.TaskFailed) -> Flight | None:
        """The flight of which this device runs the attempt."""
        flight = self._flights.get(RequestId(news.request))
        asked = flight is not None and flight.attempts.get((news.task, news.attempt)) == device
        return flight if asked else None
