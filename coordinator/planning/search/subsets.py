"""Which subsets of devices are worth trying.

AOFL adds devices in the order of their frequency; with unequal links the best k devices need not be
the first k. But a device that is at least as good as another in everything (each layer's rates,
link, memory) can replace it in any plan without loss under the additive cost. So only subsets have
to be tried that contain, with each device, all that dominate it: with equal links these are AOFL's
prefixes, and with unequal ones they are still few.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from coordinator.planning.search.balance import Members
from coordinator.planning.search.tables import Rank, Tables

# More subsets than this take too long: prefixes of several rankings are tried instead.
MOST_SUBSETS = 24
# Up to so many devices every number of them is tried, of more those that differ by a quarter or
# less.
_EVERY = 16


def counts_of(devices: int) -> list[int]:
    """How many of so many devices are tried together: from one to all."""
    steps = [k for k in range(1, devices) if k <= _EVERY or k % (1 << k.bit_length() - 3) == 0]
    return [*steps, devices]


def subsets_of(tables: Tables) -> Members:
    """[k, d]: subsets of the tables' devices, the smallest first. If there are few enough, one of
    them is optimal under any additive cost that grows with rates, links and memory.
    """
    better = _dominance(tables)
    found: list[int] = []
    for subset in _closed(better):
        found.append(subset)
        if len(found) > MOST_SUBSETS:
            found = sorted(set(_prefixes(tables)))
            break
    found.sort(key=lambda subset: (subset.bit_count(), subset))
    count = len(tables.devices)
    return np.array([[bool(subset >> d & 1) for d in range(count)] for subset in found])


def _dominance(tables: Tables) -> Sequence[int]:
    """For each device, the set of devices that dominate it, as bits; of equals the first
    dominates.
    """
    count = len(tables.devices)
    traits = [tables.traits(Rank(d)) for d in range(count)]
    better = [0] * count
    for one in range(count):
        for other in range(count):
            if one != other and bool((traits[one] <= traits[other]).all()):
                equal = bool((traits[one] == traits[other]).all())
                if not equal or one < other:
                    better[other] |= 1 << one
    return better


def _closed(better: Sequence[int]) -> Iterator[int]:
    """Non-empty sets that contain, with each device, all that dominate it."""
    order = sorted(range(len(better)), key=lambda d: better[d].bit_count())

    def extend(place: int, chosen: int) -> Iterator[int]:
        if place == len(order):
            if chosen:
                yield chosen
            return
        d = order[place]
        if better[d] & ~chosen == 0:
            yield from extend(place + 1, chosen | 1 << d)
        yield from extend(place + 1, chosen)

    return extend(0, 0)


def _prefixes(tables: Tables) -> Iterator[int]:
    """The first k devices by rate [AOFL], by link, by the whole network alone, and by a share of
    its computation with all of its transfers.
    """
    count, last = len(tables.devices), tables.last
    tried = counts_of(count)
    alone, compute = tables.alone_s[:, 0, last], tables.compute_s[:, 0, last]
    by_rate = np.arange(count)
    for ranking in (by_rate, tables.byte_s, alone, alone - compute + compute / count):
        chosen = 0
        for d in np.argsort(ranking, kind="stable"):
            chosen |= 1 << int(d)
            if chosen.bit_count() in tried:
                yield chosen
