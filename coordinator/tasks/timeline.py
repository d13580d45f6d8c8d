"""Where a request's time went: from observed task times to a timing."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went, in seconds.

    `queue`: admitted but not started. `scatter`, `compute` and `gather` are summed over blocks; at
    each moment, the last of these that was going on counts. Together with `queue` they make up
    `total`.
    """

    queue_s: float
    scatter_s: float
    compute_s: float
    gather_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """One attempt of a task, on the host's monotonic clock: when its last input was given to the
    connection (and the bytes of all), when it was ready, started and stopped, and when its last
    output was back at the host (0, and 0 bytes, if the host gets none). `shared`: other requests
    were on its device meanwhile, so it may have waited for them; `relayed`: what peers exchange by
    the plan went through the host; `described_last`: it waited for the host, not for its inputs.
    """

    task: int
    attempt: int
    device: str
    ready_s: float
    start_s: float
    stop_s: float
    sent_s: float = 0.0
    sent_bytes: int = 0
    received_s: float = 0.0
    received_bytes: int = 0
    shared: bool = False
    relayed: bool = False
    described_last: bool = False


@dataclass(frozen=True, slots=True)
class Passed:
    """Bytes that a task passes directly to another one."""

    source: int
    reader: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Sketch:
    """What a timeline needs of its plan, even after the plan is gone: each task's block, and what
    tasks pass to each other.
    """

    blocks: tuple[int, ...] = ()
    passed: tuple[Passed, ...] = ()


class Transits(dict[tuple[int, int], tuple[float, int]]):
    """By attempt at a task: when the last of its boxes moved, and the bytes of all."""

    def add(self, task: int, attempt: int, size_bytes: int, now: float) -> None:
        """Another box moved."""
        _, before = self.get((task, attempt), (now, 0))
        self[task, attempt] = (now, before + size_bytes)


@dataclass(slots=True)
class Timeline:
    """Collects a request's observations: `submitted_s` is when it left the queue, `ended_s` when
    all outputs were merged, `tasks` are what devices reported; `departures` are of boxes that were
    given to connections, `arrivals` of those that came back.
    """

    submitted_s: float
    ended_s: float = 0.0
    tasks: list[TaskTimes] = field(default_factory=list)
    departures: Transits = field(default_factory=Transits)
    arrivals: Transits = field(default_factory=Transits)

    def conclude(self, shared: Set[str] = frozenset(), *, relayed: bool = False) -> Timing:
        """Everything was reported: adds to the tasks' times those of their transfers, and whether
        their devices were `shared`, and what peers exchange was `relayed`.

        In the timing every moment counts once: as compute while any task computes, as gather while
        any finished task's output is still on its way, and as scatter otherwise.
        """
        for index, times in enumerate(self.tasks):
            attempt = times.task, times.attempt
            sent_s, sent_bytes = self.departures.get(attempt, (times.ready_s, 0))
            received_s, received_bytes = self.arrivals.get(attempt, (0.0, 0))
            self.tasks[index] = replace(
                times,
                sent_s=sent_s,
                sent_bytes=sent_bytes,
                received_s=received_s,
                received_bytes=received_bytes,
                shared=times.device in shared,
                relayed=relayed,
            )
        computing = _merge((task.start_s, task.stop_s) for task in self.tasks)
        returning = _merge((task.stop_s, max(task.stop_s, task.received_s)) for task in self.tasks)
        start_s, stop_s = self.submitted_s, self.ended_s
        compute_s, either_s = (
            sum(max(0.0, min(stop, stop_s) - max(start, start_s)) for start, stop in intervals)
            for intervals in (computing, _merge([*computing, *returning]))
        )
        total_s = stop_s - start_s
        return Timing(
            queue_s=0.0,
            scatter_s=max(0.0, total_s - either_s),
            compute_s=compute_s,
            gather_s=max(0.0, either_s - compute_s),
            total_s=total_s,
        )


def _merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, sorted and disjoint."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
