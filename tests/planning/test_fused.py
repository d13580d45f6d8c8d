"""The searched strategy: never worse than what it starts from, legal, exact, and explained."""

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from coordinator.costs.affine import LayerRates
from coordinator.costs.cluster import Cluster, Link
from coordinator.costs.regression import DeviceProfile, LayerRegression, RegressionCosts
from coordinator.planning.legal import check_plan
from coordinator.planning.planners.fused import fused
from coordinator.planning.search.subsets import MOST_SUBSETS, subsets_of
from coordinator.planning.search.tables import tables_of
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Plan
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from tests.examples import examples
from tests.models.networks import networks
from tests.planning.run_plan import difference
from tests.planning.support import CLUSTERS, PERSISTENT, cluster, clusters, device, real, small

UNEVEN = Cluster(
    (
        device("host", 4.0, Link(1e9), host=True),
        device("A", 5.0, Link(0.125e6)),
        device("B", 3.6, Link(90e6 / 8)),
    )
)
STAR = replace(cluster(*[1.85] * 8), uplink=PERSISTENT)


def simulated_s(name: str, network: Network, some: Cluster) -> list[float]:
    """A published plan with its barriers and without."""
    plan = strategy(name)(network, some)
    loose = replace(plan, blocks=tuple(replace(each, barrier=False) for each in plan.blocks))
    return [simulate(each, network, some).latency_s for each in (plan, loose)]


def assert_best(plan: Plan, network: Network, some: Cluster) -> None:
    check_plan(plan, network, some)
    mine = simulate(plan, network, some)
    assert plan.predicted_latency_s == pytest.approx(mine.latency_s)
    assert plan.traffic == mine.traffic
    for name in ("single", "aofl"):
        assert mine.latency_s <= min(simulated_s(name, network, some)) * (1 + 1e-9)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(networks(), clusters(3))
def test_fused_is_never_worse_than_aofl_or_one_device(model, some) -> None:
    network = divide(load_graph(model))
    assert_best(fused(network, some), network, some)


@pytest.mark.parametrize("kind", CLUSTERS)
@pytest.mark.parametrize("name", [pytest.param("vgg16", marks=pytest.mark.slow), "resnet50"])
def test_fused_is_best_on_real_networks(name: str, kind: str) -> None:
    plan = fused(real(name), CLUSTERS[kind])
    assert_best(plan, real(name), CLUSTERS[kind])
    assert sorted([*plan.devices, *(each.device for each in plan.unused)]) == sorted(
        each.id for each in CLUSTERS[kind].devices
    )


def test_devices_in_order_of_frequency_are_beaten() -> None:
    """The fastest device is behind a slow link: the best two are the second and the third, where
    the published order begins with the first.
    """
    network = real("vgg16-conv")
    plan = fused(network, UNEVEN)
    share = {each.id: 0 for each in UNEVEN.devices}
    for block in plan.blocks:
        for tile in block.tiles:
            share[tile.device] += tile.flop
    assert share["B"] > 0.35 * plan.total_flop
    assert share["A"] < 0.15 * plan.total_flop
    first_two = Cluster(UNEVEN.devices[:2])
    beaten = simulated_s("ofl", network, first_two) + simulated_s("aofl", network, first_two)
    assert plan.predicted_latency_s < 0.6 * min(beaten)
    assert plan.predicted_latency_s < 0.9 * min(simulated_s("aofl", network, UNEVEN))


def test_equal_links_leave_the_published_subsets() -> None:
    tables = tables_of(small(), cluster(4.0, 3.0, 2.0, 1.0, host=False))
    assert subsets_of(tables).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]


def test_unequal_links_leave_what_nobody_dominates() -> None:
    tables = tables_of(small(), UNEVEN)
    names = [device.name for device in tables.devices]
    assert names == ["A", "host", "B"]
    found = {
        frozenset(n for n, used in zip(names, row, strict=True) if used)
        for row in subsets_of(tables)
    }
    assert found == {
        frozenset(each) for each in (["A"], ["host"], ["A", "host"], ["host", "B"], names)
    }


