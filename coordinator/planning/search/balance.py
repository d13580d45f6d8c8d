"""Tiles that finish together [AOFL, Eq. 6]: exact, by bisection over the finishing time.

For a fixed order of devices, a time T is feasible if giving each device in turn as many rows as it
can finish by T covers the map. A tile's cost grows with its end and falls with its beginning, so
taking as much as possible is never wrong, and the smallest feasible T is the optimum. Tiles may be
empty: an empty tile costs nothing, so a device that is not worth its message is left out.

Many blocks, and all requested subsets of devices, are solved together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.tensors.arrays import Floats, Ints

# [k, d]: whether subset k has device d.
Members = NDArray[np.bool_]

# Rounds of bisection: each at least halves the interval, and doubles have 52 bits.
_MOST_ROUNDS = 64
_RELATIVE_GAP = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class TileCosts:
    """The seconds of rows [a, b), a < b, of a map of `rows[m]` on device d in block m: `fixed[d, m]
    + ends[d, p + b] - begins[d, p + a]`, where p = `places[m]`. Both are non-decreasing along rows.
    """

    fixed: Floats
    begins: Floats
    ends: Floats
    rows: Ints
    places: Ints

    @classmethod
    def of(cls, parts: Sequence[tuple[Floats, Floats, Floats]]) -> "TileCosts":
        """The costs of several blocks, given for each as `fixed` [d, m], `begins` and `ends` [d, m,
        rows + 1].
        """
        fixed, begins, ends = (
            np.concatenate(arrays, axis=1)
            for arrays in zip(
                *(
                    (one, two.reshape(len(two), -1), three.reshape(len(three), -1))
                    for one, two, three in parts
                ),
                strict=True,
            )
        )
        rows = np.repeat(
            [array.shape[2] - 1 for _, array, _ in parts], [array.shape[1] for _, array, _ in parts]
        )
        return cls(fixed, begins, ends, rows, np.cumsum(rows + 1) - rows - 1)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(self.fixed.shape[0])

    @property
    def blocks(self) -> int:
        """The number of blocks that are solved together."""
        return int(self.fixed.shape[1])

    def seconds(self, device: int, block: Ints, start: Ints, stop: Ints) -> Floats:
        """Seconds of tiles; 0 for empty ones."""
        # One index into flat arrays: numpy takes twice as long for several.
        place = self.places.take(block)
        cost = self.fixed[device].take(block)
        cost += self.ends[device].take(place + stop)
        cost -= self.begins[device].take(place + start)
        return np.where(stop > start, cost, 0.0)


def prefixes(count: int) -> Members:
    """The first k of `count` devices, k = 1 .. count."""
    return np.tri(count, dtype=np.bool_)


def balanced(costs: TileCosts, members: Members | None = None) -> tuple[Floats, Ints]:
    """For each subset `members[k]` of the devices (by default their prefixes) and each block: the
    least finishing time of the slowest tile, `[k, m]`, and where the tiles end, `[k, m, D + 1]`,
    from 0 to the map's rows.
    """
    chosen = prefixes(costs.devices) if members is None else members
    greedy = _Greedy(costs, chosen)
    best_s, best = _one_device(costs, chosen)
    low = np.zeros_like(best_s)
    for _ in range(_MOST_ROUNDS):
        (left,) = np.nonzero((best_s - low > _RELATIVE_GAP * best_s).any(axis=0))
        if not len(left):
            break
        was, under = best_s[:, left], low[:, left]
        gap = was - under > _RELATIVE_GAP * was
        middle = np.where(gap, (under + was) / 2, was)
        marks, slowest, next_s = greedy.fill(middle, left)
        feasible = (marks[:, :, -1] == costs.rows[left]) & (slowest <= was) & gap
        best_s[:, left] = now = np.where(feasible, slowest, was)
        best[:, left] = np.where(feasible[:, :, None], marks, best[:, left])
        # No T below the least cost of one more row anywhere gives another division.
        higher = np.maximum(middle, np.minimum(next_s, now))
        low[:, left] = np.where(feasible | ~gap, under, higher)
    return best_s, best


def _one_device(costs: TileCosts, members: Members) -> tuple[Floats, Ints]:
    """Gives everything to the best device of each subset."""
    last = costs.places + costs.rows
    alone = costs.fixed + costs.ends[:, last] - costs.begins[:, costs.places]
    among = np.where(members[:, :, None], alone[None], np.inf)
    best = among.argmin(axis=1)
    after = np.arange(costs.devices + 1)[None, None, :] > best[:, :, None]
    return among.min(axis=1), np.where(after, costs.rows[None, :, None], 0)


class _Greedy:
    """Fills the maps for given times, device by device."""

    def __init__(self, costs: TileCosts, members: Members) -> None:
        self.costs = costs
        self.users = [_chosen(members[:, d]) for d in range(costs.devices)]
        # One sorted array per device: each block's row of `ends`, shifted above the previous one.
        self.top = costs.ends[:, costs.places + costs.rows]
        spans = self.top - costs.ends[:, costs.places] + 1.0
        self.lift = np.cumsum(spans, axis=1) - spans - costs.ends[:, costs.places]
        self.lifted = costs.ends + np.repeat(self.lift, costs.rows + 1, axis=1)

    def fill(self, time_s: Floats, left: Ints) -> tuple[Ints, Floats, Floats]:
        """For the blocks `left` and times [k, left]: tile ends `[k, left, D + 1]`, the time of the
        slowest tile, and the least time above `time_s` at which some tile would take one more row.
        """
        costs = self.costs
        marks = np.zeros((*time_s.shape, costs.devices + 1), dtype=np.int64)
        slowest = np.zeros(time_s.shape)
        next_s = np.full(time_s.shape, np.inf)
        blocks = np.broadcast_to(left, time_s.shape)
        for d, users in enumerate(self.users):
            block, start = blocks[users], marks[users, :, d]
            rows = costs.rows.take(block)
            stop = self._reach(d, block, start, time_s[users])
            marks[:, :, d + 1] = marks[:, :, d]
            marks[users, :, d + 1] = stop
            slowest[users] = np.maximum(slowest[users], costs.seconds(d, block, start, stop))
            more = costs.seconds(d, block, start, np.minimum(stop + 1, rows))
            before = next_s[users]
            next_s[users] = np.where(stop < rows, np.minimum(before, more), before)
        return marks, slowest, next_s

    def _reach(self, d: int, block: Ints, start: Ints, time_s: Floats) -> Ints:
        """The last row before which device `d` can end if it begins at `start`."""
        costs = self.costs
        place = costs.places.take(block)
        allowed = time_s - costs.fixed[d].take(block)
        allowed += costs.begins[d].take(place + start)
        query = np.minimum(allowed, self.top[d].take(block)) + self.lift[d].take(block)
        found = np.searchsorted(self.lifted[d], query, side="right") - 1 - place
        stop: Ints = np.maximum(start, found)
        return stop


def _chosen(users: NDArray[np.bool_]) -> slice | Ints:
    """The subsets that use a device; a slice, which avoids copies, if they are the last ones."""
    (found,) = np.nonzero(users)
    return slice(int(found[0]), None) if len(found) and users[found[0] :].all() else found
