"""Branches on different devices: where rows can't be cut, and only where it pays."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from benchmarks.branches import towers
from coordinator.costs.cluster import Cluster
from coordinator.planning.legal import check_plan
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.branches import branches, by_branches
from coordinator.planning.planners.fused import fused
from coordinator.planning.simulate.simulator import simulate
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from tests.planning.clusters import cluster
from tests.planning.run_plan import difference


def small(count: int) -> onnx.ModelProto:
    return towers(count, width=24, side=8, depth=3, patch=2)


def network(model: onnx.ModelProto) -> Network:
    return divide(load_graph(model))


# So slow that sending is cheap beside computing.
SLOW = 1e-3


def test_towers_run_side_by_side() -> None:
    model = small(3)
    some = cluster(*[SLOW] * 3)
    net = network(model)
    base = fused(net, some)
    plan = branches(net, some)
    check_plan(plan, net, some)
    assert len(plan.devices) == 3
    assert plan.predicted_latency_s < 0.6 * base.predicted_latency_s
    assert plan.predicted_latency_s == simulate(plan, net, some).latency_s
    assert difference(model, plan, net).max_rel_error <= 1e-5
    assert "branches on different devices" in plan.notes[0]


def test_auto_takes_them_where_they_pay() -> None:
    net = network(small(2))
    plan = auto(net, cluster(*[SLOW] * 2))
    assert "Chosen: " in plan.notes[0]
    assert "with branches" in plan.notes[0]


@pytest.mark.parametrize("count", [1, 2])
def test_branches_stay_together_where_sending_takes_longer(count: int) -> None:
    net, some = network(small(count)), cluster(1e3, 1e3)
    assert by_branches(fused(net, some), net, some) is None


def test_single_tower_has_no_branches() -> None:
    net, some = network(small(1)), cluster(*[SLOW] * 2)
    assert by_branches(fused(net, some), net, some) is None


def test_devices_that_do_not_reach_each_other_pass_through_the_host() -> None:
    model = small(2)
    net, some = network(model), cluster(*[SLOW] * 2)
    apart = frozenset({frozenset(device.id for device in some.devices)})
    parted = Cluster(some.devices, apart=apart)
    plan = branches(net, parted)
    check_plan(plan, net, parted)
    assert len(plan.devices) == 2
    assert all(block.exchange == "host" for block in plan.blocks)
    assert difference(model, plan, net).max_rel_error <= 1e-5


def test_memory_is_a_bound() -> None:
    net, some = network(small(2)), cluster(*[SLOW] * 2)
    one, other = some.devices
    tight = Cluster((one, replace(other, memory_bytes=1)))
    plan = branches(net, tight)
    assert plan.devices == (one.id,)


def test_branches_plan_the_same_every_time() -> None:
    net, some = network(small(3)), cluster(SLOW, 2 * SLOW, SLOW)
    assert branches(net, some) == branches(net, some)
