"""`kcut`: SOYBEAN's cuts on units: legal, exact, any number of devices, never worse than alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.layouts import UnitTile
from coordinator.planning.legal import check_plan
from coordinator.planning.papers.kcut import UnitFlow, kcut
from coordinator.planning.papers.kcut_search import Group, k_cut
from coordinator.planning.papers.unit_cut import PARTIAL, TILINGS, Cut, Setting
from coordinator.planning.simulate.simulator import simulate
from models.check.check import TOLERANCE
from models.cut.units import Network
from models.onnx_file import builder
from models.onnx_file.builder import square
from models.tensors.boxes import Box, covers_exactly
from protos.errors import Infeasible
from tests.examples import examples
from tests.models.networks import networks
from tests.planning.clusters import SLOW, cluster
from tests.planning.run_plan import difference
from tests.planning.test_elimination import classifier, network_of

WEIGHTS = st.lists(st.sampled_from([1.0, 0.5, 0.3]), min_size=1, max_size=6)


def cut_devices(
    network: Network, weights: Sequence[float]
) -> tuple[Group, tuple[tuple[UnitTile | None, ...], ...]]:
    """SOYBEAN's cuts for devices with these rates, and what each device computes of each unit."""
    tree, leaves = k_cut(UnitFlow.of(Setting.of(network)), weights)
    return tree, tuple(leaf.tiles for leaf in leaves)


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(networks(), WEIGHTS)
def test_plan_is_legal_and_gives_the_whole_models_answer(model, weights) -> None:
    network = network_of(model)
    devices = cluster(*(SLOW * each for each in weights), mbps=1000.0)
    plan = kcut(network, devices)
    check_plan(plan, network, devices)
    assert plan.predicted_latency_s <= plan.single_device_latency_s + 1e-9
    assert plan.traffic == simulate(plan, network, devices).traffic
    assert difference(model, plan, network).max_rel_error <= TOLERANCE


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(networks(), WEIGHTS)
def test_devices_together_make_everything_once(model, weights) -> None:
    network = network_of(model)
    tree, tiles = cut_devices(network, weights)
    assert tree.stop == len(tiles) == len(weights)
    for index, unit in enumerate(network.units):
        mine = [each[index] for each in tiles if each[index] is not None]
        if any(tile.part is not None for tile in mine):
            continue
        for name in unit.outputs:
            boxes = [tile.boxes[name] for tile in mine]
            assert covers_exactly(boxes, Box.whole(network.graph.shape(name)))


def halo_chain(layers: int = 3) -> Network:
    net = builder.NetworkBuilder("chain", seed=4)
    x = net.input("image", (1, 4, 32, 8))
    for layer in range(layers):
        x = x.conv(f"conv{layer}", 4, square(3))
    return network_of(net.model(x))


def test_cut_of_convolutions_moves_their_halos() -> None:
    """32 x 8 maps: rows are split, and each half fetches one row of 8 x 4 floats per layer."""
    tree, tiles = cut_devices(halo_chain(3), [1.0, 1.0])
    rows = [[tile.boxes[f"conv{i}"][2] for i, tile in enumerate(each)] for each in tiles]
    assert [len(span) for each in rows for span in each] == [16] * 6
    assert tree.delta_bytes == 3 * 2 * 8 * 4 * 4, "of the image, and of what two layers made"


