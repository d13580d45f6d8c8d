"""Layer-wise parallelism's search: every reduction keeps an optimum [Theorems 1 and 2]."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.exhaustive import enumerate_strategies, least_of_all
from coordinator.planning.papers import minsum
from coordinator.planning.papers.elimination import (
    CostGraph,
    Edge,
    eliminate_edge,
    eliminate_node,
    find_strategy,
    reduce_graph,
)
from tests.examples import examples


def random_graph(seed: int, pairs: list[tuple[int, int]], sizes: list[int]) -> CostGraph:
    """Integer costs, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    nodes = {i: rng.integers(0, 50, size).astype(float) for i, size in enumerate(sizes)}
    edges = tuple(
        Edge(a, b, rng.integers(0, 50, (sizes[a], sizes[b])).astype(float)) for a, b in pairs
    )
    return CostGraph(nodes, edges)


@st.composite
def graphs(draw: st.DrawFn) -> CostGraph:
    """Any DAG of up to six layers, parallel edges included."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    possible = list(itertools.combinations(range(len(sizes)), 2))
    pairs = draw(st.lists(st.sampled_from(possible), max_size=9)) if possible else []
    return random_graph(draw(st.integers(0, 10**6)), pairs, sizes)


def least(graph: CostGraph) -> float:
    names = list(graph.nodes)
    choices = itertools.product(*(range(len(graph.nodes[name])) for name in names))
    return min(graph.cost(dict(zip(names, choice, strict=True))) for choice in choices)


@settings(max_examples=examples(200))
@given(graphs())
def test_strategy_is_as_good_as_any(graph: CostGraph) -> None:
    strategy = find_strategy(graph)
    assert strategy.exact
    assert strategy.cost == graph.cost(strategy.choice) == least(graph)
    assert strategy.choice.keys() == graph.nodes.keys()


@settings(max_examples=examples(200))
@given(graphs())
def test_each_elimination_keeps_an_optimal_strategy(graph: CostGraph) -> None:
    optimum = least(graph)
    while True:
        merged, step = eliminate_edge(graph), eliminate_node(graph)
        if merged is None and step is None:
            break
        if merged is not None:
            assert len(merged.edges) == len(graph.edges) - 1
            assert least(merged) == optimum
        if step is not None:
            smaller, removed = step
            assert len(smaller.nodes) == len(graph.nodes) - 1
            assert least(smaller) == optimum
            choice = dict(find_strategy(smaller).choice)
            choice[removed.node] = int(removed.best[choice[removed.before], choice[removed.after]])
            assert graph.cost(choice) == optimum
        graph = merged if merged is not None else step[0]


@settings(max_examples=examples(100))
@given(graphs())
def test_depth_first_search_agrees(graph: CostGraph) -> None:
    found = enumerate_strategies(graph)
    assert found.cost == graph.cost(found.choice) == find_strategy(graph).cost
    assert found.cost == least_of_all(graph)
    assert found.strategies == np.prod([len(costs) for costs in graph.nodes.values()])


def chain(length: int) -> list[tuple[int, int]]:
    return list(itertools.pairwise(range(length)))


def module(start: int) -> list[tuple[int, int]]:
    """An Inception module [Figure 6]: four branches of one to three layers, joined."""
    branches = [[1], [2, 3], [4, 5, 6], [7, 8]]
    return [
        pair
        for branch in branches
        for pair in itertools.pairwise([start, *(start + i for i in branch), start + 9])
    ]


@pytest.mark.parametrize(
    ("layers", "pairs", "left"),
    [
        (1, [], 1),
        (2, chain(2), 2),
        (21, chain(21), 2),
        (10, module(0), 2),
        (28, [*module(0), *module(9), *module(18)], 2),
        (2, [(0, 1)] * 3, 2),
        (4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4),
    ],
)
def test_reductions_of_well_known_graphs_leave_known_sizes(
    layers: int, pairs: list, left: int
) -> None:
    graph = random_graph(1, pairs, [3] * layers)
    final, removed = reduce_graph(graph)
    assert len(final.nodes) == left
    assert len(removed) == layers - left
    assert find_strategy(graph).final_nodes == left


def test_forbidden_configurations_are_not_chosen() -> None:
    graph = random_graph(2, chain(5), [4] * 5)
    graph.nodes[2][:3] = np.inf
    strategy = find_strategy(graph)
    assert strategy.choice[2] == 3
    assert np.isfinite(strategy.cost)


def test_a_graph_too_entangled_to_be_solved_says_so(monkeypatch) -> None:
    everyone = list(itertools.combinations(range(6), 2))
    graph = random_graph(3, everyone, [4] * 6)
    monkeypatch.setattr(minsum, "MAX_ENTRIES", 100)
    strategy = find_strategy(graph)
    assert not strategy.exact
    assert strategy.cost == graph.cost(strategy.choice) >= least(graph)


def test_an_optimum_lost_would_be_seen() -> None:
    """A reduction that takes the first configuration instead of the best one is caught."""
    graph = random_graph(4, chain(4), [3] * 4)
    final, removed = eliminate_node(graph)
    choice = dict(find_strategy(final).choice)
    best = int(removed.best[choice[removed.before], choice[removed.after]])
    assert graph.cost(choice | {removed.node: best}) == least(graph)
    assert graph.cost(choice | {removed.node: (best + 1) % 3}) > least(graph)
