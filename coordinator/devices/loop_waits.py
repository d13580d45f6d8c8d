"""Where a request waited for event loops: from ready to start, and between peers. Tasks on devices
that other requests used meanwhile are ignored: they may have waited for those.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.costs.cluster import Link
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes
from protos.wire.facts import DeviceId

Waits = dict[DeviceId, list[float]]
# A task that became ready this shortly before another ended did wait for the event loop.
_AT_ONCE_S = 5e-5
# What a message is believed to take its ends at least: of nothing, nothing can be learned.
LEAST_MESSAGE_S = 1e-6


@dataclass(frozen=True, slots=True)
class _Message:
    """What a device sends to another one of a task's result, for these tasks."""

    source: int
    ends: tuple[DeviceId, DeviceId]
    size_bytes: int
    readers: tuple[int, ...]


def task_waits(times: Sequence[TaskTimes]) -> Waits:
    """Per device: seconds from ready to start of tasks that arrived while nothing was computed."""
    waits: Waits = {}
    stopped: dict[str, float] = {}
    for timed in sorted(times, key=lambda times: times.start_s):
        if not timed.shared and stopped.get(timed.device, 0.0) <= timed.ready_s + _AT_ONCE_S:
            waits.setdefault(DeviceId(timed.device), []).append(timed.start_s - timed.ready_s)
        stopped[timed.device] = max(timed.stop_s, stopped.get(timed.device, 0.0))
    return waits


def message_waits(
    graph: TaskGraph, times: Sequence[TaskTimes], links: Mapping[DeviceId, Link]
) -> Waits:
    """Per device: seconds that a message with a peer took it, of messages for which tasks waited.

    Messages wait for each other at their ends and on wires. So all of a request's are replayed from
    when their tasks ended, with the present costs of `links` and without any cost per message: what
    a message took in truth beyond the latter, relative to the difference, corrects the costs.
    """
    by_task = {timed.task: timed for timed in times}
    messages = _messages(graph, by_task, links)
    expected = _arrivals(messages, by_task, links, 1.0)
    least = _arrivals(messages, by_task, links, 0.0)
    last: dict[int, int] = {}
    for k, message in enumerate(messages):
        for reader in message.readers:
            if reader not in last or expected[last[reader]] < expected[k]:
                last[reader] = k
    own: dict[int, float] = defaultdict(float)
    for passed in graph.sketch.passed:
        maker, taker = by_task.get(passed.source), by_task.get(passed.reader)
        if maker and taker and maker.device == taker.device:
            own[passed.reader] = max(own[passed.reader], maker.stop_s)
    waits: Waits = {}
    for reader, k in last.items():
        task, message = by_task[reader], messages[k]
        of_both = (task, by_task[message.source])
        if any(timed.shared or timed.relayed for timed in of_both) or task.described_last:
            continue
        if expected[k] <= own[reader]:
            continue
        ratio = (task.ready_s - least[k]) / (expected[k] - least[k])
        for device in message.ends:
            waits.setdefault(device, []).append(_message_s(links[device]) * ratio)
    return waits


def _messages(
    graph: TaskGraph, by_task: Mapping[int, TaskTimes], links: Mapping[DeviceId, Link]
) -> list[_Message]:
    """What the devices sent to each other."""
    sizes: dict[tuple[int, DeviceId], int] = defaultdict(int)
    readers: dict[tuple[int, DeviceId], list[int]] = defaultdict(list)
    for passed in graph.sketch.passed:
        if passed.source in by_task and passed.reader in by_task:
            key = (passed.source, DeviceId(by_task[passed.reader].device))
            sizes[key] += passed.bytes
            readers[key].append(passed.reader)
    messages = []
    for (source, to), size in sizes.items():
        ends = (DeviceId(by_task[source].device), to)
        if ends[0] != to and links.keys() >= set(ends):
            messages.append(_Message(source, ends, size, tuple(readers[source, to])))
    return messages


def _arrivals(
    messages: Sequence[_Message],
    by_task: Mapping[int, TaskTimes],
    links: Mapping[DeviceId, Link],
    share: float,
) -> list[float]:
    """When each message would have been handled at its other end, if a message took both ends this
    share of what is believed. Ends and wires handle one at a time.
    """
    free: dict[tuple[DeviceId, str], float] = defaultdict(lambda: -math.inf)
    arrived = [0.0] * len(messages)

    def handled(now: float, device: DeviceId, size_bytes: int) -> float:
        link, end = links[device], (device, "end")
        seconds = share * _message_s(link) + size_bytes * link.far.to_peers.byte_s
        free[end] = max(now, free[end]) + seconds
        return free[end]

    events = [(by_task[message.source].stop_s, k, "sent") for k, message in enumerate(messages)]
    heapq.heapify(events)
    while events:
        now, k, what = heapq.heappop(events)
        message = messages[k]
        sender, to = message.ends
        if what == "sent":
            left = handled(now, sender, message.size_bytes)
            heapq.heappush(events, (left, k, "on its way"))
        elif what == "on its way":
            wires = ((sender, "up"), (to, "down"))
            start = max(now, *(free[wire] for wire in wires))
            both = [links[end] for end in message.ends]
            slower = max(both, key=lambda link: link.occupied_s(message.size_bytes))
            stop = start + slower.occupied_s(message.size_bytes)
            free.update(dict.fromkeys(wires, stop))
            heapq.heappush(events, (stop + slower.latency_s, k, "there"))
        else:
            arrived[k] = handled(now, to, message.size_bytes)
    return arrived


def _message_s(link: Link) -> float:
    return max(LEAST_MESSAGE_S, link.far.to_peers.message_s)
