"""A request in flight, as the driver sees it: its tensors and observed times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np

from coordinator.answers import Answer
from coordinator.tasks.events import RequestId
from coordinator.tasks.plan import TrafficBytes
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes, Timeline
from models.run.answering import answer
from models.tensors.boxes import Box
from models.tensors.selection import Selections
from protos.wire.facts import DeviceId


@dataclass(slots=True)
class Flight:
    """One request. `arrays` holds every tensor that passes through the host, by name; `done`
    completes with the request; `selections`: what is read of results; `told` is set when every task
    has been reported. `partials` are partial sums by task and tensor; `direct`: devices pass
    tensors to each other. `shared` are devices of its plan that other requests used meanwhile.
    """

    graph: TaskGraph
    arrays: dict[str, np.ndarray]
    done: asyncio.Future[None]
    timeline: Timeline
    selections: Selections
    scatter_bytes: int = 0
    gather_bytes: int = 0
    halo_bytes: int = 0
    retried: int = 0
    attempts: dict[tuple[int, int], DeviceId] = field(default_factory=dict)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    untold: set[int] = field(init=False)
    partials: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    direct: bool = False
    summed: set[str] = field(default_factory=set)
    shared: set[DeviceId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.untold = {task.id for task in self.graph.tasks}

    def meet(self, other: Flight) -> None:
        """Records that both are in flight at the same time."""
        both = set(self.graph.plan.devices) & set(other.graph.plan.devices)
        self.shared |= both
        other.shared |= both

    @property
    def times(self) -> list[TaskTimes]:
        """The observed times of its tasks."""
        relayed = self.graph.is_direct and not self.direct
        return [
            replace(each, shared=each.device in self.shared, relayed=relayed)
            for each in self.timeline.tasks
        ]

    def computed(self, times: TaskTimes, peer_bytes: int) -> None:
        """A device reported the end of a task and the bytes it sent to peers."""
        self.halo_bytes += peer_bytes
        self.timeline.computed(times)
        self.untold.discard(times.task)
        if not self.untold:
            self.told.set()

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

    def assigned(self, task: int, attempt: int, device: DeviceId) -> None:
        """A device was given a task."""
        self.retried += attempt > 0
        self.attempts[task, attempt] = device

    def answer(self, request: RequestId) -> Answer:
        """The answer for the caller."""
        graph = self.graph
        return Answer(
            request_id=request,
            outputs=answer(graph.outputs, graph.joined, self.arrays, graph.ending),
            timing=self.timeline.timing(),
            plan_version=self.graph.plan.version,
            devices=tuple(dict.fromkeys(self.attempts.values())),
            traffic=TrafficBytes(self.scatter_bytes, self.gather_bytes, self.halo_bytes),
            retried_tasks=self.retried,
        )
