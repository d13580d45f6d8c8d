"""Placing weights: every strategy's plan keeps to the devices' memory where any plan can."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.placing import placed, within_memory
from coordinator.planning.plan_memory import needs, overfilled
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.tasks.plan import Block, Plan, Tile
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.tensors.boxes import Box
from models.tensors.memory import PROCESS_BYTES, PROGRAM_BYTES
from protos.errors import Infeasible, TooLittleMemory
from protos.wire.facts import DeviceId
from tests.examples import examples
from tests.planning.run_plan import difference
from tests.planning.support import device, real

SHARDED = sorted(STRATEGIES.keys() - {"single"})
# What a device with one program needs beside its weights.
BASE_MB = (PROCESS_BYTES + PROGRAM_BYTES) // 10**6


def capped(*memory_mb: int, gflops: float = 2.0, concurrency: int = 1) -> Cluster:
    devices = [device(f"d{k}", gflops, memory_mb=each) for k, each in enumerate(memory_mb)]
    return Cluster(tuple(replace(each, concurrency=concurrency) for each in devices))


@cache
def model() -> ModelProto:
    """VGG's form: 9 MB of convolutions, 93 MB of fully connected layers."""
    net = Builder("like_vgg", seed=5)
    x = net.input("image", (1, 3, 32, 32))
    for index, channels in enumerate((32, 128, 256, 256, 512), start=1):
        x = x.conv(f"conv{index}", channels, square(3)).relu()
        x = x.max_pool(f"pool{index}", square(2, 2)) if index < 4 else x
    return net.model(x.flatten("flat").gemm("fc1", 2560).relu().gemm("fc2", 1024).relu())


@cache
def network() -> Network:
    return divide(load_graph(model(), "like_vgg"))


def assert_fits(plan: Plan, of: Network, cluster: Cluster) -> None:
    check_plan(plan, of, cluster)
    assert not overfilled(of, cluster, plan)


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize(
    "memory_mb",
    [pytest.param((200, 200, 200), marks=pytest.mark.slow), (180, 290, 180, 0)],
)
def test_every_strategy_answers_from_devices_that_hold_a_share(
    name: str, memory_mb: tuple[int, ...]
) -> None:
    some = capped(*memory_mb)
    plan = propose(STRATEGIES[name], network(), some)
    assert_fits(plan, network(), some)
    assert difference(model(), plan, network()).max_rel_error <= 1e-5


def test_a_slice_that_is_wrong_would_be_seen() -> None:
    plan = propose(STRATEGIES["ofl"], network(), capped(200, 200, 200))

    def blank(task: int, feeds):
        return {n: np.zeros_like(a) for n, a in feeds.items()} if task == 1 else feeds

    assert difference(model(), plan, network(), blank).max_rel_error > 1e-3


def test_single_never_uses_several_devices() -> None:
    with pytest.raises(Infeasible) as caught:
        propose(STRATEGIES["single"], network(), capped(200, 200, 200))
    assert not isinstance(caught.value, TooLittleMemory)


