"""`elimination`: layer-wise parallelism [Jia et al.; DeePa], for inference.

Every unit gets its own configuration {n=1, c, h, w}, by the optimal search over

    t_o = sum of t_c(l, c)  +  sum of t_x(e, c, c')        [Eq. 1 with t_s = 0]

on the graph of units: residual blocks and concats make parallel paths, which the eliminations
reduce. The request and the answer, both at the host, are two more nodes with one configuration
each. In the published cost, a device never pays for what it owns already. An exchange through the
host does move it; with `credit=False` the search counts that.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.layouts import Layout
from coordinator.planning.papers.layered import LayerWire, compute_s, unit_graph
from coordinator.planning.papers.min_sum_elimination import CostGraph, Edge, Strategy, find_strategy
from coordinator.planning.papers.unit_plan import alone_plan, plan_of
from coordinator.planning.plan_memory import Need, holds, overfilled, too_little_memory
from coordinator.planning.single_device import fastest_first, shares_of
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from protos.wire.facts import DeviceId


def elimination(network: Network, cluster: Cluster, *, credit: bool = True) -> Plan:
    """A plan of least additive cost, with a configuration for each unit. `credit`: what a device
    owns already costs nothing, as in the papers.

    If that overfills a device, layouts that put its heaviest layers there are forbidden and the
    search is repeated; finally once more with tiles in proportion to memory. So memory limits are
    kept, but not always at the least cost.

    Raises:
        Infeasible: no device, or no device with enough memory for some layer.
    """
    ranked = replace(cluster, devices=fastest_first(network, cluster.devices))
    alone = alone_plan(network, ranked, "elimination")
    for rates in shares_of(network, ranked.devices):
        plan, over = Layers(network, ranked, rates, credit=credit).fitting()
        if not over:
            break
    else:
        raise too_little_memory(network, cluster, over)
    if alone.predicted_latency_s <= plan.predicted_latency_s and not overfilled(
        network, cluster, alone
    ):
        return alone
    return plan


class Layers:
    """The units of a network with their layouts, and all costs between them."""

    def __init__(
        self, network: Network, cluster: Cluster, rates: Sequence[float], *, credit: bool = True
    ) -> None:
        self.network = network
        self.cluster, self.devices = cluster, cluster.devices
        units = unit_graph(network, rates, credit=credit)
        self.layouts = units.layouts
        self.spares_memory = False
        # Units that are alike share their layouts and transfers.
        alike = {id(each.shared): each.shared for each in self.layouts}
        alike_s = {key: compute_s(layouts, self.devices) for key, layouts in alike.items()}
        self.node_s = [alike_s[id(each.shared)].copy() for each in self.layouts]
        wire = LayerWire.of(self.devices)
        moved = {(id(each.sent), id(each.received)): each for each in units.transfers}
        moved_s = {key: each.seconds(wire) for key, each in moved.items()}
        self.edges = tuple(
            Edge(each.source, each.target, moved_s[id(each.sent), id(each.received)])
            for each in units.transfers
        )

    def graph(self) -> CostGraph:
        """The computation graph [Eq. 1]: the request (-1), the units, the answer."""
        nodes = {-1: np.zeros(1), **dict(enumerate(self.node_s)), len(self.layouts): np.zeros(1)}
        return CostGraph(nodes, self.edges)

    def plan(self, strategy: Strategy) -> Plan:
        """The plan for a strategy."""
        chosen = [layouts[strategy.choice[i]] for i, layouts in enumerate(self.layouts)]
        notes = self._notes(strategy, chosen)
        return plan_of(self.network, self.cluster, "elimination", chosen, strategy.cost, notes)

    def fitting(self) -> tuple[Plan, dict[DeviceId, Need]]:
        """The plan of least cost that fits in memory, as far as the search found one; otherwise the
        plan of least cost, and the needs of the devices that it overfills.
        """
        strategy = find_strategy(self.graph())
        least = plan = self.plan(strategy)
        needed = over = overfilled(self.network, self.cluster, plan)
        if over and not self._forbid_what_never_fits():
            return least, needed
        while over:
            if not all(
                [
                    self._lighten(strategy, d)
                    for d, each in enumerate(self.devices)
                    if each.id in over
                ]
            ):
                return least, needed
            strategy = find_strategy(self.graph())
            plan = self.plan(strategy)
            over = overfilled(self.network, self.cluster, plan)
        return plan, {}

    def _forbid_what_never_fits(self) -> bool:
        """Forbids layouts with a tile too large for its device. False if a unit has no other
        layout.
        """
        self.spares_memory = True
        for node_s, layouts in zip(self.node_s, self.layouts, strict=True):
            for place, layout in enumerate(layouts):
                for d, tile in layout.tiles.items():
                    if not holds(self.devices[d], tile.weight_bytes, tile.relaid_bytes):
                        node_s[place] = np.inf
        return all(np.isfinite(node_s).any() for node_s in self.node_s)

    def _lighten(self, strategy: Strategy, device: int) -> bool:
        """Forbids layouts that put as much of a layer on a device as the strategy does, for the
        heaviest layer there that has others. False if there is none.
        """
        held = [_weight_on(each[strategy.choice[i]], device) for i, each in enumerate(self.layouts)]
        for unit in sorted(range(len(held)), key=held.__getitem__, reverse=True):
            weights = np.array([_weight_on(layout, device) for layout in self.layouts[unit]])
            lighter = np.where(weights >= held[unit], np.inf, self.node_s[unit])
            if held[unit] and np.isfinite(lighter).any():
                self.node_s[unit] = lighter
                return True
        return False

    def _notes(self, strategy: Strategy, chosen: Sequence[Layout]) -> tuple[str, ...]:
        proof = "optimal for" if strategy.exact else "not proven optimal for"
        among = ", of layouts that spare memory" if self.spares_memory else ""
        counts: dict[str, int] = {}
        for layout in chosen:
            counts[str(layout.configuration)] = counts.get(str(layout.configuration), 0) + 1
        used = ", ".join(f"{count} in {name}" for name, count in counts.items())
        return (
            f"{len(chosen)} units: {used}",
            f"{proof} its additive cost{among}; {strategy.final_nodes} nodes were left after "
            "node and edge elimination",
        )


def _weight_on(layout: Layout, device: int) -> int:
    tile = layout.tiles.get(device)
    return 0 if tile is None else tile.weight_bytes
