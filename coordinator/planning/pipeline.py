"""The event simulator's rules on numbers alone: what a search can afford hundreds of times.

`simulate` runs the scheduler itself over boxes, and stays the judge of every plan. This is the
same discipline (links first come first served, one task at a time per device, boxes sent as they
come in, barriers, partial sums, boxes kept or passed on by peers) for tasks that are given as
seconds and bytes; a test holds the two equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from coordinator.planning.devices import Cluster, Device, Link

# Where a read comes from if the request brought it.
REQUEST = -1
# Tasks and their bytes.
_Parts = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor of a task's input: `pieces` are (task that makes it, bytes), and it is the
    `place`-th output there. Of a `summed` one every piece is a partial sum of the whole, which is
    sent once, when all are there.
    """

    size_bytes: int
    pieces: tuple[tuple[int, int], ...]
    summed: bool = False
    place: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One task; the tasks of a block follow each other, blocks in order. `direct`: what it reads
    of other tasks comes from them, not through the host.
    """

    block: int
    device: int
    compute_s: float
    size_bytes: int
    reads: tuple[Read, ...]
    barrier: bool = False
    direct: bool = False


def latency_s(steps: Sequence[Step], cluster: Cluster, last: Iterable[int]) -> float:
    """Seconds from the request until the outputs of the tasks `last` are at the host."""
    return _Run(steps, cluster, frozenset(last)).run()


class _Run:
    """One request."""

    def __init__(self, steps: Sequence[Step], cluster: Cluster, last: frozenset[int]) -> None:
        self.steps, self.devices, self.last = steps, cluster.devices, set(last)
        self.medium, self.uplink = cluster.medium, cluster.uplink
        self.queue: list[tuple[float, int, Callable[..., None], object]] = []
        self.order = count()
        self.now = 0.0
        self.free: dict[object, float] = {}
        self.done = [False] * len(steps)
        self.missing = [sum(read.size_bytes for read in step.reads) for step in steps]
        self.undone: dict[int, int] = {}
        # Per task: who gets what of it through the host, and who straight from it.
        self.readers: list[list[tuple[int, int, int]]] = [[] for _ in steps]
        self.routes: list[_Parts] = [[] for _ in steps]
        self.brought = [0] * len(steps)
        self.sums: dict[int, list[tuple[list[int], int]]] = {}
        self.held = [k for k, step in enumerate(steps) if step.barrier and step.block > 0]
        for k, step in enumerate(steps):
            self.undone[step.block] = self.undone.get(step.block, 0) + 1
            for read in step.reads:
                self._wire(k, step, read)
        for readers in self.readers:
            readers.sort()

    def _wire(self, k: int, step: Step, read: Read) -> None:
        for source, size in read.pieces:
            if source == REQUEST:
                self.brought[k] += size
            elif step.direct:
                self.routes[source].append((k, size))
            else:
                self.readers[source].append((read.place, k, 0 if read.summed else size))
        if read.summed:
            sources = [source for source, _ in read.pieces]
            self.sums.setdefault(k, []).append((sources, read.size_bytes))

    def run(self) -> float:
        first = [
            (k, self._all(k) if step.barrier else self.brought[k])
            for k, step in enumerate(self.steps)
            if not step.barrier or step.block == 0
        ]
        self._send([(k, size) for k, size in first if size])
        while self.last:
            self.now, _, happens, what = heapq.heappop(self.queue)
            happens(what)
        return self.now

    def _at(self, when: float, happens: Callable[..., None], what: object) -> None:
        heapq.heappush(self.queue, (when, next(self.order), happens, what))

    def _all(self, k: int) -> int:
        """What a task gets from the host at once, when a barrier has passed."""
        if not self.steps[k].direct:
            return sum(read.size_bytes for read in self.steps[k].reads)
        return self.brought[k]

    def _send(self, parts: _Parts) -> None:
        """What one event sends to one device is one message."""
        messages: dict[int, _Parts] = {}
        for part in parts:
            d = self.steps[part[0]].device
            if d in messages:
                messages[d].append(part)
            else:
                messages[d] = [part]
        for d, tasks in messages.items():
            link = self.devices[d].link
            size = tasks[0][1] if len(tasks) == 1 else sum(each for _, each in tasks)
            stop = self._transfer(d, size, "down", self.now)
            arrival = stop + link.latency_s + size * link.endpoint_byte_s
            for part in tasks:
                self._at(arrival, self._filled, part)

    def _transfer(self, d: int, size: int, direction: str, begin: float) -> float:
        device, free, uplink = self.devices[d], self.free, self.uplink
        seconds = device.link.message_s + size / device.link.bytes_per_s
        if device.host:
            return begin + seconds
        own, shared = (direction, d), (direction, "host")
        if self.medium == "air":
            start = max(begin, free.get("air", 0.0))
            free["air"] = start + seconds
        elif uplink is not None:
            start = max(begin, free.get(own, 0.0), free.get(shared, 0.0))
            free[own] = start + seconds
            free[shared] = start + uplink.message_s + size / uplink.bytes_per_s
        else:
            start = max(begin, free.get(own, 0.0))
            free[own] = start + seconds
        return start + seconds

    def _filled(self, part: tuple[int, int]) -> None:
        k, size = part
        self.missing[k] -= size
        if self.missing[k] > 0:
            return
        step = self.steps[k]
        stop = max(self.now, self.free.get(step.device, 0.0)) + step.compute_s
        self.free[step.device] = stop
        self._at(stop, self._computed, k)

    def _computed(self, k: int) -> None:
        step = self.steps[k]
        device = self.devices[step.device]
        self._pass_on(k, device)
        if self.routes[k] and not self.readers[k] and k not in self.last:
            self._at(self.now + device.link.latency_s, self._home, k)
            return
        begin = self.now + step.size_bytes * device.link.endpoint_byte_s
        stop = self._transfer(step.device, step.size_bytes, "up", begin)
        self._at(stop + device.link.latency_s, self._home, k)

    def _pass_on(self, k: int, device: Device) -> None:
        peers: dict[int, _Parts] = {}
        for reader, size in self.routes[k]:
            peers.setdefault(self.steps[reader].device, []).append((reader, size))
        for d, parts in peers.items():
            arrival = self.now
            if d != self.steps[k].device:
                total = sum(size for _, size in parts)
                arrival = self._peer(self.steps[k].device, d, total)
            for part in parts:
                self._at(arrival, self._filled, part)

    def _peer(self, source: int, target: int, size: int) -> float:
        here, there = self.devices[source].link, self.devices[target].link
        slower: Link = max(here, there, key=lambda link: link.transfer_s(size))
        seconds = slower.message_s + size / slower.bytes_per_s
        busy: dict[object, float] = {("up", source): seconds, ("down", target): seconds}
        if self.medium == "air":
            busy = {"air": 2 * seconds}
        elif self.medium == "star" and self.uplink is not None:
            shared = self.uplink.message_s + size / self.uplink.bytes_per_s
            busy |= {("up", "host"): shared, ("down", "host"): shared}
        begin = self.now + size * here.endpoint_byte_s
        start = max(begin, *(self.free.get(name, 0.0) for name in busy))
        for name, each in busy.items():
            self.free[name] = start + each
        return start + max(busy.values()) + slower.latency_s + size * there.endpoint_byte_s

    def _home(self, k: int) -> None:
        """A task is merged: what waited for it can be sent."""
        self.done[k] = True
        self.last.discard(k)
        self.undone[self.steps[k].block] -= 1
        passed = [each for each in self.held if self._passed(each)] if self.held else []
        parts: dict[int, int] = {}
        for _, reader, moved in self.readers[k]:
            size = moved
            if not self.steps[reader].barrier:
                if reader in self.sums:
                    size += self._sum(reader, k)
                parts[reader] = parts.get(reader, 0) + size
            elif reader in passed:
                parts[reader] = self._all(reader)
        for reader in passed:
            self.held.remove(reader)
            parts[reader] = self._all(reader)
        self._send([(reader, size) for reader, size in parts.items() if size])

    def _sum(self, reader: int, k: int) -> int:
        """What a task gets of sums to which `k` was the last to add."""
        return sum(
            size
            for sources, size in self.sums[reader]
            if k in sources and all(self.done[source] for source in sources)
        )

    def _passed(self, k: int) -> bool:
        block = self.steps[k].block
        return not any(left for each, left in self.undone.items() if each < block)
