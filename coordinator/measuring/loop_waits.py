"""Where a request waited for event loops: from ready to start, and between peers. Tasks on devices
that other requests used meanwhile are ignored: they may have waited for those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.costs.devices import Link
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes
from protos.facts import DeviceId

Waits = dict[DeviceId, list[float]]
# A task that became ready this shortly before another ended did wait for the event loop.
_AT_ONCE_S = 5e-5


def task_waits(times: Sequence[TaskTimes]) -> Waits:
    """Per device: seconds from ready to start of tasks that arrived while nothing was computed."""
    found: Waits = {}
    stopped: dict[str, float] = {}
    for each in sorted(times, key=lambda times: times.start_s):
        if not each.shared and stopped.get(each.device, 0.0) <= each.ready_s + _AT_ONCE_S:
            found.setdefault(DeviceId(each.device), []).append(each.start_s - each.ready_s)
        stopped[each.device] = max(each.stop_s, stopped.get(each.device, 0.0))
    return found


def message_waits(
    graph: TaskGraph, times: Sequence[TaskTimes], links: Mapping[DeviceId, Link]
) -> Waits:
    """Per device: seconds that it spent on messages with peers for which tasks waited.

    A message's time beyond the wires and the bytes is shared equally by its two ends.
    """
    found: Waits = {}
    by_task = {each.task: each for each in times if not each.shared and not each.relayed}
    for task in graph.tasks:
        times_of = by_task.get(task.id)
        sources = {
            piece.source: graph.tensors[each.tensor].itemsize * piece.box.volume
            for each in task.inputs
            for piece in each.pieces
            if piece.source is not None and piece.source in by_task
        }
        if times_of is None or not task.direct or not sources:
            continue
        last = max(sources, key=lambda source: by_task[source].stop_s)
        ends = [DeviceId(by_task[last].device), DeviceId(times_of.device)]
        if ends[0] == ends[1] or not links.keys() >= set(ends):
            continue
        size, between = sources[last], [links[each] for each in ends]
        wire_s = max(link.occupied_s(size) + link.latency_s for link in between)
        byte_s = sum(link.far.to_peers.byte_s for link in between)
        rest_s = times_of.ready_s - by_task[last].stop_s - wire_s - size * byte_s
        for each in ends:
            found.setdefault(each, []).append(rest_s / 2)
    return found
