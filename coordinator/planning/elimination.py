"""`elimination`: layer-wise parallelism [Jia et al.; DeePa], for inference.

Every unit gets a configuration {n=1, c, h, w} of its own, by the optimal search over

    t_o = sum of t_c(l, c)  +  sum of t_x(e, c, c')        [Eq. 1 with t_s = 0]

on the graph of units: residual blocks and concats make parallel paths, which the eliminations
take apart. The image comes from the host and the answer goes there: two more nodes with one
configuration each. The cost is the published one: what a device owns already is not moved again.
An exchange through the host moves it nevertheless; with `credit=False` the search counts that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coordinator.planning.devices import Cluster, Device
from coordinator.planning.graphsearch.elimination import CostGraph, Edge, Strategy, find_strategy
from coordinator.planning.layered import (
    Floats,
    Places,
    Wire,
    arrival_s,
    compute_s,
    delivery_s,
    makers,
    needed,
    owned,
    transfer_s,
)
from coordinator.planning.layouts import Layout, divider_of
from coordinator.planning.memory import weight_room_bytes
from coordinator.planning.plan import Plan
from coordinator.planning.unit_plan import (
    fastest_first,
    overfilled,
    plan_of,
    rates_of,
    too_little_memory,
)
from models.units import Network
from protos.errors import Infeasible

# Times that the price of memory is raised on devices that a plan would overfill.
_PRICE_RISES = 12


def elimination(network: Network, cluster: Cluster, *, credit: bool = True) -> Plan:
    """A plan of least additive cost, each unit in its own configuration. `credit`: what a device
    owns already costs it nothing, as the papers count.

    Raises:
        Infeasible: no device, or no device with enough memory for some layer.
    """
    if not cluster.devices:
        raise Infeasible(cause="there is no device", cure="Start a worker.")
    layers = Layers(network, fastest_first(network, cluster.devices), credit)
    prices = np.zeros(len(layers.devices))
    for _ in range(_PRICE_RISES):
        strategy = find_strategy(layers.graph(prices))
        if not np.isfinite(strategy.cost):
            break
        plan = layers.plan(strategy, prices)
        over = overfilled(network, cluster, plan)
        if not over:
            return plan
        start = strategy.cost / sum(each.weight_bytes for each in layers.wholes)
        for index, device in enumerate(layers.devices):
            if device.id in over:
                prices[index] = max(start, 4 * prices[index])
    else:
        raise too_little_memory(network, cluster, over)
    raise Infeasible(
        cause="no device has enough memory for the weights of one of the layers",
        cure="Add a device with more memory, or raise the workers' memory limit.",
    )


class Layers:
    """The units of a network with their layouts on devices, and all costs between them."""

    def __init__(self, network: Network, devices: Sequence[Device], credit: bool = True) -> None:
        self.network = network
        self.devices = tuple(devices)
        divider, rates = divider_of(network), rates_of(network, devices)
        self.layouts = [divider.layouts(unit, rates) for unit in network.units]
        self.wholes = [divider.whole(unit) for unit in network.units]
        self.node_s = [compute_s(each, devices) for each in self.layouts]
        self.edges = self._edges(Wire.of(devices), credit)

    def graph(self, prices: Floats) -> CostGraph:
        """The computation graph [Eq. 1]: the request, the units, the answer. `prices[device]`
        are seconds per byte of weights, to spare memory.
        """
        units = len(self.layouts)
        nodes: dict[int, Floats] = {-1: np.zeros(1)}
        for index, layouts in enumerate(self.layouts):
            nodes[index] = self.node_s[index] + [self._memory_s(each, prices) for each in layouts]
        nodes[units] = np.zeros(1)
        return CostGraph(nodes, self.edges)

    def plan(self, strategy: Strategy, prices: Floats) -> Plan:
        """The plan of a strategy, at its cost without the price of memory."""
        chosen = [layouts[strategy.choice[i]] for i, layouts in enumerate(self.layouts)]
        cost_s = strategy.cost - sum(self._memory_s(each, prices) for each in chosen)
        plan = plan_of(self.network, self.devices, "elimination", chosen, cost_s)
        return replace(plan, notes=self._notes(strategy, chosen))

    def _memory_s(self, layout: Layout, prices: Floats) -> float:
        """What a layout pays for memory; infinite where a tile's weights never fit."""
        paid = 0.0
        for d, tile in layout.tiles.items():
            if tile.weight_bytes > weight_room_bytes(self.devices[d]):
                return float("inf")
            paid += float(prices[d]) * tile.weight_bytes
        return paid

    def _edges(self, wire: Wire, credit: bool) -> tuple[Edge, ...]:
        graph, count = self.network.graph, len(self.devices)
        maker = makers(self.network)
        own: dict[str, Places] = {
            name: owned(self.layouts[unit], name, count) for name, unit in maker.items()
        }
        edges = []
        for unit, layouts in enumerate(self.layouts):
            for name in self.wholes[unit].reads:
                itemsize = graph.tensors[name].itemsize
                need = needed(layouts, name, count)
                if name in maker:
                    costs = transfer_s(own[name], need, itemsize, wire, credit=credit)
                    edges.append(Edge(maker[name], unit, costs))
                else:
                    edges.append(Edge(-1, unit, arrival_s(need, itemsize, wire)[None]))
        for name in graph.outputs:
            if name in maker:
                costs = delivery_s(own[name], graph.tensors[name].itemsize, wire)
                edges.append(Edge(maker[name], len(self.layouts), costs[:, None]))
        return tuple(edges)

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
