"""The optimal graph search of layer-wise parallelism [Jia et al., 5.2; DeePa, section 4].

A computation graph whose nodes have configurations. A strategy picks one per node and costs

    t_o = sum over nodes of t_c(c_i) + t_s(c_i)  +  sum over edges of t_x(e, c_i, c_j)    [Eq. 1]

Two reductions keep an optimal strategy reachable:

* node elimination [Eq. 2, Theorem 1]: a node j with one edge in, from i, and one out, to k, is
  replaced by an edge (i, k) that costs the minimum over c_j of t_x(i, j) + t(j) + t_x(j, k);
* edge elimination [Eq. 3, Theorem 2]: two edges between the same nodes are replaced by their sum.

They are applied as long as possible; the K remaining nodes are solved exactly; undoing the node
eliminations in reverse order gives every other node its configuration [Algorithm 1].
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.planning.papers.minsum import Table, TooWideError, descend, greedy_order, minimise
from models.tensors.arrays import Floats, Ints


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
class Removed:
    """An eliminated node: `best[c_before, c_after]` is its configuration in Equation 2."""

    node: int
    before: int
    after: int
    best: Ints


@dataclass(frozen=True, slots=True)
class Strategy:
    """A configuration for each node, its cost [Eq. 1], and the K nodes of the final graph.

    `exact`: proven optimal. Otherwise the final graph was too dense to be solved exactly, and each
    of its nodes is only optimal given the others.
    """

    choice: Mapping[int, int]
    cost: float
    final_nodes: int
    exact: bool = True


def find_strategy(graph: CostGraph) -> Strategy:
    """Algorithm 1: a strategy of least cost."""
    final, removed = reduce_graph(graph)
    choice, exact = _solve(final)
    for step in reversed(removed):
        choice[step.node] = int(step.best[choice[step.before], choice[step.after]])
    return Strategy(choice, graph.cost(choice), len(final.nodes), exact)


def reduce_graph(graph: CostGraph) -> tuple[CostGraph, list[Removed]]:
    """Both eliminations until neither applies; the eliminated nodes, in order."""
    removed: list[Removed] = []
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


def eliminate_node(graph: CostGraph) -> tuple[CostGraph, Removed] | None:
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
            rest = tuple(each for each in graph.edges if each is not first and each is not second)
            nodes = {key: value for key, value in graph.nodes.items() if key != node}
            step = Removed(node, first.source, second.target, through.argmin(axis=1))
            return CostGraph(nodes, (*rest, edge)), step
    return None


def eliminate_edge(graph: CostGraph) -> CostGraph | None:
    """Edge elimination [Eq. 3] of the first two parallel edges; None if there are none."""
    seen: dict[tuple[int, int], Edge] = {}
    for edge in graph.edges:
        twin = seen.setdefault((edge.source, edge.target), edge)
        if twin is not edge:
            rest = tuple(each for each in graph.edges if each is not edge and each is not twin)
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
