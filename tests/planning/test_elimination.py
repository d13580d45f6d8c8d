"""`elimination`: optimal for its cost, legal, exact, on equal and unequal devices."""

import itertools
import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.exhaustive import enumerate_strategies
from coordinator.costs.cluster import Cluster
from coordinator.planning.legal import check_plan
from coordinator.planning.papers.elimination import Layers, elimination, find_strategy
from coordinator.planning.papers.kcut import kcut
from coordinator.planning.plan_memory import needs
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.single_device import (
    bytes_alone,
    fastest_first,
    rates_of,
    whole_works,
)
from coordinator.tasks.plan import Plan
from models.check.check import TOLERANCE
from models.cut.units import Network, divide
from models.onnx_file import builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from protos.errors import Infeasible
from tests.examples import examples
from tests.models.networks import Sketch, networks
from tests.planning.clusters import SLOW, cluster, device
from tests.planning.run_plan import difference

RATES = st.lists(st.sampled_from([SLOW, SLOW / 2, SLOW / 3]), min_size=1, max_size=5)


def network_of(model: onnx.ModelProto) -> Network:
    return divide(load_graph(model))


def layers_of(network: Network, devices: Cluster) -> Layers:
    ordered = fastest_first(network, devices.devices)
    return Layers(network, replace(devices, devices=ordered), rates_of(network, ordered))


def classifier(channels: int = 8) -> onnx.ModelProto:
    """A residual block, a depthwise and a grouped convolution, a concat, and a classifier."""
    net = builder.NetworkBuilder("classifier", seed=9)
    x = net.input("image", (1, 3, 20, 18))
    x = x.conv("stem", channels, square(3, 2)).norm().relu()
    y = x.conv("inner", channels, square(3)).relu().conv("outer", channels, square(3))
    x = y.add("sum", x).relu()
    deep = x.conv("depthwise", channels, square(3), groups=channels).relu()
    grouped = x.conv("grouped", 2 * channels, square(3), groups=2).relu()
    x = net.concat("concat", [deep, grouped]).max_pool("pool", square(2, 2))
    x = x.conv("last", 6, square(3)).relu()
    x = x.flatten("flatten").gemm("fc1", 12).relu()
    return net.model(x.gemm("fc2", 10))


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(networks(), RATES, st.booleans())
def test_plan_is_legal_and_gives_the_whole_models_answer(model, rates, credit) -> None:
    network, devices = network_of(model), cluster(*rates, mbps=1000.0)
    plan = elimination(network, devices, credit=credit)
    check_plan(plan, network, devices)
    assert difference(model, plan, network).max_rel_error <= TOLERANCE


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(networks(), st.lists(st.sampled_from([0.01, 0.005]), min_size=1, max_size=3))
def test_cost_is_the_least_of_all_strategies(model, rates) -> None:
    network, devices = network_of(model), cluster(*rates)
    graph = layers_of(network, devices).graph()
    plan = elimination(network, devices)
    least = enumerate_strategies(graph).cost
    works = whole_works(network)
    alone = min(
        each.costs.block_s(works) + sum(map(each.link.transfer_s, bytes_alone(network)))
        for each in devices.devices
    )
    assert plan.predicted_latency_s <= least * (1 + 1e-9)
    assert any(plan.predicted_latency_s == pytest.approx(each) for each in (least, alone))


@pytest.mark.parametrize("credit", [True, False])
def test_planned_bytes_are_those_of_an_exchange_through_the_host(credit: bool) -> None:
    network, devices = network_of(classifier()), cluster(SLOW, SLOW, SLOW)
    plan = elimination(network, devices, credit=credit)
    assert plan.traffic == simulate(plan, network, devices).traffic


def test_a_cost_without_credit_is_that_of_serial_transfers() -> None:
    """Nothing overlaps in the published cost, so the simulator can only be faster."""
    network, devices = network_of(classifier()), cluster(SLOW, SLOW, SLOW)
    with_credit, without = (elimination(network, devices, credit=c) for c in (True, False))
    assert with_credit.predicted_latency_s < without.predicted_latency_s
    assert simulate(without, network, devices).latency_s <= without.predicted_latency_s + 1e-9


def test_tiles_are_proportional_to_rates() -> None:
    sketch = Sketch((60, 4))
    sketch.channels["x"] = 2
    model = sketch.model([sketch.conv("x", 3, (3, 3), pads=[1, 1, 1, 1])])
    network = network_of(model)
    plan = elimination(network, cluster(SLOW, SLOW * 3, SLOW * 2, mbps=1000.0))
    (block,) = plan.blocks
    rows = {tile.device: len(next(iter(tile.boxes.values()))[2]) for tile in block.tiles}
    assert rows == {"d1": 30, "d2": 20, "d0": 10}


def test_slow_links_leave_everything_on_one_device() -> None:
    network = network_of(classifier())
    plan = elimination(network, cluster(1.0, 1.0, 1.0, mbps=0.1))
    assert [len(block.tiles) for block in plan.blocks] == [1], "one block, one tile"
    # A program leaves out the rows that nobody reads; onnxruntime computes them.
    assert 0.95 < plan.predicted_latency_s / plan.single_device_latency_s <= 1.0
    assert {each.device for each in plan.unused} == {"d1", "d2"}


