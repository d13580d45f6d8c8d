"""Stages on groups of devices: networks that fit the groups, but no device, are divided twice."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from coordinator.costs.cluster import Cluster, Device
from coordinator.planning.legal import check_plan
from coordinator.planning.placing import placed, within_memory
from coordinator.planning.plan_memory import larger_than_a_device, overfilled
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.stage_groups import staged_in_groups
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from tests.examples import examples
from tests.planning.run_plan import difference
from tests.planning.support import device
from tests.planning.test_placing import capped
from tests.planning.test_placing import network as like_vgg

UNLIKE = (2.0, 1.9, 2.1, 2.0, 2.2, 1.8, 2.0, 1.5)


@cache
def model() -> ModelProto:
    """Ten convolutions with 9.4 MB of weights each."""
    net = Builder("heavy", seed=5)
    x = net.input("image", (1, 3, 12, 12)).conv("first", 512, square(3)).relu()
    for index in range(10):
        x = x.conv(f"conv{index}", 512, square(3)).relu()
    return net.model(x)


@cache
def network() -> Network:
    return divide(load_graph(model(), "heavy"))


def cluster(memory_mb: int, *gflops: float) -> Cluster:
    return Cluster(tuple(device(f"d{k}", g, memory_mb=memory_mb) for k, g in enumerate(gflops)))


@pytest.mark.parametrize(
    ("name", "gflops"),
    [
        ("auto", (2.0,) * 8),
        pytest.param("fused", UNLIKE, marks=pytest.mark.slow),
        ("lw", UNLIKE),
    ],
)
def test_groups_answer_sooner_than_stages_on_one_device_each(
    name: str, gflops: tuple[float, ...]
) -> None:
    tight = cluster(200, *gflops)
    assert larger_than_a_device(network(), tight)
    plan = propose(STRATEGIES[name], network(), tight)
    assert "on 2 groups of devices" in " ".join(plan.notes)
    assert not overfilled(network(), tight, plan)
    assert len(plan.devices) == 8
    assert all(2 <= len(block.devices) <= 4 for block in plan.blocks)
    free = replace(tight, devices=tuple(replace(d, memory_bytes=0) for d in tight.devices))
    alone = placed(STRATEGIES[name](network(), free), network(), tight)
    assert plan.predicted_latency_s < 0.6 * alone.predicted_latency_s
    assert difference(model(), plan, network()).max_rel_error <= 1e-5


def test_a_wrong_tile_of_a_later_stage_would_be_seen() -> None:
    plan = propose(STRATEGIES["fused"], network(), cluster(200, *[2.0] * 8))
    last = sum(len(block.tiles) for block in plan.blocks) - 1

    def blank(task: int, feeds):
        return {n: np.zeros_like(a) for n, a in feeds.items()} if task == last else feeds

    assert difference(model(), plan, network(), blank).max_rel_error > 1e-3


def test_a_planner_is_asked_once_for_groups_of_equal_devices() -> None:
    asked: list[tuple[Device, ...]] = []

    def counted(network: Network, cluster: Cluster):
        asked.append(cluster.devices)
        return STRATEGIES["lw"](network, cluster)

    [*staged_in_groups(counted, network(), cluster(200, *[2.0] * 8))]
    assert [len(each) for each in asked] == [4, 2]
    asked.clear()
    [*staged_in_groups(counted, network(), cluster(200, 2.0, 2.5, 1.5, 2.2))]
    assert [len(each) for each in asked] == [2, 2]


def test_stages_need_room_on_their_group() -> None:
    assert not [*staged_in_groups(STRATEGIES["lw"], network(), cluster(150, *[2.0] * 8))]


def test_network_that_fits_is_not_staged() -> None:
    roomy = cluster(4000, *[2.0] * 4)
    ofl = STRATEGIES["ofl"]
    assert within_memory(ofl)(network(), roomy) == ofl(network(), roomy)


@settings(max_examples=examples(25))
@given(
    memory_mb=st.lists(st.integers(100, 300), min_size=4, max_size=8),
    name=st.sampled_from(["halo", "lw", "elimination"]),
)
def test_stages_of_layers_with_partial_sums_are_legal(memory_mb: list[int], name: str) -> None:
    """The plans of groups of unlike devices divide fully connected layers in different ways."""
    for plan in staged_in_groups(STRATEGIES[name], like_vgg(), capped(*memory_mb)):
        check_plan(plan, like_vgg(), capped(*memory_mb))


@cache
def with_heads() -> Network:
    """Every convolution's map is an output, too."""
    net = Builder("heads", seed=5)
    x, made = net.input("image", (1, 3, 12, 12)), []
    for index in range(11):
        x = x.conv(f"conv{index}", 512, square(3)).relu()
        made.append(x)
    return divide(load_graph(net.model(*made), "heads"))


def test_a_block_that_another_group_has_begun_keeps_only_what_it_still_makes() -> None:
    """Groups of unlike devices cut the network at other places."""
    draw, found = random.Random(1), 0
    for _ in range(examples(12)):
        count = draw.randint(4, 8)
        rates = [draw.choice((0.5, 1.0, 2.0, 4.0, 8.0)) for _ in range(count)]
        unlike = Cluster(
            tuple(
                device(f"d{k}", rate, memory_mb=draw.randint(150, 300))
                for k, rate in enumerate(rates)
            )
        )
        for name in ("fused", "aofl"):
            for plan in staged_in_groups(STRATEGIES[name], with_heads(), unlike):
                check_plan(plan, with_heads(), unlike)
                found += 1
    assert found
