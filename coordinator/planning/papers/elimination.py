"""`elimination`: layer-wise parallelism [Jia et al.; DeePa], for inference.

Every unit gets its own configuration {n=1, c, h, w}, by the optimal search over

    t_o = sum of t_c(l, c)  +  sum of t_x(e, c, c')        [Eq. 1 with t_s = 0]

on the graph of units: residual blocks and concats make parallel paths, which the eliminations
reduce. The request and the answer, both at the host, are two more nodes with one configuration
each. In the published cost, a device never pays for what it owns already. An exchange through the
host does move it; with `credit=False` the search counts that.

Two reductions keep an optimal strategy, one configuration for each node, reachable [Jia et al.,
5.2; DeePa, section 4]:

* node elimination [Eq. 2, Theorem 1]: a node j with one edge in, from i, and one out, to k, is
  replaced by an edge (i, k) that costs the minimum over c_j of t_x(i, j) + t(j) + t_x(j, k);
* edge elimination [Eq. 3, Theorem 2]: two edges between the same nodes are replaced by their sum.

They are applied as long as possible; the K remaining nodes are solved exactly; undoing the node
eliminations in reverse order gives every other node its configuration [Algorithm 1].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.layouts import Layout
from coordinator.planning.papers.layered import LayerWire, compute_s, unit_graph
from coordinator.planning.papers.minsum import Table, TooWideError, descend, greedy_order, minimise
from coordinator.planning.papers.unit_plan import alone_plan, plan_of
from coordinator.planning.plan_memory import Need, holds, overfilled, too_little_memory
from coordinator.planning.single_device import fastest_first, shares_of
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from models.tensors.arrays import Floats, Ints
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A tensor from one layer to another; `costs[c_source, c_target]` is t_x."""

    source: int
    target: int
    costs: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CostGraph:
    """`nodes[i][c]` is the cost of layer i in configuration c (t_c + t_s). Edges may be parallel,
    but there are no loops. All costs are at least 0; infinite ones forbid a configuration.
    """

    nodes: Mapping[int, Floats]
    edges: tuple[Edge, ...]

    def cost(self, strategy: Mapping[int, int]) -> float:
        """Equation 1."""
        return float(
            sum(costs[strategy[node]] for node, costs in self.nodes.items())
            + sum(edge.costs[strategy[edge.source], strategy[edge.target]] for edge in self.edges)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Removed:
    """An eliminated node: `best[c_before, c_after]` is its configuration in Equation 2."""

    node: int
    before: int
    after: int
    best: Ints


@dataclass(frozen=True, slots=True)
class _Strategy:
    """A configuration for each node, its cost [Eq. 1], and the K nodes of the final graph.

    `exact`: proven optimal. Otherwise the final graph was too dense to be solved exactly, and each
    of its nodes is only optimal given the others.
    """

    choice: Mapping[int, int]
    cost: float
    final_nodes: int
    exact: bool = True


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
        alike = {id(layout.shared): layout.shared for layout in self.layouts}
        alike_s = {key: compute_s(layouts, self.devices) for key, layouts in alike.items()}
        self.node_s = [alike_s[id(layout.shared)].copy() for layout in self.layouts]
        wire = LayerWire.of(self.devices)
        moved = {
            (id(transfer.sent), id(transfer.received)): transfer for transfer in units.transfers
        }
        moved_s = {key: transfer.seconds(wire) for key, transfer in moved.items()}
        self.edges = tuple(
            Edge(
                transfer.source, transfer.target, moved_s[id(transfer.sent), id(transfer.received)]
            )
            for transfer in units.transfers
        )

    def graph(self) -> CostGraph:
        """The computation graph [Eq. 1]: the request (-1), the units, the answer."""
        nodes = {-1: np.zeros(1), **dict(enumerate(self.node_s)), len(self.layouts): np.zeros(1)}
        return CostGraph(nodes, self.edges)

    def plan(self, strategy: _Strategy) -> Plan:
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
                    for d, device in enumerate(self.devices)
                    if device.id in over
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

    def _lighten(self, strategy: _Strategy, device: int) -> bool:
        """Forbids layouts that put as much of a layer on a device as the strategy does, for the
        heaviest layer there that has others. False if there is none.
        """
        held = [
            _weight_on(layouts[strategy.choice[i]], device)
            for i, layouts in enumerate(self.layouts)
        ]
        for unit in sorted(range(len(held)), key=held.__getitem__, reverse=True):
            weights = np.array([_weight_on(layout, device) for layout in self.layouts[unit]])
            lighter = np.where(weights >= held[unit], np.inf, self.node_s[unit])
            if held[unit] and np.isfinite(lighter).any():
                self.node_s[unit] = lighter
                return True
        return False

    def _notes(self, strategy: _Strategy, chosen: Sequence[Layout]) -> tuple[str, ...]:
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


def find_strategy(graph: CostGraph) -> _Strategy:
    """Algorithm 1: a strategy of least cost."""
    final, removed = reduce_graph(graph)
    choice, exact = _solve(final)
    for step in reversed(removed):
        choice[step.node] = int(step.best[choice[step.before], choice[step.after]])
    return _Strategy(choice, graph.cost(choice), len(final.nodes), exact)


def reduce_graph(graph: CostGraph) -> tuple[CostGraph, list[_Removed]]:
    """Both eliminations until neither applies; the eliminated nodes, in order."""
    removed: list[_Removed] = []
    while True:
        merged = eliminate_edge(graph)
        if merged is not None:
            graph = merged
            continue
        step = eliminate_node(graph)
        if step is None:
            return graph, removed
        graph = step[0]
        removed.append(step[1])


def eliminate_node(graph: CostGraph) -> tuple[CostGraph, _Removed] | None:
    """Node elimination [Eq. 2] of the first node that allows it; None if there is none."""
    incoming: dict[int, list[Edge]] = {node: [] for node in graph.nodes}
    outgoing: dict[int, list[Edge]] = {node: [] for node in graph.nodes}
    for edge in graph.edges:
        incoming[edge.target].append(edge)
        outgoing[edge.source].append(edge)
    for node, costs in graph.nodes.items():
        if len(incoming[node]) == 1 and len(outgoing[node]) == 1:
            first, second = incoming[node][0], outgoing[node][0]
            through = (first.costs + costs)[:, :, None] + second.costs[None, :, :]
            edge = Edge(first.source, second.target, through.min(axis=1))
            rest = tuple(edge for edge in graph.edges if edge is not first and edge is not second)
            nodes = {key: value for key, value in graph.nodes.items() if key != node}
            step = _Removed(node, first.source, second.target, through.argmin(axis=1))
            return CostGraph(nodes, (*rest, edge)), step
    return None


def eliminate_edge(graph: CostGraph) -> CostGraph | None:
    """Edge elimination [Eq. 3] of the first two parallel edges; None if there are none."""
    seen: dict[tuple[int, int], Edge] = {}
    for edge in graph.edges:
        twin = seen.setdefault((edge.source, edge.target), edge)
        if twin is not edge:
            rest = tuple(other for other in graph.edges if other is not edge and other is not twin)
            both = Edge(edge.source, edge.target, twin.costs + edge.costs)
            return CostGraph(graph.nodes, (*rest, both))
    return None


def _solve(graph: CostGraph) -> tuple[dict[int, int], bool]:
    """The final graph's optimal choices, and whether they are proven optimal."""
    names = list(graph.nodes)
    position = {node: index for index, node in enumerate(names)}
    sizes = [len(graph.nodes[node]) for node in names]
    tables = [Table((index,), graph.nodes[node]) for index, node in enumerate(names)]
    tables += [
        Table((position[edge.source], position[edge.target]), edge.costs) for edge in graph.edges
    ]
    try:
        _, choice = minimise(sizes, tables, greedy_order(sizes, tables))
        exact = True
    except TooWideError:
        choice, exact = descend(sizes, tables), False
    return dict(zip(names, choice, strict=True)), exact