@pytest.mark.parametrize(
    "memory_mb", [(300,) * 4, pytest.param((400,) * 3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["auto", "fused", "halo", "aofl"])
def test_vgg16_fits_on_devices_smaller_than_its_weights(
    name: str, memory_mb: tuple[int, ...]
) -> None:
    """553 MB of weights: half of the devices' memory and more."""
    vgg16, some = real("vgg16"), capped(*memory_mb)
    plan = propose(STRATEGIES[name], vgg16, some)
    assert_fits(plan, vgg16, some)
    assert len(plan.devices) == len(memory_mb)


def test_blocks_stay_where_there_is_room_for_them() -> None:
    """Only what is too heavy becomes stages; the others are as planned."""
    free = STRATEGIES["lw"](network(), capped(0, 0, 0))
    tight = capped(230, 230, 230)
    plan = placed(free, network(), tight)
    assert_fits(plan, network(), tight)
    kept = [block for block in plan.blocks if block in free.blocks]
    assert 0 < len(kept) < len(free.blocks)
    assert "share of the weights" in plan.notes[-1]
    roomy = capped(4000, 4000, 4000)
    assert placed(free, network(), roomy) is free
    ofl = STRATEGIES["ofl"]
    assert within_memory(ofl)(network(), roomy) == ofl(network(), roomy)


def test_stages_follow_each_other_on_devices_that_hold_two_layers_each() -> None:
    net = Builder("tokens", seed=1)
    x = net.input("x", (1, 64, 1280))
    for index in range(6):
        weight = net.he_weight(f"w{index}", (1280, 1280))
        x = net.node("MatMul", f"product{index}", [x.name, weight], (1, 64, 1280))
        x = net.node("Relu", f"relu{index}", [x.name], (1, 64, 1280))
    proto = net.model(x)
    tokens, some = divide(load_graph(proto, "tokens")), capped(*[BASE_MB + 17] * 3)
    plan = propose(STRATEGIES["ofl"], tokens, some)
    assert_fits(plan, tokens, some)
    assert len(plan.devices) == 3
    assert all(len(block.tiles) == 1 for block in plan.blocks)
    assert difference(proto, plan, tokens).max_rel_error <= 1e-5


def test_devices_that_compute_several_tasks_at_once() -> None:
    some = capped(200, 200, 200, concurrency=4)
    plan = propose(STRATEGIES["ofl"], network(), some)
    assert_fits(plan, network(), some)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_network_that_fits_nowhere_says_how_much_is_missing(count: int) -> None:
    with pytest.raises(TooLittleMemory) as caught:
        propose(STRATEGIES["auto"], network(), capped(*[140] * count))
    held = sum(array.nbytes for array in network().graph.constants.values())
    lacking = held - count * (140 - BASE_MB) * 10**6
    assert f"at least {lacking * 1.5 / 1e6:.0f} MB of memory are missing" in caught.value.cause
    assert "Add devices" in caught.value.cure


def test_network_that_fits_nowhere_is_refused_before_the_search() -> None:
    def searches(network: Network, cluster: Cluster) -> Plan:
        raise AssertionError("nothing fits")

    with pytest.raises(TooLittleMemory, match="have room for"):
        within_memory(searches)(network(), capped(140, 140))
    with pytest.raises(AssertionError, match="nothing fits"):  # nobody knows what the second has
        within_memory(searches)(network(), capped(140, 0))


def test_a_layer_that_cannot_be_sliced_is_named() -> None:
    net = Builder("one", seed=1)
    one = divide(load_graph(net.model(net.input("x", (1, 1 << 22)).gemm("fc", 1)), "one"))
    with pytest.raises(TooLittleMemory, match=r"fc has 17 MB .* missing"):
        propose(STRATEGIES["ofl"], one, capped(*[BASE_MB + 10] * 3))


def test_memory_too_small_for_programs_says_what_one_device_lacks() -> None:
    with pytest.raises(TooLittleMemory, match=r"d\d would need .* MB are missing"):
        propose(STRATEGIES["ofl"], network(), capped(BASE_MB + 52, BASE_MB + 52))


def test_the_illegal_plan_of_a_plug_in_is_refused_as_before() -> None:
    def half(of: Network, cluster: Cluster) -> Plan:
        plan = STRATEGIES["lw"](of, cluster)
        return replace(plan, blocks=plan.blocks[:1])

    with pytest.raises(IllegalPlan):
        propose(half, network(), capped(400, 400))


def test_a_plug_in_that_knows_nothing_of_memory_is_helped() -> None:
    def everything(of: Network, cluster: Cluster) -> Plan:
        outputs = of.outputs(0, len(of.units))
        tile = Tile(DeviceId("d0"), {name: Box.whole(of.graph.shape(name)) for name in outputs})
        free = tuple(replace(each, memory_bytes=0) for each in cluster.devices)
        blocks = [Block(0, len(of.units), (tile,))]
        return plan_of_blocks("mine", blocks, of, replace(cluster, devices=free))

    some = capped(200, 200, 200)
    plan = propose(everything, network(), some)
    assert_fits(plan, network(), some)
    assert difference(model(), plan, network()).max_rel_error <= 1e-5


@settings(max_examples=examples(25))
@given(
    memory_mb=st.lists(st.integers(100, 300), min_size=1, max_size=4),
    name=st.sampled_from(["ofl", "lw", "halo"]),
)
def test_any_caps_are_kept_or_refused(memory_mb: list[int], name: str) -> None:
    some = capped(*memory_mb)
    try:
        plan = propose(STRATEGIES[name], network(), some)
    except Infeasible as error:
        assert "MB" in str(error)  # noqa: PT017 - both ends are right
        held = sum(array.nbytes for array in network().graph.constants.values())
        rooms = sum(max(0, each - BASE_MB) for each in memory_mb) * 10**6
        assert rooms < 2 * held, "twice the weights are always enough"
    else:
        assert_fits(plan, network(), some)
        assert all(need.total_bytes() > 0 for need in needs(network(), plan).values())