def test_uneven_devices_get_uneven_shares() -> None:
    _, tiles = cut_devices(halo_chain(1), [3.0, 2.0, 2.0, 1.0])
    assert [tile.boxes["conv0"].volume // (8 * 4) for (tile,) in tiles] == [12, 8, 8, 4]


def test_fully_connected_layers_alternate_between_output_and_input() -> None:
    """C, then partial sums: what is moved is the input to all, and the sums of the last layer."""
    net = builder.NetworkBuilder("dense", seed=2)
    x = net.input("vector", (1, 64))
    x = x.gemm("fc1", 256).gemm("fc2", 8)
    model = net.model(x)
    network = network_of(model)
    tree, tiles = cut_devices(network, [1.0] * 4)
    assert [len(first.boxes["fc1"][1]) for first, _ in tiles] == [64] * 4
    assert [second.part for _, second in tiles] == [
        Box.of((0, 1), (64 * d, 64 * d + 64)) for d in range(4)
    ]
    assert tree.total_bytes == 3 * 64 * 4 + 3 * 8 * 4
    plan = kcut(network, cluster(*[SLOW] * 4))
    assert len(plan.blocks[1].tiles) == 4
    assert all(tile.reduce for tile in plan.blocks[1].tiles)
    assert difference(model, plan, network).max_rel_error <= TOLERANCE


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from([(0.5, 0.5), (0.7, 0.3)]))
def test_cut_moves_what_its_halves_miss(model, shares) -> None:
    """Counted element by element: what is read there and does not lie there, or the reverse."""
    network = network_of(model)
    flow = UnitFlow.of(Setting.of(network))
    half = flow.part([1] * len(flow.own), shares, 0)
    for group in (flow, half):
        cut = Cut(group.setting, group.tiles, group.own, shares)
        for unit in cut.active:
            names, by_form = cut.conversions(unit)
            for form, (_, *moved) in by_form.items():
                for place, (name, found) in enumerate(zip(names, moved, strict=True)):
                    made = place >= len(names) - len(group.tiles[unit].boxes)
                    lies = [cut.owned(name, tiling) for tiling in range(TILINGS)]
                    whole = missing([group.tiles[unit]], [group.own[name]], name, made)
                    parts = [missing(cut.halves(unit, form), each, name, made) for each in lies]
                    size = group.setting.itemsize(name)
                    assert form == PARTIAL or found.tolist() == [
                        (each - whole) * size for each in parts
                    ]


def missing(tiles, lies, name: str, made: bool) -> int:
    total = 0
    for tile, box in zip(tiles, lies, strict=True):
        own = None if tile is None else (tile.boxes if made else tile.reads)[name]
        need, there = (box, own) if made else (own, box)
        if need is not None:
            total += need.volume - (need.intersect(there).volume if there is not None else 0)
    return total


def test_more_cuts_move_more() -> None:
    network = network_of(classifier())
    moved = [cut_devices(network, [1.0] * count)[0].total_bytes for count in (1, 2, 4)]
    assert moved == sorted(moved)
    assert moved[0] == 0 < moved[1]


def test_devices_that_cost_more_than_they_help_are_left_out() -> None:
    network = network_of(classifier())
    plan = kcut(network, cluster(1.0, 1.0, 1.0, mbps=0.1))
    assert plan.devices == ("d0",)
    assert len(plan.blocks) == 1
    assert {each.device for each in plan.unused} == {"d1", "d2"}


def test_kcut_keeps_to_memory_caps() -> None:
    net = builder.NetworkBuilder("dense", seed=2)
    x = net.input("image", (1, 1024)).gemm("fc1", 8192).relu().gemm("fc2", 1024)
    network = network_of(net.model(x))
    tight = cluster(1.0, 1.0, mbps=1.0, memory_mb=170.0)
    plan = kcut(network, tight)
    check_plan(plan, network, tight)
    assert len(plan.devices) == 2
    with pytest.raises(Infeasible, match="MB"):
        kcut(network, cluster(1.0, 1.0, memory_mb=110.0))
    with pytest.raises(Infeasible):
        kcut(network, Cluster(()))


def test_a_damaged_input_would_be_seen() -> None:
    model = classifier()
    network = network_of(model)
    plan = kcut(network, cluster(SLOW, SLOW, mbps=1000.0))

    def blank(task: int, feeds):
        return {n: np.zeros_like(a) for n, a in feeds.items()} if task == 1 else feeds

    assert difference(model, plan, network, blank).max_rel_error > 100 * TOLERANCE
