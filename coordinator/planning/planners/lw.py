"""`lw`: layer-wise parallelism, every unit its own block [AOFL, Eq. 1 and 2].

Each unit is divided into equal tiles over all devices, in the best grid over height and width or
over its output channels, and gathered before the next one. What has no map to divide (a fully
connected layer) stays whole if that costs less. This is AOFL's baseline; it pays if links are fast
and maps are small.
"""

import itertools
from functools import partial

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.search.connected import channel_slices
from coordinator.planning.search.cuts import cheapest
from coordinator.planning.search.decide import Decision, planned
from coordinator.planning.search.division_options import alone, grids
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.cut.units import Network


def lw(network: Network, cluster: Cluster) -> Plan:
    """Every unit in its own block, in as many equal tiles as there are devices."""
    return planned(network, cluster, "lw", partial(_decide, network))


def _decide(network: Network, tables: Tables) -> Decision:
    tiled = grids(tables, [len(tables.devices)])[0]
    sliced = channel_slices(network, tables)
    map_s, _ = cheapest(tiled)
    _, split = cheapest([*tiled, *sliced])
    _, unforced = cheapest([*alone(tables), *sliced])
    blocks = []
    for start, end in itertools.pairwise(tables.marks):
        has_map = np.isfinite(map_s[start, end])
        blocks.append((start, end, (split if has_map else unforced)(start, end)))
    return Decision(blocks, otherwise="the maps have fewer rows and columns than devices")
