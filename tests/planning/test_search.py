"""The dynamic program over cuts, against trying them all."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coordinator.planning.papers.ofl import ofl
from coordinator.planning.planners.aofl import aofl, options_by_count
from coordinator.planning.search.cuts import best_cuts, cheapest
from coordinator.planning.search.division_options import alone, grids
from coordinator.planning.search.tables import tables_of
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from tests.examples import examples
from tests.models.networks import networks
from tests.planning.support import CLUSTERS, block_s, clusters, small

COSTS = st.one_of(st.floats(0.01, 10), st.just(float("inf")))


def all_cuts(count: int):
    for chosen in itertools.product((False, True), repeat=count - 1):
        marks = [0, *(i + 1 for i, cut in enumerate(chosen) if cut), count]
        yield list(itertools.pairwise(marks))


@settings(max_examples=examples(80))
@given(
    st.integers(1, 8).flatmap(lambda n: arrays.arrays(np.float64, (n + 1, n + 1), elements=COSTS))
)
def test_the_best_cuts_are_the_best_of_all(seconds) -> None:
    total, cuts = best_cuts(seconds)
    best = min(sum(seconds[a, b] for a, b in blocks) for blocks in all_cuts(len(seconds) - 1))
    assert total == pytest.approx(best)
    if np.isfinite(best):
        assert sum(seconds[a, b] for a, b in cuts) == pytest.approx(best)
        assert [a for a, _ in cuts] == [0, *(b for _, b in cuts)][:-1]
    else:
        assert cuts == ()


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(networks(), clusters(3))
def test_aofl_is_the_best_of_all_plans_under_its_cost(model, some) -> None:
    network = divide(load_graph(model))
    tables = tables_of(network, some)
    options = [option for each in options_by_count(tables) for option in each]
    exact = {}
    for option in options:
        for start, end in zip(*np.nonzero(np.isfinite(option.seconds)), strict=True):
            cost = block_s(network, tables, option, start, end)
            key = (int(start), int(end))
            exact[key] = min(cost, exact.get(key, float("inf")))
    best = min(sum(exact[block] for block in blocks) for blocks in all_cuts(int(tables.last)))
    found = aofl(network, some).predicted_latency_s
    assert found >= best * (1 - 1e-9)
    # Equal, but where a tiny tile owns nothing of a smaller second output (see test_tables).
    shapes = {network.graph.shape(name)[2:] for name in network.graph.outputs}
    if len(shapes) == 1:
        assert found == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", CLUSTERS)
def test_ofl_is_the_best_of_its_cuts(name: str) -> None:
    network, some = small(), CLUSTERS[name]
    tables = tables_of(network, some)
    seconds, _ = cheapest(alone(tables) + grids(tables, [len(tables.devices)])[0])
    best = min(sum(seconds[a, b] for a, b in blocks) for blocks in all_cuts(len(seconds) - 1))
    assert ofl(network, some).predicted_latency_s == pytest.approx(best)
