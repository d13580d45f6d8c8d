"""Scheduling a task graph on heterogeneous processors [HEFT: Topcuoglu, Hariri and Wu, 2002].

Tasks are placed in order of their distance to the end (upward rank, Eq. 7 there), the longest
first, each on the processor where it ends earliest. Gaps between tasks that are placed already are
not used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

HeftTransfer = Callable[[int, int, int], float]
"""Seconds to transfer this many bytes from one processor to another."""


@dataclass(frozen=True, slots=True)
class HeftTask:
    """Takes `seconds[p]` on processor p, not before `ready_s[p]`, when its other inputs have
    arrived. `reads`: bytes that it needs from earlier tasks, by their index.
    """

    seconds: Sequence[float]
    ready_s: Sequence[float]
    reads: Mapping[int, int]


def longest_s(tasks: Sequence[HeftTask], begins_s: Sequence[float] | None = None) -> float:
    """Seconds of the longest path, with each task on its best processor and not before its
    `begins_s`: a lower bound for all placements.
    """
    ends: list[float] = []
    for k, task in enumerate(tasks):
        begin = max((ends[source] for source in task.reads), default=0.0)
        ends.append(min(task.seconds) + max(begin, begins_s[k] if begins_s else 0.0))
    return max(ends, default=0.0)


def placement(tasks: Sequence[HeftTask], transfer_s: HeftTransfer) -> list[int]:
    """The processor of each task; tasks come in topological order."""
    if not tasks:
        return []
    ranks = _ranks(tasks, transfer_s)
    free = [0.0] * len(tasks[0].seconds)
    placed: dict[int, tuple[int, float]] = {}
    # Among equals the first in topological order, so that no task precedes its inputs.
    for task in sorted(range(len(tasks)), key=lambda each: (-ranks[each], each)):
        ends = []
        for processor, seconds in enumerate(tasks[task].seconds):
            begin = max(free[processor], tasks[task].ready_s[processor])
            for source, size in tasks[task].reads.items():
                there, end = placed[source]
                moved_s = transfer_s(there, processor, size) if there != processor else 0.0
                begin = max(begin, end + moved_s)
            ends.append(begin + seconds)
        chosen = min(range(len(ends)), key=ends.__getitem__)
        free[chosen] = ends[chosen]
        placed[task] = (chosen, ends[chosen])
    return [placed[task][0] for task in range(len(tasks))]


def _ranks(tasks: Sequence[HeftTask], transfer_s: HeftTransfer) -> list[float]:
    """Seconds from each task's start to the end of everything, on the average processor."""
    pairs = list(permutations(range(len(tasks[0].seconds)), 2))
    sizes = {size for task in tasks for size in task.reads.values()}
    mean_s = {
        size: fmean(transfer_s(*pair, size) for pair in pairs) if pairs else 0.0 for size in sizes
    }
    after = [0.0] * len(tasks)
    ranks = [0.0] * len(tasks)
    for task in reversed(range(len(tasks))):
        ranks[task] = fmean(tasks[task].seconds) + after[task]
        for source, size in tasks[task].reads.items():
            after[source] = max(after[source], mean_s[size] + ranks[task])
    return ranks
