"""Devices that can't reach each other: planned without, and what planners forget is refused."""

from dataclasses import replace
from itertools import combinations

import pytest

from coordinator.costs.cluster import Cluster, Link
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from protos.wire.facts import DeviceId
from tests.planning.support import cluster, device, real
from tests.planning.test_stage_groups import network as heavy

NETWORK = real("digits")


def pis(mbps: float = 93.7) -> Cluster:
    """Where peers pay: slow cores on a switch."""
    some = cluster(*[0.5] * 4, link=Link(mbps * 1e6 / 8, 0.001, 0.002), host=False)
    return replace(some, medium="switch")


def apart(some: Cluster, *pairs: tuple[DeviceId, DeviceId]) -> Cluster:
    return replace(some, apart=frozenset(map(frozenset, pairs)))


FIRST, SECOND, THIRD, LAST = (device.id for device in pis().devices)
ISOLATED = tuple(combinations((FIRST, SECOND, THIRD, LAST), 2))


@pytest.mark.parametrize("name", ["halo", "auto"])
@pytest.mark.parametrize("pairs", [((FIRST, SECOND),), ISOLATED])
def test_plans_send_nothing_between_devices_that_are_apart(
    name: str, pairs: tuple[tuple[DeviceId, DeviceId], ...]
) -> None:
    some = apart(pis(), *pairs)
    plan = strategy(name)(NETWORK, some)
    check_plan(plan, NETWORK, some)
    assert plan.predicted_latency_s == pytest.approx(simulate(plan, NETWORK, some).latency_s)


def test_devices_that_reach_each_other_go_on_exchanging() -> None:
    some = apart(pis(mbps=10), (FIRST, SECOND), (FIRST, THIRD), (FIRST, LAST))
    assert [device.id for device in some.mutual] == [SECOND, THIRD, LAST]
    plan = strategy("halo")(NETWORK, some)
    assert plan.traffic.halo > 0
    assert FIRST not in plan.devices


def test_a_plan_that_forgets_it_is_refused_with_both_names() -> None:
    some = pis()
    plan = strategy("halo")(NETWORK, some)
    check_plan(plan, NETWORK, some)
    with pytest.raises(IllegalPlan, match="cannot reach each other") as caught:
        check_plan(plan, NETWORK, apart(some, (SECOND, THIRD)))
    assert SECOND in caught.value.cause
    assert THIRD in caught.value.cause


def test_absent_device_keeps_nobody_apart() -> None:
    some = apart(pis(mbps=10), (FIRST, DeviceId("gone")))
    assert some.apart == frozenset()
    assert len(some.mutual) == 4
    some = apart(pis(mbps=10), (FIRST, SECOND))
    assert replace(some, devices=some.devices[1:]).apart == frozenset()
    assert {device.id for device in some.mutual} == {SECOND, THIRD, LAST}  # in any process


def test_weights_that_moved_to_a_device_that_others_cannot_reach_come_through_the_host() -> None:
    rooms = {"a": 208, "b": 199, "c": 214, "d": 169}
    link = Link(10e6 / 8, 1e-3, 2e-3)
    devices = [device(name, 2.0, link, memory_mb=room) for name, room in rooms.items()]
    pairs = [(each.id, devices[-1].id) for each in devices[:-1]]
    some = apart(Cluster(tuple(devices), "switch"), *pairs)
    check_plan(propose(STRATEGIES["halo"], heavy(), some), heavy(), some)
