"""`ofl`: optimal fused layers, for equal devices [AOFL, Eq. 5].

The dynamic program over cuts; every block runs in equal tiles over all devices, or on one.
"""

from coordinator.costs.cluster import Cluster
from coordinator.planning.search.decide import Decision, place, planned
from coordinator.planning.search.division_options import alone, grids
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.cut.units import Network


def ofl(network: Network, cluster: Cluster) -> Plan:
    """The best cuts with equal tiles on all devices."""
    return planned(network, cluster, "ofl", _decide)


def _decide(tables: Tables) -> Decision:
    _, blocks = place(alone(tables) + grids(tables, [len(tables.devices)])[0])
    return Decision(blocks, otherwise="no block is faster in equal tiles over all devices")
