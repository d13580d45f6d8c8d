"""`lw`: layer-wise parallelism, every unit its own block [AOFL, Eq. 1 and 2].

Each unit is divided into equal tiles over all devices, in the best of the grids, and gathered
before the next one. AOFL's baseline; it pays where links are fast and maps are small.
"""

from __future__ import annotations

import numpy as np

from coordinator.planning.decide import Decision, planned
from coordinator.planning.devices import Cluster
from coordinator.planning.options import alone, grids
from coordinator.planning.plan import Plan
from coordinator.planning.search import cheapest
from coordinator.planning.tables import Tables
from models.units import Network


def lw(network: Network, cluster: Cluster) -> Plan:
    """Every unit alone, in as many equal tiles as there are devices."""
    return planned(network, cluster, "lw", _decide)


def _decide(tables: Tables) -> Decision:
    split_s, split = cheapest(grids(tables, [len(tables.devices)])[0])
    _, whole = cheapest(alone(tables))
    blocks = []
    for start in range(tables.marks - 1):
        end = start + 1
        splits = np.isfinite(split_s[start, end])
        blocks.append((start, end, (split if splits else whole)(start, end)))
    return Decision(blocks, otherwise="the maps have fewer rows and columns than devices")
