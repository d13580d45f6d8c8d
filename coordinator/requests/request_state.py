"""A request in flight: its tensors, who computes its tasks, and their observed times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from coordinator.answers import Answer
from coordinator.tasks.events import RequestId
from coordinator.tasks.plan import TrafficBytes
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes, Timeline
from models.run.reference import answer
from models.tensors.boxes import Box
from models.tensors.selection import Selections, dense
from protos import imbrex_pb2 as pb
from protos.wire.convert import ranges
from protos.wire.facts import DeviceId


class UnusableResult(Exception):
    """What was sent cannot be a result; the message says why."""


@dataclass(slots=True)
class RequestState:
    """One request. `arrays` holds every tensor that passes through the host, by name; `done`
    completes with the request; `selections`: what is read of results; `all_reported` is set when
    every task has been reported. `partials` are partial sums by task and tensor; `direct`: devices
    pass tensors to each other. `shared` are devices of its plan that other requests used meanwhile.
    """

    graph: TaskGraph
    arrays: dict[str, np.ndarray]
    done: asyncio.Future[None]
    timeline: Timeline
    selections: Selections
    halo_bytes: int = 0
    retried: int = 0
    attempts: dict[tuple[int, int], DeviceId] = field(default_factory=dict)
    all_reported: asyncio.Event = field(default_factory=asyncio.Event)
    reported: set[int] = field(default_factory=set)
    partials: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    direct: bool = False
    summed: set[str] = field(default_factory=set)
    shared: set[DeviceId] = field(default_factory=set)
    # Devices that keep something of it when it has ended.
    holders: tuple[DeviceId, ...] = ()

    def meet(self, other: RequestState) -> None:
        """Records that both are in flight at the same time."""
        both = set(self.graph.plan.devices) & set(other.graph.plan.devices)
        self.shared |= both
        other.shared |= both

    def computed(self, device: DeviceId, done: pb.TaskDone, offset_s: float) -> None:
        """A device, whose clock is that much behind, reported the end of a task."""
        times = TaskTimes(
            task=done.task,
            attempt=done.attempt,
            device=device,
            ready_s=done.ready_s + offset_s,
            start_s=done.start_s + offset_s,
            stop_s=done.stop_s + offset_s,
            described_last=done.described_last,
        )
        self.timeline.tasks.append(times)
        self.halo_bytes += done.peer_bytes
        self.reported.add(done.task)
        if len(self.reported) == len(self.graph.tasks):
            self.all_reported.set()

    def unpack(self, header: pb.Tensor, payload: np.ndarray) -> np.ndarray:
        """The box of a tensor that a payload stands for; entries that were not selected are zeros.
        The decoder has checked the payload's size against its box and type, and the scheduler
        judges its box.

        Raises:
            UnusableResult: it cannot be a part of this request's tensors.
        """
        own, version = header.plan_version, self.graph.plan.version
        if own != version:
            raise UnusableResult(f"it is of plan {own}, the request runs on plan {version}")
        array = self.arrays.get(header.tensor)
        if array is None or header.tensor in self.graph.inputs:
            raise UnusableResult(f"it is of {header.tensor!r}, which no task yields")
        if payload.dtype != array.dtype:
            raise UnusableResult(f"it is {payload.dtype}, but {header.tensor!r} is {array.dtype}")
        if header.HasField("shape") != self.graph.tensors[header.tensor].is_dynamic:
            raise UnusableResult(f"it is not of the shape of {header.tensor!r}")
        if not header.HasField("kept"):
            return payload
        selection = self.selections.get(header.tensor)
        if selection is None or selection.axis != header.kept.axis:
            raise UnusableResult(f"it is of some entries of {header.tensor!r}, read as a whole")
        box = Box.of(*ranges(header.box))
        if len(box) != array.ndim or not Box.whole(array.shape).contains(box):
            raise UnusableResult(f"its box {box} is not within {header.tensor!r}")
        try:
            return dense(payload, header.kept.entries, header.kept.axis, box.shape)
        except ValueError as error:
            raise UnusableResult(str(error)) from None

    def merge(self, task: int, tensor: str, box: Box, aside: bool, array: np.ndarray) -> None:
        """Takes a box of a tensor from a task; what is `aside` is a part of the task's partial
        sum. A dynamic tensor arrives as a whole.
        """
        if self.graph.tensors[tensor].is_dynamic:
            self.arrays[tensor] = array
            return
        target = self.arrays[tensor]
        if aside:
            target = self.partials.setdefault((task, tensor), np.empty_like(target))
        target[box.slices()] = array

    def add(self, task: int, tensor: str, box: Box) -> None:
        """Adds a complete partial sum to its tensor; the first one is copied."""
        target, part = self.arrays[tensor][box.slices()], self.partials[task, tensor]
        if tensor in self.summed:
            target += part[box.slices()]
        else:
            target[...] = part[box.slices()]
            self.summed.add(tensor)

    def answer(self, request: RequestId) -> Answer:
        """The answer for the caller; completes the timeline, which is part of it."""
        graph, timeline = self.graph, self.timeline
        timing = timeline.conclude(self.shared, relayed=graph.is_direct and not self.direct)
        scatter, gather = (
            sum(size_bytes for _, size_bytes in moved.values())
            for moved in (timeline.departures, timeline.arrivals)
        )
        return Answer(
            request_id=request,
            outputs=answer(graph.outputs, graph.joined, self.arrays, graph.ending),
            timing=timing,
            plan_version=graph.plan.version,
            devices=tuple(dict.fromkeys(self.attempts.values())),
            traffic=TrafficBytes(scatter, gather, self.halo_bytes),
            retried_tasks=self.retried,
        )


@dataclass(frozen=True, slots=True)
class ComputedRequest:
    """A request that was computed, under the id that its devices know."""

    request: RequestId
    state: RequestState
    answer: Answer
