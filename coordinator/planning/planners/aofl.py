"""`aofl`: adaptive optimal fused layers [AOFL, Algorithms 1 and 2, Eq. 5 and 6].

Devices are ranked by speed, then by bandwidth, and added one at a time (D <- D', a step that the
published Algorithm 2 omits). For every block the first k devices are tried, with strips that finish
together [Eq. 6] and with equal grids; for k = 1, any one device. For a single unit the better of
t_l and t_f is used, where the published Algorithm 1 takes the cost t_f but emits the layer-wise
tiles: both are options of the same table here.

Only the first k devices of the published order are tried, which defines this strategy; of many
devices not every k [counts_of]. `fused`
searches devices and their order, and is never slower.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.search.balance import prefixes
from coordinator.planning.search.cuts import best_cuts, cheapest
from coordinator.planning.search.decide import Decision, place, planned
from coordinator.planning.search.division_options import Option, alone, grids, strips
from coordinator.planning.search.subsets import counts_of
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from protos.wire.facts import DeviceId

_Blocks = Sequence[tuple[Mark, Mark, Option]]


@dataclass(frozen=True, slots=True)
class _Growing:
    """Best totals as devices are added: `free_s[i]` with at most the first `counts[i]` devices per
    block, `split_s[i]` if every divisible block is divided over the first `counts[i]`.
    """

    counts: Sequence[int]
    free_s: tuple[float, ...]
    split_s: tuple[float, ...]

    @classmethod
    def of(cls, counts: Sequence[int], by_count: Sequence[Sequence[Option]]) -> "_Growing":
        """From the options for exactly so many devices, from one to all."""
        costs = [cheapest(options)[0] for options in by_count]
        free = np.minimum.accumulate(np.stack(costs), axis=0)
        forced = [np.where(np.isfinite(cost), cost, costs[0]) for cost in costs]
        return cls(
            counts,
            tuple(best_cuts(cost)[0] for cost in free),
            tuple(best_cuts(cost)[0] for cost in forced),
        )


def aofl(network: Network, cluster: Cluster) -> Plan:
    """The best cuts, device subsets and tile sizes by the published cost."""
    return planned(network, cluster, "aofl", _decide)


def options_by_count(tables: Tables) -> Sequence[Sequence[Option]]:
    """For each number of devices that is tried [counts_of], the ways to run a block on exactly so
    many of the first devices; for one, on any.
    """
    count = len(tables.devices)
    several = counts_of(count)[1:]
    members = prefixes(count)[[k - 1 for k in several]]
    split = zip(strips(tables, members), grids(tables, several), strict=True)
    return [alone(tables), *([balanced, *equal] for balanced, equal in split)]


def _decide(tables: Tables) -> Decision:
    by_count = options_by_count(tables)
    _, blocks = place([option for options in by_count for option in options])
    growing = _Growing.of(counts_of(len(tables.devices)), by_count)
    return Decision(
        blocks,
        reasons=_devices_left_out(tables, blocks, growing),
        notes=_why_this_many(tables, blocks, growing),
    )


def _why_this_many(tables: Tables, blocks: _Blocks, growing: _Growing) -> tuple[str, ...]:
    """The prediction, those for other numbers of devices, and the reason if nothing is divided."""
    alone_s = float(tables.alone_s[:, 0, tables.last].min())
    total_s = growing.free_s[-1]
    used = _used(blocks)
    notes = [
        f"By its published cost {len(used)} of {len(tables.devices)} devices are "
        f"{alone_s / total_s:.2f} times as fast as the best one alone."
    ]
    if len(tables.devices) > 1:
        costs = zip(growing.counts, growing.free_s, strict=True)
        steps = ", ".join(f"{k}: {alone_s / latency_s:.2f}" for k, latency_s in costs)
        notes.append(f"With at most this many of the fastest devices per block: {steps}.")
    if len(used) == 1 and len(tables.devices) > 1:
        best = 1 + int(np.argmin(growing.split_s[1:]))
        notes.append(
            f"Here splitting does not pay: the best split, over {growing.counts[best]} devices, "
            f"takes {growing.split_s[best] / total_s:.2f} times as long, because its transfers and "
            "halos cost more than the computation that they save."
        )
    return tuple(notes)


def _devices_left_out(tables: Tables, blocks: _Blocks, growing: _Growing) -> dict[DeviceId, str]:
    """For each unused device, what using it would cost."""
    used = _used(blocks)
    total_s = growing.free_s[-1]
    alone_s = tables.alone_s[:, 0, -1]
    reasons: dict[DeviceId, str] = {}
    for rank, device in enumerate(tables.devices):
        place = bisect_left(growing.counts, rank + 1)
        if device.id in used:
            continue
        reasons[device.id] = f"alone it would take {alone_s[rank] / total_s:.2f} times as long"
        if rank:
            reasons[device.id] += (
                f", and every block split over the {growing.counts[place]} fastest "
                f"{growing.split_s[place] / total_s:.2f} times as long"
            )
    return reasons


def _used(blocks: _Blocks) -> set[DeviceId]:
    return {device.id for start, end, option in blocks for device, _ in option.shares(start, end)}
