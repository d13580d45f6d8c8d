"""`elimination`: layer-wise parallelism [Jia et al.; DeePa], for inference.

Every unit gets a configuration {n=1, c, h, w} of its own, by the optimal search over

    t_o = sum of t_c(l, c)  +  sum of t_x(e, c, c')        [Eq. 1 with t_s = 0]

on the graph of units: residual blocks and concats make parallel paths, which the eliminations
take apart. The image comes from the host and the answer goes there: two more nodes with one
configuration each. The cost is the published one: what a device owns already is not moved again.
An exchange through the host moves it nevertheless; with `credit=False` the search counts that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from coordinator.planning.devices import Cluster, Device
from coordinator.planning.graphsearch.elimination import CostGraph, Edge, Strategy, find_strategy
from coordinator.planning.layered import Wire, compute_s, unit_graph
from coordinator.planning.layouts import Layout
from coordinator.planning.plan import DeviceId, Plan
from coordinator.planning.unit_plan import (
    alone_plan,
    fastest_first,
    overfilled,
    plan_of,
    rates_of,
    too_little_memory,
)
from models.units import Network
from protos.errors import Infeasible


def elimination(network: Network, cluster: Cluster, *, credit: bool = True) -> Plan:
    """A plan of least additive cost, each unit in its own configuration. `credit`: what a device
    owns already costs it nothing, as the papers count.

    Where that overfills a device, the layouts that put its heaviest layer there are forbidden and
    the search is made again, so memory caps are kept, but not always at the least cost.

    Raises:
        Infeasible: no device, or no device with enough memory for some layer.
    """
    if not cluster.devices:
        raise Infeasible(cause="there is no device", cure="Start a worker.")
    devices = fastest_first(network, cluster.devices)
    alone = alone_plan(network, devices, "elimination")
    layers = Layers(network, devices, credit)
    while True:
        strategy = find_strategy(layers.graph())
        plan = layers.plan(strategy)
        over = overfilled(network, cluster, plan)
        if not over:
            break
        if not layers.lighten(strategy, over):
            raise too_little_memory(network, cluster, over)
    if alone.predicted_latency_s <= plan.predicted_latency_s and not overfilled(
        network, cluster, alone
    ):
        return alone
    return plan


class Layers:
    """The units of a network with their layouts on devices, and all costs between them."""

    def __init__(self, network: Network, devices: Sequence[Device], credit: bool = True) -> None:
        self.network = network
        self.devices = tuple(devices)
        units = unit_graph(network, rates_of(network, devices), credit=credit)
        self.layouts = units.layouts
        self.node_s = [compute_s(each, devices) for each in self.layouts]
        wire = Wire.of(devices)
        self.edges = tuple(
            Edge(each.source, each.target, each.seconds(wire)) for each in units.transfers
        )

    def graph(self) -> CostGraph:
        """The computation graph [Eq. 1]: the request (-1), the units, the answer."""
        nodes = {-1: np.zeros(1), **dict(enumerate(self.node_s)), len(self.layouts): np.zeros(1)}
        return CostGraph(nodes, self.edges)

    def plan(self, strategy: Strategy) -> Plan:
        """The plan of a strategy."""
        chosen = [layouts[strategy.choice[i]] for i, layouts in enumerate(self.layouts)]
        plan = plan_of(self.network, self.devices, "elimination", chosen, strategy.cost)
        return replace(plan, notes=self._notes(strategy, chosen))

    def lighten(self, strategy: Strategy, over: Collection[DeviceId]) -> bool:
        """Forbids, for each of these devices, to put as much of its heaviest layer there as the
        strategy does. False if there is nothing left to forbid.
        """
        for d, device in enumerate(self.devices):
            if device.id not in over:
                continue
            held = [_weight_on(each[strategy.choice[i]], d) for i, each in enumerate(self.layouts)]
            heaviest = max(range(len(held)), key=held.__getitem__)
            if not held[heaviest]:
                return False
            for place, layout in enumerate(self.layouts[heaviest]):
                if _weight_on(layout, d) >= held[heaviest]:
                    self.node_s[heaviest][place] = np.inf
            if not np.isfinite(self.node_s[heaviest]).any():
                return False
        return True

    def _notes(self, strategy: Strategy, chosen: Sequence[Layout]) -> tuple[str, ...]:
        proof = "optimal for" if strategy.exact else "not proven optimal for"
        counts: dict[str, int] = {}
        for layout in chosen:
            counts[str(layout.configuration)] = counts.get(str(layout.configuration), 0) + 1
        used = ", ".join(f"{count} in {name}" for name, count in counts.items())
        return (
            f"{len(chosen)} units: {used}",
            f"{proof} its additive cost; {strategy.final_nodes} nodes were left after node and "
            "edge elimination",
        )


def _weight_on(layout: Layout, device: int) -> int:
    tile = layout.tiles.get(device)
    return 0 if tile is None else tile.weight_bytes
