"""The baseline of Jia et al.'s Table 3: depth-first search over all strategies.

A branch is cut off only when its cost so far, plus the least that every remaining node and edge
can cost by itself, already reaches the best complete strategy: whatever was skipped is not better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.papers.elimination import CostGraph, Edge
from coordinator.planning.papers.minsum import MAX_ENTRIES
from models.tensors.arrays import Floats


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The best strategy, how many partial strategies were looked at, and how many there are."""

    choice: dict[int, int]
    cost: float
    visited: int
    strategies: int


def enumerate_strategies(graph: CostGraph) -> Enumeration:
    """A strategy of least cost, by depth-first search in the order of the nodes."""
    search = _Search(graph)
    search.descend(0, 0.0)
    strategies = math.prod(len(costs) for costs in graph.nodes.values())
    return Enumeration(search.best, search.best_cost, search.visited, strategies)


def least_of_all(graph: CostGraph) -> float | None:
    """The least cost of all strategies, every one of them added up; None if they are too many."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    sizes = [len(costs) for costs in graph.nodes.values()]
    if math.prod(sizes) > MAX_ENTRIES:
        return None
    totals = np.zeros(sizes)
    for node, costs in graph.nodes.items():
        totals += costs.reshape([-1 if index == place[node] else 1 for index in range(len(sizes))])
    for edge in graph.edges:
        first, second = sorted((place[edge.source], place[edge.target]))
        costs = edge.costs if first == place[edge.source] else edge.costs.T
        shape = [size if index in (first, second) else 1 for index, size in enumerate(sizes)]
        totals += costs.reshape(shape)
    return float(totals.min())


class _Search:
    """The depth-first search's state."""

    def __init__(self, graph: CostGraph) -> None:
        self.nodes = list(graph.nodes)
        self.costs = graph.nodes
        place = {node: index for index, node in enumerate(self.nodes)}
        self.closing: list[list[tuple[int, Floats]]] = [[] for _ in self.nodes]
        for edge in graph.edges:
            self._close(edge, place)
        self.floor = self._floors(graph.edges, place)
        self.choice: list[int] = []
        self.best: dict[int, int] = {}
        self.best_cost = math.inf
        self.visited = 0

    def _close(self, edge: Edge, place: dict[int, int]) -> None:
        """An edge is paid at the later of its nodes."""
        source, target = place[edge.source], place[edge.target]
        if source < target:
            self.closing[target].append((source, edge.costs))
        else:
            self.closing[source].append((target, edge.costs.T))

    def _floors(self, edges: Sequence[Edge], place: dict[int, int]) -> list[float]:
        """The least that the nodes from each depth on, and the edges paid there, can cost."""
        least = [float(self.costs[node].min()) for node in self.nodes]
        for edge in edges:
            least[max(place[edge.source], place[edge.target])] += float(edge.costs.min())
        floors = [0.0]
        for cost in reversed(least):
            floors.append(floors[-1] + cost)
        return floors[::-1]

    def descend(self, depth: int, cost: float) -> None:
        """All strategies that begin with the current choice."""
        if depth == len(self.nodes):
            self.best_cost = cost
            self.best = dict(zip(self.nodes, self.choice, strict=True))
            return
        totals = self.costs[self.nodes[depth]] + cost
        for earlier, costs in self.closing[depth]:
            totals = totals + costs[self.choice[earlier]]
        for config in totals.argsort(kind="stable"):
            self.visited += 1
            if totals[config] + self.floor[depth + 1] >= self.best_cost:
                break
            self.choice.append(int(config))
            self.descend(depth + 1, float(totals[config]))
            self.choice.pop()