def test_runs_that_are_joined_are_not_paid_twice() -> None:
    network = network_of(classifier())
    one = Cluster((device("a", run_s=0.01),))
    plan = elimination(network, one)
    # A program leaves out the rows that nobody reads; onnxruntime computes them.
    assert 0.95 < plan.predicted_latency_s / plan.single_device_latency_s <= 1.0


def weights(network: Network, plan: Plan) -> dict[str, int]:
    return {name: sum(need.weights.values()) for name, need in needs(network, plan).items()}


def test_devices_hold_only_their_slice_of_a_split_layer() -> None:
    """Fully connected layers of 40 MB on devices that are slow to read weights."""
    net = builder.NetworkBuilder("dense", seed=2)
    x = net.input("image", (1, 512))
    x = x.gemm("fc1", 4096).relu().gemm("fc2", 1024)
    model = net.model(x)
    network, devices = network_of(model), cluster(*[SLOW] * 4)
    plan = elimination(network, devices)
    held = weights(network, plan)
    total = sum(array.nbytes for array in network.graph.constants.values())
    assert len(held) == 4
    assert all(each == pytest.approx(total / 4, rel=0.01) for each in held.values())
    assert difference(model, plan, network).max_rel_error <= TOLERANCE


def test_memory_caps_move_layers_to_other_devices() -> None:
    net = builder.NetworkBuilder("dense", seed=2)
    x = net.input("image", (1, 1024))
    x = x.gemm("fc1", 4096).relu().gemm("fc2", 2048).relu().gemm("fc3", 16)
    network = network_of(net.model(x))
    free = elimination(network, cluster(1.0, 1.0, mbps=1.0))
    assert len(free.devices) == 1, "splitting does not pay"
    tight = cluster(1.0, 1.0, mbps=1.0, memory_mb=150.0)
    plan = elimination(network, tight)
    check_plan(plan, network, tight)
    assert len(plan.devices) == 2
    with pytest.raises(Infeasible, match=r"fc1|memory"):
        elimination(network, cluster(1.0, 1.0, mbps=1.0, memory_mb=100.0))


def test_memory_that_is_unlike_speed() -> None:
    """Tiles in proportion to rate would overfill the fast device, which has little memory."""
    net = builder.NetworkBuilder("dense", seed=2)
    network = network_of(net.model(net.input("x", (1, 1024)).gemm("fc", 16384)))
    devices = Cluster((device("fast", 8.0, memory_mb=150), device("slow", 1.0, memory_mb=250)))
    for planner in (elimination, kcut):
        plan = planner(network, devices)
        check_plan(plan, network, devices)
        assert len(plan.devices) == 2 or plan.devices == ("slow",)


def test_no_device_is_infeasible() -> None:
    with pytest.raises(Infeasible):
        elimination(network_of(classifier()), Cluster(()))


def test_grouped_convolutions_are_split_between_groups() -> None:
    network = network_of(classifier())
    layers = layers_of(network, cluster(*[SLOW] * 4))
    unit = next(i for i, unit in enumerate(network.units) if unit.name == "grouped")
    depthwise = next(i for i, unit in enumerate(network.units) if unit.name == "depthwise")
    degrees = {layout.configuration.channels for layout in layers.layouts[unit]}
    assert degrees == {1}, "a concat follows in the same unit: it needs all channels"
    assert max(each.configuration.channels for each in layers.layouts[depthwise]) == 4
    sketch = Sketch((6, 6))
    sketch.channels["x"] = 6
    grouped = network_of(sketch.model([sketch.conv("x", 12, (1, 1), group=3)]))
    (found,) = layers_of(grouped, cluster(SLOW, SLOW)).layouts
    halves = next(each for each in found if each.configuration.channels == 2)
    spans = [next(iter(tile.boxes.values()))[1] for tile in halves.tiles.values()]
    assert [len(span) % 4 for span in spans] == [0, 0]


def test_final_graph_has_two_nodes() -> None:
    network = network_of(classifier())
    layers = layers_of(network, cluster(SLOW, SLOW))
    strategy = find_strategy(layers.graph())
    assert (strategy.final_nodes, strategy.exact) == (2, True)
    sizes = [len(each) for each in layers.layouts]
    assert math.prod(sizes) > 10**5, "worth eliminating"


def test_a_damaged_halo_would_be_seen() -> None:
    model = classifier()
    network = network_of(model)
    plan = elimination(network, cluster(SLOW, SLOW, mbps=1000.0))
    tasks = list(itertools.accumulate(len(block.tiles) for block in plan.blocks))

    def blank(task: int, feeds):
        if task != tasks[0]:
            return feeds
        return {
            name: np.where(np.arange(a.shape[-2])[:, None] < 1, 0, a) for name, a in feeds.items()
        }

    assert difference(model, plan, network).max_rel_error <= TOLERANCE
    assert difference(model, plan, network, blank).max_rel_error > 100 * TOLERANCE
