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
    found = sorted(_crossings(graph, times), key=lambda each: each.start_s)
    next_starts_s = (*(each.start_s for each in found[1:]), math.inf)
    busy_until_s = 0.0
    for each, next_start_s in zip(found, next_starts_s, strict=False):
        overtaken = next_start_s < each.stop_s
        if each.device is not None and each.start_s >= busy_until_s and not overtaken:
            yield each.device, Transfer(each.size_bytes, each.stop_s - each.start_s)
        busy_until_s = max(busy_until_s, each.stop_s)


def _crossings(graph: TaskGraph, times: Sequence[TaskTimes]) -> Iterator[_Crossing]:
    by_task = {each.task: each for each in times}
    for each in times:
        device = DeviceId(each.device)
        if each.sent_bytes and _waits_for_host_alone(graph.tasks[each.task]):
            yield _Crossing(device, each.sent_bytes, each.sent_s, each.ready_s)
        if each.received_bytes:
            yield _Crossing(device, each.received_bytes, each.stop_s, each.received_s)
    for passed in graph.sketch.passed:
        source, reader = by_task.get(passed.source), by_task.get(passed.reader)
        if source and reader and source.device != reader.device and not reader.relayed:
            yield _Crossing(None, passed.bytes, source.stop_s, reader.ready_s)


def _waits_for_host_alone(task: TaskSpec) -> bool:
    """Whether the task was ready as soon as the host's data had arrived."""
    pieces = (piece for each in task.inputs for piece in each.pieces)
    return not task.direct or all(piece.source is None for piece in pieces)
