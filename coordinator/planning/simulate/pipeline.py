"""The event simulator's rules on plain numbers, fast enough for searches.

`simulate` runs the scheduler itself over boxes, and remains the judge of every plan. This module
follows the same rules (boxes sent as they become available, barriers, partial sums, boxes kept or
passed on by peers) with the same media, for tasks given as seconds and bytes; a test checks that
both agree.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from coordinator.planning.simulate.media import Machines, Media
from coordinator.tasks.scheduler import in_parts

# The maker of a tensor that came with the request.
REQUEST = 0
# Tasks and their bytes.
_Parts = list[tuple[int, int]]


@dataclass(frozen=True)
class PipelineTask:
    """One task of a block, which reads `read_bytes` and makes `outputs`, (bytes, whether they are a
    network output) by place.

    `pieces` of what it reads are (task that computes it, place among its outputs, bytes), where
    tasks are counted from the first of the reader's block, so below 0. `sums` are (tasks, bytes):
    what these compute are partial sums, of which the host sends the whole, once all are there;
    their pieces have no bytes. `direct`: it gets the outputs of other tasks from their devices.
    """

    device: int
    compute_s: float
    outputs: tuple[tuple[int, bool], ...]
    read_bytes: int
    pieces: tuple[tuple[int, int, int], ...]
    sums: tuple[tuple[tuple[int, ...], int], ...]
    barrier: bool = False
    direct: bool = False

    @cached_property
    def answers(self) -> bool:
        """Whether it makes any of a network output."""
        return any(size and last for size, last in self.outputs)


def latency_s(blocks: Sequence[Sequence[PipelineTask]], machines: Machines) -> float:
    """Seconds from the request until its answer is at the host."""
    return _Run(blocks, machines).run()


class _Run:
    """One request."""

    def __init__(self, blocks: Sequence[Sequence[PipelineTask]], machines: Machines) -> None:
        self.steps = steps = [step for block in blocks for step in block]
        self.block_of = [index for index, block in enumerate(blocks) for _ in block]
        self.answering = frozenset(k for k, step in enumerate(steps) if step.answers)
        self.last = set(self.answering)
        self.media = Media(machines)
        self.latency_s = [link.latency_s for link in machines.links]
        self.done = [False] * len(steps)
        self.missing = [0] * len(steps)
        # When each task is set up; below 0: its device has not been told of it.
        self.set_up_s = [-1.0] * len(steps)
        # For each block, the number of tasks that are not merged; and the first block with any.
        self.undone = [len(block) for block in blocks]
        self.open = 0
        # Per task: the tasks that get its outputs through the host, and directly.
        self.readers: list[list[tuple[int, int, int]]] = [[] for _ in steps]
        self.routes: list[list[tuple[int, int, int]]] = [[] for _ in steps]
        self.brought = [0] * len(steps)
        self.sums: dict[int, list[tuple[list[int], int]]] = {}
        self.held = [k for k, step in enumerate(steps) if step.barrier and self.block_of[k] > 0]
        # If peers exchange boxes, all tasks are described when the request begins.
        self.direct = any(step.direct for step in steps)
        self.described = [self.direct] * len(steps)
        k = 0
        for block in blocks:
            first = k
            for step in block:
                self._wire(k, first, step)
                k += 1
        for tasks in (*self.readers, *self.routes):
            if len(tasks) > 1:
                tasks.sort()

    def _wire(self, k: int, first: int, step: PipelineTask) -> None:
        onward = self.routes if step.direct else self.readers
        for source, place, size in step.pieces:
            if source == REQUEST:
                self.brought[k] += size
            else:
                onward[first + source].append((place, k, size))
        if step.sums:
            self.sums[k] = [([first + task for task in tasks], size) for tasks, size in step.sums]
        self.missing[k] = step.read_bytes

    def run(self) -> float:
        first = [
            (k, self._all(k) if step.barrier else self.brought[k])
            for k, step in enumerate(self.steps)
            if not step.barrier or self.block_of[k] == 0
        ]
        first = [(k, size) for k, size in first if size or not self.steps[k].read_bytes]
        later = self._later({k for k, size in first if size}) if self.direct else []
        follow = set(chain.from_iterable(later))
        if self.direct:
            for k, step in enumerate(self.steps):
                if k not in follow:
                    self.media.describe_tasks(step.device, 1)
        self._send([(k, size) for k, size in first if k not in follow])
        for part in later:
            d = self.steps[part[0]].device
            self.media.describe_tasks(d, len(part))
            self.media.down(d, 0, self._told, [(k, 1) for k in part])
        self.media.run(self.last)
        return self.media.now

    def _later(self, fed: Set[int]) -> list[list[int]]:
        """The tasks that are described after those to which the host sends their inputs, in parts;
        each of them waits for its description, too.
        """
        waiting: dict[int, list[int]] = {}
        for k, step in enumerate(self.steps):
            if k not in fed:
                waiting.setdefault(step.device, []).append(k)
        later = in_parts(waiting.values())
        for k in chain.from_iterable(later):
            self.missing[k] += 1
        return later

    def _all(self, k: int) -> int:
        """Everything that a task gets from the host when its barrier has passed."""
        if not self.steps[k].direct:
            return self.steps[k].read_bytes
        return self.brought[k]

    def _send(self, parts: _Parts) -> None:
        """Sends what one event gives to one device as a single message."""
        messages: dict[int, _Parts] = {}
        for part in parts:
            d = self.steps[part[0]].device
            if not self.described[part[0]]:
                self.described[part[0]] = True
                self.media.describe_tasks(d, 1)
            if d in messages:
                messages[d].append(part)
            else:
                messages[d] = [part]
        for d, tasks in messages.items():
            self.media.down(d, sum(size for _, size in tasks), self._told, tasks)

    def _told(self, parts: _Parts) -> None:
        for k, _ in parts:
            if self.set_up_s[k] < 0:
                self.set_up_s[k] = self.media.set_up(self.steps[k].device)
        self._arrived(parts)

    def _arrived(self, parts: _Parts) -> None:
        missing = self.missing
        for k, size in parts:
            left = missing[k] = missing[k] - size
            if left <= 0:
                step = self.steps[k]
                self.media.compute(step.device, step.compute_s, self.set_up_s[k], self._computed, k)

    def _computed(self, k: int) -> None:
        step = self.steps[k]
        self._pass_on(k, step.device)
        if size := self._size_to_host(k):
            self.media.up(step.device, size, self._home, k)
        elif self.held or self.readers[k]:
            self.media.at(self.media.now + self.latency_s[step.device], self._home, k)

    def _size_to_host(self, k: int) -> int:
        """Bytes that the host merges of a task: network outputs, and what is read through the host;
        everything if no task reads it.
        """
        outputs = self.steps[k].outputs
        if not (self.readers[k] or k in self.answering):
            return 0 if self.routes[k] else sum(size for size, _ in outputs)
        read = {place for place, _, _ in self.readers[k]}
        return sum(size for place, (size, last) in enumerate(outputs) if last or place in read)

    def _pass_on(self, k: int, device: int) -> None:
        """Sends to peers first; what stays on the device is used when the messages are written."""
        if not self.routes[k]:
            return
        steps = self.steps
        peers: dict[int, _Parts] = {}
        sizes: dict[int, int] = {}
        for _, reader, size in self.routes[k]:
            d = steps[reader].device
            if d in peers:
                peers[d].append((reader, size))
                sizes[d] += size
            else:
                peers[d], sizes[d] = [(reader, size)], size
        kept = peers.pop(device, [])
        for d, parts in peers.items():
            self.media.across(device, d, sizes[d], self._arrived, parts)
        self._arrived(kept)

    def _home(self, k: int) -> None:
        """A task is merged: data that waited for it can be sent."""
        self.done[k] = True
        self.last.discard(k)
        self.undone[self.block_of[k]] -= 1
        passed = self._passed() if self.held else []
        if not (passed or self.readers[k]):
            return
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
        self._send([(k, size) for k, size in parts.items() if size or not self.steps[k].read_bytes])

    def _sum(self, reader: int, k: int) -> int:
        """Bytes that a task gets of sums that `k` was the last to complete."""
        return sum(
            size
            for sources, size in self.sums[reader]
            if k in sources and all(self.done[source] for source in sources)
        )

    def _passed(self) -> list[int]:
        """Tasks whose barrier has passed now: all earlier blocks are merged."""
        before = self.open
        while self.open < len(self.undone) and not self.undone[self.open]:
            self.open += 1
        if self.open == before:
            return []
        return [k for k in self.held if self.block_of[k] <= self.open]