def test_many_unlike_devices_are_ranked() -> None:
    links = [Link(1e6 * 2**i, 1e-3) for i in range(8)]
    some = Cluster(tuple(device(f"d{i}", 8.0 - i, link) for i, link in enumerate(links)))
    rows = subsets_of(tables_of(small(), some))
    assert 8 <= len(rows) <= max(MOST_SUBSETS, 4 * 8)
    assert [True] + [False] * 7 in rows.tolist()
    assert [False] * 7 + [True] in rows.tolist()
    assert_best(fused(small(), some), small(), some)


def test_the_host_may_be_slow() -> None:
    some = Cluster((device("host", 0.2, Link(1e9), host=True), device("far", 4.0)))
    plan = fused(real("vgg16-conv"), some)
    assert_best(plan, real("vgg16-conv"), some)


class TestFullyConnected:
    def test_connected_layers_are_divided_where_it_pays(self) -> None:
        """The first over its input where tiles lie, the next over output, the last over input."""
        network = real("vgg16")
        plan = fused(network, STAR)
        assert_best(plan, network, STAR)
        units = {block.start: block for block in plan.blocks}
        assert len(units[13].tiles) >= 6
        assert all(tile.part is not None for tile in units[13].tiles)
        whole = strategy("aofl")(network, STAR)
        assert len(whole.blocks[-1].tiles) == 1

    def test_answer_of_divided_connected_layers_is_the_networks(self) -> None:
        from models.onnx_file.builder import NetworkBuilder as Builder
        from models.onnx_file.builder import square

        net = Builder("connected", seed=5)
        x = net.input("image", (1, 3, 16, 16)).conv("c1", 8, square(3)).relu()
        x = x.max_pool("p1", square(2, 2)).conv("c2", 12, square(3)).relu()
        x = x.flatten("flat").gemm("fc1", 64).relu().gemm("fc2", 48).relu().gemm("fc3", 10)
        model = net.model(x)
        network = divide(load_graph(model, "connected"))
        some = cluster(*[1e-3] * 4, link=Link(1e8, message_s=1e-5), host=False)
        plan = fused(network, some)
        assert any(tile.part is not None for block in plan.blocks for tile in block.tiles)
        assert difference(model, plan, network).max_rel_error <= 1e-5


class TestNotes:
    def test_notes_are_sentences_with_numbers(self) -> None:
        plan = fused(real("resnet50"), STAR)
        assert len(plan.notes) >= 3
        for note in plan.notes:
            assert note[0].isupper() or note[0].isdigit()
            assert note.endswith(".")
            assert re.search(r"\d", note)
            assert not re.search(r"\d m?s\b", note)
        assert "times as fast" in plan.notes[0]

    def test_plan_on_one_device_says_why(self) -> None:
        plan = fused(small(), CLUSTERS["far"])
        assert len(plan.devices) == 1
        assert "because" in plan.notes[0]
        assert all(
            "it takes" in each.reason or "in no block" in each.reason for each in plan.unused
        )


def test_costs_of_a_profile_explain_unused_devices_too() -> None:
    """Measured costs hold dictionaries, which can't be hashed."""
    rates = LayerRates(fixed_s=1e-3, flop_s=1e-11)
    fits = {
        kind: LayerRegression(rates, 9, 0.1, 0.0)
        for kind in ("convolution", "pointwise", "pooling", "elementwise")
    }
    costs = RegressionCosts(DeviceProfile(fits))
    far = Link(1e3, message_s=1.0)
    some = cluster(1.0, 1.0, 1.0, link=far)
    devices = tuple(replace(device, costs=costs) for device in some.devices)
    plan = fused(real("digits"), replace(some, devices=devices))
    assert len(plan.unused) == 2
    assert all(each.reason for each in plan.unused)
