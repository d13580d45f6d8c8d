"""Transfers that had the wires to themselves, from which a link's speed can be learned.

A message that shares the host's cable, or waits behind others in a queue, takes as long as all of
them together: it shows the capacity of the medium, but nothing about its own link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinator.costs.links import Transfer
from coordinator.tasks.task_graph import TaskGraph, TaskSpec
from coordinator.tasks.timeline import TaskTimes
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A message between the host and `device`, or between peers if that is None; on the host's
    clock.
    """

    device: DeviceId | None
    size_bytes: int
    start_s: float
    stop_s: float


def lone_transfers(
    graph: TaskGraph, times: Sequence[TaskTimes]
) -> Iterator[tuple[DeviceId, Transfer]]:
    """A request's messages between the host and its devices that did not overlap with others of the
    request.
    """
    crossings = sorted(_crossings(graph, times), key=lambda crossing: crossing.start_s)
    next_starts_s = (*(later.start_s for later in crossings[1:]), math.inf)
    busy_until_s = 0.0
    for crossing, next_start_s in zip(crossings, next_starts_s, strict=False):
        overtaken = next_start_s < crossing.stop_s
        if crossing.device is not None and crossing.start_s >= busy_until_s and not overtaken:
            yield crossing.device, Transfer(crossing.size_bytes, crossing.stop_s - crossing.start_s)
        busy_until_s = max(busy_until_s, crossing.stop_s)


def _crossings(graph: TaskGraph, times: Sequence[TaskTimes]) -> Iterator[_Crossing]:
    by_task = {timed.task: timed for timed in times}
    for timed in times:
        device = DeviceId(timed.device)
        if timed.sent_bytes and _waits_for_host_alone(graph.tasks[timed.task]):
            yield _Crossing(device, timed.sent_bytes, timed.sent_s, timed.ready_s)
        if timed.received_bytes:
            yield _Crossing(device, timed.received_bytes, timed.stop_s, timed.received_s)
    for passed in graph.sketch.passed:
        source, reader = by_task.get(passed.source), by_task.get(passed.reader)
        if source and reader and source.device != reader.device and not reader.relayed:
            yield _Crossing(None, passed.bytes, source.stop_s, reader.ready_s)


def _waits_for_host_alone(task: TaskSpec) -> bool:
    """Whether the task was ready as soon as the host's data had arrived."""
    pieces = (piece for entry in task.inputs for piece in entry.pieces)
    return not task.direct or all(piece.source is None for piece in pieces)
