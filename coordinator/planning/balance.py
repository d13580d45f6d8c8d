"""Tiles that finish together [AOFL, Eq. 6]: exact, by bisection over the finishing time.

For a fixed order of devices, a time T is feasible if giving each device in turn as many rows as
it finishes by T uses up the map. A tile's cost grows with its end and falls with its beginning,
so taking as much as possible is never wrong, and the smallest feasible T is the optimum. Tiles
may be empty: an empty tile costs nothing, so a device that is not worth its message is left out.

All blocks that end at one boundary, and all subsets of devices asked for, are solved together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# [k, d]: whether subset k has device d.
Members = NDArray[np.bool_]

# Each round halves the interval, or better; doubles have 52 bits.
_MOST_ROUNDS = 64
_RELATIVE_GAP = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class TileCosts:
    """What the rows [a, b), a < b, cost device d in block m:
    `fixed[d, m] + ends[d, m, b] - begins[d, m, a]` seconds. Both never fall along rows.
    """

    fixed: Floats
    begins: Floats
    ends: Floats

    @property
    def devices(self) -> int:
        """Devices in their order."""
        return int(self.fixed.shape[0])

    @property
    def blocks(self) -> int:
        """Blocks that are solved together."""
        return int(self.fixed.shape[1])

    @property
    def rows(self) -> int:
        """Rows of the map that is divided."""
        return int(self.ends.shape[2]) - 1

    def seconds(self, device: int, block: Ints, start: Ints, stop: Ints) -> Floats:
        """Cost of tiles; nothing for empty ones."""
        # One index into flat arrays: looking up by several takes numpy twice as long.
        place = block * (self.rows + 1)
        cost = self.fixed[device].take(block)
        cost += self.ends[device].ravel().take(place + stop)
        cost -= self.begins[device].ravel().take(place + start)
        return np.where(stop > start, cost, 0.0)


def prefixes(count: int) -> Members:
    """The first k of `count` devices, k = 1 .. count."""
    return np.tri(count, dtype=np.bool_)


def balanced(costs: TileCosts, members: Members | None = None) -> tuple[Floats, Ints]:
    """For each subset `members[k]` of the devices (their prefixes, if not given) and each block:
    the least finishing time of the slowest tile, `[k, m]`, and where the tiles end,
    `[k, m, D + 1]` from 0 to the map's rows.
    """
    chosen = prefixes(costs.devices) if members is None else members
    greedy = _Greedy(costs, chosen)
    best_s, best = _one_device(costs, chosen)
    low = np.zeros_like(best_s)
    for _ in range(_MOST_ROUNDS):
        gap = best_s - low > _RELATIVE_GAP * best_s
        if not gap.any():
            break
        middle = np.where(gap, (low + best_s) / 2, best_s)
        marks, slowest, next_s = greedy.fill(middle)
        feasible = (marks[:, :, -1] == costs.rows) & (slowest <= best_s) & gap
        best_s = np.where(feasible, slowest, best_s)
        best = np.where(feasible[:, :, None], marks, best)
        # No T below the least cost of one more row anywhere divides the map differently.
        low = np.where(feasible | ~gap, low, np.maximum(middle, np.minimum(next_s, best_s)))
    return best_s, best


def _one_device(costs: TileCosts, members: Members) -> tuple[Floats, Ints]:
    """The best device of each subset takes everything."""
    count, rows = costs.devices, costs.rows
    alone = costs.fixed + costs.ends[:, :, rows] - costs.begins[:, :, 0]
    among = np.where(members[:, :, None], alone[None], np.inf)
    best = among.argmin(axis=1)
    marks = np.where(np.arange(count + 1)[None, None, :] > best[:, :, None], rows, 0)
    return among.min(axis=1), marks


class _Greedy:
    """Fills the map for given times, device by device."""

    def __init__(self, costs: TileCosts, members: Members) -> None:
        self.costs = costs
        self.users = [_chosen(members[:, d]) for d in range(costs.devices)]
        # One sorted array per device: each block's row of `ends`, lifted above the one before.
        span = costs.ends.max(axis=(1, 2)) - costs.ends.min(axis=(1, 2)) + 1.0
        self.lift = span[:, None] * np.arange(costs.blocks)[None, :]
        self.lifted = (costs.ends + self.lift[:, :, None]).reshape(costs.devices, -1)
        self.top = costs.ends[:, :, -1]

    def fill(self, time_s: Floats) -> tuple[Ints, Floats, Floats]:
        """Tile ends `[k, m, D + 1]`, the slowest tile, and the least time above `time_s` at which
        some tile would take one row more.
        """
        costs = self.costs
        count, rows, subsets = costs.devices, costs.rows, len(time_s)
        marks = np.zeros((subsets, costs.blocks, count + 1), dtype=np.int64)
        slowest = np.zeros((subsets, costs.blocks))
        next_s = np.full((subsets, costs.blocks), np.inf)
        blocks = np.broadcast_to(np.arange(costs.blocks), (subsets, costs.blocks))
        for d, users in enumerate(self.users):
            block, start = blocks[users], marks[users, :, d]
            stop = self._reach(d, block, start, time_s[users])
            marks[:, :, d + 1] = marks[:, :, d]
            marks[users, :, d + 1] = stop
            slowest[users] = np.maximum(slowest[users], costs.seconds(d, block, start, stop))
            more = costs.seconds(d, block, start, np.minimum(stop + 1, rows))
            before = next_s[users]
            next_s[users] = np.where(stop < rows, np.minimum(before, more), before)
        return marks, slowest, next_s

    def _reach(self, d: int, block: Ints, start: Ints, time_s: Floats) -> Ints:
        """The last row that device `d` can end before, if it begins at `start`."""
        costs = self.costs
        place = block * (costs.rows + 1)
        allowed = time_s - costs.fixed[d].take(block)
        allowed += costs.begins[d].ravel().take(place + start)
        query = np.minimum(allowed, self.top[d].take(block)) + self.lift[d].take(block)
        found = np.searchsorted(self.lifted[d], query, side="right") - 1 - place
        stop: Ints = np.maximum(start, found)
        return stop


def _chosen(users: NDArray[np.bool_]) -> slice | Ints:
    """Which subsets use a device: a slice, which costs no copies, if they are all the last ones."""
    (found,) = np.nonzero(users)
    return slice(int(found[0]), None) if len(found) and users[found[0] :].all() else found
