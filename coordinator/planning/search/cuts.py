"""The best cuts under an additive cost [AOFL, Eq. 5 and Algorithm 1].

    t_o(i, e) = min over k of t(i, k) + t_o(k, e)

The published recursion over (first unit, count) with memoisation is a shortest path over marks:
only suffixes are needed, so the table is filled from the end.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np

from coordinator.planning.geometry.marks import Mark
from coordinator.planning.search.division_options import Option
from models.tensors.arrays import Floats

Cuts = tuple[tuple[Mark, Mark], ...]


def cheapest(
    options: Sequence[Option], cost: Callable[[Option], Floats] = attrgetter("seconds")
) -> tuple[Floats, Callable[[Mark, Mark], Option]]:
    """For each block, the cost of its cheapest option, and that option; the first among equals."""
    stacked = np.stack([cost(option) for option in options])
    chosen = stacked.argmin(axis=0)
    return stacked.min(axis=0), lambda start, end: options[chosen[start, end]]


def best_cuts(seconds: Floats) -> tuple[float, Cuts]:
    """The least total over all ways to cut [0, n) into blocks, and the blocks; infinite and none if
    there is no way. `seconds[i, e]` is the cost of block [i, e).
    """
    count = len(seconds) - 1
    rest = np.full(count + 1, np.inf)
    rest[count] = 0.0
    next_cut = np.zeros(count + 1, dtype=np.int64)
    for start in range(count - 1, -1, -1):
        totals = seconds[start, start + 1 :] + rest[start + 1 :]
        best = int(totals.argmin())
        rest[start], next_cut[start] = totals[best], start + 1 + best
    if not np.isfinite(rest[0]):
        return float("inf"), ()
    cuts, start = [], 0
    while start < count:
        stop = int(next_cut[start])
        cuts.append((Mark(start), Mark(stop)))
        start = stop
    return float(rest[0]), tuple(cuts)
