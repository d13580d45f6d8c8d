"""Devices that can't reach each other: planned without, and what planners forget is refused."""

from dataclasses import replace
from itertools import combinations

import pytest

from coordinator.costs.devices import Cluster, Link
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.simulate.simulator import simulate
from coordinator.runtime.planners import strategy
from protos.facts import DeviceId
from tests.planning.support import cluster, real

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
def test_nothing_is_sent_where_nobody_is_reached(
    name: str, pairs: tuple[tuple[DeviceId, DeviceId], ...]
) -> None:
    some = apart(pis(), *pairs)
    plan = strategy(name)(NETWORK, some)
    check_plan(plan, NETWORK, some)
    assert plan.predicted_latency_s == pytest.approx(simulate(plan, NETWORK, some).latency_s)


def test_the_others_go_on_exchanging() -> None:
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
