"""Explains, in sentences with numbers, why a plan uses as many devices as it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.options import Option
from coordinator.planning.search import best_cuts, cheapest
from coordinator.planning.tables import Tables
from coordinator.tasks.plan import DeviceId

Blocks = Sequence[tuple[int, int, Option]]


@dataclass(frozen=True, slots=True)
class Growing:
    """Best totals as devices are added: `free_s[k - 1]` with at most the first k devices per block,
    `split_s[k - 1]` if every divisible block is divided over the first k.
    """

    free_s: tuple[float, ...]
    split_s: tuple[float, ...]

    @classmethod
    def of(cls, by_count: Sequence[Sequence[Option]]) -> Growing:
        """From the options for exactly k devices, k = 1 .. all."""
        costs = [cheapest(options)[0] for options in by_count]
        free = np.minimum.accumulate(np.stack(costs), axis=0)
        forced = [np.where(np.isfinite(each), each, costs[0]) for each in costs]
        return cls(
            tuple(best_cuts(each)[0] for each in free),
            tuple(best_cuts(each)[0] for each in forced),
        )


def why_this_many(tables: Tables, blocks: Blocks, growing: Growing) -> tuple[str, ...]:
    """The prediction, those for other numbers of devices, and the reason if nothing is divided."""
    last = tables.marks - 1
    alone_s = float(tables.alone_s[:, 0, last].min())
    total_s = growing.free_s[-1]
    used = _used(blocks)
    notes = [
        f"By its published cost {len(used)} of {len(tables.devices)} devices are "
        f"{alone_s / total_s:.2f} times as fast as the best one alone."
    ]
    if len(tables.devices) > 1:
        steps = ", ".join(
            f"{k}: {alone_s / each:.2f}" for k, each in enumerate(growing.free_s, start=1)
        )
        notes.append(f"With at most this many of the fastest devices per block: {steps}.")
    if len(used) == 1 and len(tables.devices) > 1:
        count = 2 + int(np.argmin(growing.split_s[1:]))
        notes.append(
            f"Here splitting does not pay: the best split, over {count} devices, takes "
            f"{growing.split_s[count - 1] / total_s:.2f} times as long, because its transfers and "
            "halos cost more than the computation that they save."
        )
    return tuple(notes)


def devices_left_out(tables: Tables, blocks: Blocks, growing: Growing) -> dict[DeviceId, str]:
    """For each unused device, what using it would cost."""
    used = _used(blocks)
    total_s = growing.free_s[-1]
    alone_s = tables.alone_s[:, 0, -1]
    reasons: dict[DeviceId, str] = {}
    for rank, device in enumerate(tables.devices):
        split_s = growing.split_s[rank]
        if device.id in used:
            continue
        reasons[device.id] = f"alone it would take {alone_s[rank] / total_s:.2f} times as long"
        if rank:
            reasons[device.id] += (
                f", and every block split over the {rank + 1} fastest "
                f"{split_s / total_s:.2f} times as long"
            )
    return reasons


def _used(blocks: Blocks) -> set[DeviceId]:
    return {device.id for start, end, option in blocks for device, _ in option.shares(start, end)}
