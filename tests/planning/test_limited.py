"""Devices that take whole networks only, beside others."""

from dataclasses import replace

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.groups import counts, divided
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.whole_network_devices import without_others
from models.cut.program import NetworkKey
from protos.errors import Infeasible
from protos.wire.limits import Limits
from tests.planning.support import cluster, real, small

OTHER = Limits(networks=["0" * 64])
ANY = Limits()
DIVIDING = sorted(STRATEGIES.keys() - {"single", "auto"})


def limited(some: Cluster, index: int = 0, limits: Limits = ANY) -> Cluster:
    """The cluster, one of whose devices has limits."""
    devices = list(some.devices)
    devices[index] = replace(devices[index], limits=limits)
    return replace(some, devices=tuple(devices))


def beside(rate: float, *others: float, limits: Limits = ANY) -> Cluster:
    """A device with limits, and others."""
    return limited(cluster(rate, *others, host=False), limits=limits)


@pytest.mark.parametrize("name", DIVIDING)
def test_limited_device_gets_no_part_of_a_divided_network(name: str) -> None:
    plan = propose(STRATEGIES[name], small(), beside(9.0, 0.01, 0.01, 0.01))
    assert plan.devices
    assert "d0" not in plan.devices
    told = {each.device: each.reason for each in plan.unused}
    assert told["d0"] == "takes whole networks only"


@pytest.mark.parametrize("name", ["single", "auto"])
def test_fastest_limited_device_computes_everything(name: str) -> None:
    plan = propose(STRATEGIES[name], small(), beside(9.0, 0.01, 0.01))
    assert (plan.devices, plan.strategy, plan.baseline_device) == (("d0",), name, "d0")
    assert {each.device for each in plan.unused} == {"d1", "d2"}
    slow = propose(STRATEGIES[name], small(), beside(0.0001, 0.01, 0.01))
    assert "d0" not in slow.devices


@pytest.mark.parametrize("name", STRATEGIES)
def test_limited_device_serves_alone_where_no_other_is_left(name: str) -> None:
    assert propose(STRATEGIES[name], small(), beside(1.0)).devices == ("d0",)


@pytest.mark.parametrize("name", ["single", "lw", "auto"])
def test_a_network_that_it_does_not_take_stays_with_the_others(name: str) -> None:
    plan = propose(STRATEGIES[name], small(), beside(9.0, 0.01, 0.01, limits=OTHER))
    assert "d0" not in plan.devices
    assert {each.device: each.reason for each in plan.unused}["d0"].endswith("1 of them")
    with pytest.raises(Infeasible, match="no device takes small: d0"):
        propose(STRATEGIES[name], small(), beside(9.0, limits=OTHER))


@pytest.mark.parametrize(
    ("model", "medium"),
    [
        ("digits", "star"),
        *(
            pytest.param(model, medium, marks=pytest.mark.slow)
            for model in ("resnet50", "yolov8n")
            for medium in ("star", "switch", "air")
        ),
    ],
)
def test_auto_is_never_slower_than_a_fast_one_alone(model: str, medium: str) -> None:
    network = real(model)
    some = replace(beside(160.0, *[8.0] * 7), medium=medium)
    for each in (some, limited(some, 1, OTHER)):
        alone = propose(STRATEGIES["single"], network, replace(each, devices=each.devices[:1]))
        plan = propose(STRATEGIES["auto"], network, each)
        assert plan.predicted_latency_s <= alone.predicted_latency_s * (1 + 1e-9)
        assert simulate(plan, network, each).latency_s == pytest.approx(plan.predicted_latency_s)


def test_a_plan_that_gives_it_a_tile_is_illegal() -> None:
    some = cluster(1.0, 1.0, host=False)
    plan = propose(STRATEGIES["lw"], small(), some)
    with pytest.raises(IllegalPlan, match="'d1' takes whole networks only") as caught:
        check_plan(plan, small(), limited(some, 1))
    assert caught.value.block is not None
    whole = propose(STRATEGIES["single"], small(), some)
    index = ["d0", "d1"].index(whole.devices[0])
    check_plan(whole, small(), limited(some, index))
    with pytest.raises(IllegalPlan, match="1 of them"):
        check_plan(whole, small(), limited(some, index, OTHER))


def test_limited_device_is_a_group_of_its_own() -> None:
    assert counts(4, 1) == [1, 2, 3, 5]
    assert counts(0, 1) == [1]
    assert counts(0, 2) == [1, 2]
    some = beside(9.0, 1.0, 1.0, 1.0, 1.0)
    for count in counts(4, 1)[1:]:
        groups = [[each.id for each in group.devices] for group in divided(some, count)]
        assert len(groups) == count
        assert all(groups)
        assert ["d0"] in groups
        assert sum(map(len, groups)) == 5


def test_limits_say_which_networks_are_taken() -> None:
    whole = NetworkKey.of(small().graph)
    assert whole == ("", {"1x3x32x32"}, {"float32"})
    assert Limits().take(*whole)
    assert Limits(shapes=["1x3x32x32"], dtypes=["float32", "uint8"]).take(*whole)
    assert not Limits(shapes=["1x3x64x64"]).take(*whole)
    assert not Limits(dtypes=["uint8"]).take(*whole)
    assert not OTHER.take(*whole)
    assert Limits(networks=["0" * 64]).take("0" * 64, (), ())
    with pytest.raises(Infeasible, match="no device takes"):
        without_others(small(), beside(1.0, limits=OTHER))
