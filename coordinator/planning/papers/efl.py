"""`efl`: early fused layers [DeepThings; AOFL's second baseline].

The first L units are fused and divided into equal tiles over all devices; the rest runs on one
device. The best L is taken.
"""

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.search.cuts import cheapest
from coordinator.planning.search.decide import Decision, planned
from coordinator.planning.search.division_options import alone, grids
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.cut.units import Network


def efl(network: Network, cluster: Cluster) -> Plan:
    """One fused block over all devices, then one device."""
    return planned(network, cluster, "efl", _decide)


def _decide(tables: Tables) -> Decision:
    first, last = tables.marks[0], tables.last
    early_s, early = cheapest(grids(tables, [len(tables.devices)])[0])
    rest_s, rest = cheapest(alone(tables))
    totals = early_s[0, 1:] + np.append(rest_s[1:last, last], 0.0)
    if not np.isfinite(totals).any():
        return Decision(
            [(first, last, rest(first, last))], otherwise="the first layer can't be split into rows"
        )
    fused = tables.marks[1 + int(totals.argmin())]
    blocks = [(first, fused, early(first, fused))]
    if fused < last:
        blocks.append((fused, last, rest(fused, last)))
    return Decision(
        blocks,
        otherwise="the map has fewer rows and columns than devices",
        notes=(f"Fusing the first {fused} of {last} layers is best for this strategy.",),
    )
