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

from collections.abc import Sequence

from coordinator.costs.cluster import Cluster
from coordinator.planning.search.balance import prefixes
from coordinator.planning.search.decide import Decision, place, planned
from coordinator.planning.search.division_options import Option, alone, grids, strips
from coordinator.planning.search.explain import Growing, devices_left_out, why_this_many
from coordinator.planning.search.subsets import counts_of
from coordinator.planning.search.tables import Tables
from coordinator.tasks.plan import Plan
from models.cut.units import Network


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
    growing = Growing.of(counts_of(len(tables.devices)), by_count)
    return Decision(
        blocks,
        reasons=devices_left_out(tables, blocks, growing),
        notes=why_this_many(tables, blocks, growing),
    )
