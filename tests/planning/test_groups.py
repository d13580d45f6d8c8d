"""Groups of devices, each with whole images of its own."""

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.planning.groups import Grouping, ServiceTimes, counts, divided, grouping
from coordinator.planning.planners.propose import propose
from coordinator.plans.named import strategy
from tests.planning.support import CLUSTERS, cluster, real, small


def alike(count: int, latency_s: float, period_s: float, shared_s: float = 0.0) -> Grouping:
    return Grouping((), (ServiceTimes(latency_s, period_s, shared_s),) * count)


def test_numbers_of_groups_are_powers_of_two_and_a_device_each() -> None:
    assert [counts(n) for n in (1, 2, 3, 6, 8)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 6],
        [1, 2, 4, 8],
    ]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9), st.data())
def test_groups_share_the_devices_out(speeds: list[float], data: st.DataObject) -> None:
    whole = cluster(*speeds)
    count = data.draw(st.integers(1, len(speeds)))
    groups = divided(whole, count)
    assert sorted(d.id for g in groups for d in g.devices) == sorted(d.id for d in whole.devices)
    totals = [sum(d.speed for d in g.devices) for g in groups]
    assert all(totals)
    # No group is ahead of another by more than its slowest device.
    for group, total in zip(groups, totals, strict=True):
        assert total - min(d.speed for d in group.devices) <= min(totals) * (1 + 1e-9)


def test_a_lone_image_gets_the_quickest_group() -> None:
    unlike = Grouping((), (ServiceTimes(3.0, 3.0, 0.0), ServiceTimes(1.0, 1.0, 0.0)))
    assert unlike.response_s(1) == 1.0
    assert isclose(unlike.capacity_per_s, 4 / 3)
    assert isclose(unlike.response_s(2), 1.5)  # three of four go to the quicker


def test_a_crowd_takes_turns() -> None:
    assert alike(2, 1.0, 1.0).response_s(8) == 4.0
    # Work that overlaps with that of the image before it is no shorter for the image itself.
    assert alike(1, 1.0, 0.75).response_s(3) == 2.5


@given(st.integers(1, 8), st.floats(1, 99), st.floats(1, 99))
def test_response_takes_longer_in_a_larger_crowd(count: int, one: float, other: float) -> None:
    group = alike(count, 2.0, 1.0)
    assert group.response_s(min(one, other)) <= group.response_s(max(one, other))


def test_shared_wire_bounds_all_groups() -> None:
    assert alike(4, 1.0, 1.0, shared_s=0.5).capacity_per_s == 2.0


def test_a_group_whose_devices_have_left_is_as_busy_as_those_that_step_in() -> None:
    network, whole = real("digits"), cluster(1.0, 1.0)
    left, stays = (replace(whole, devices=(each,)) for each in whole.devices)
    (own,) = grouping([strategy("single")(network, stays)], network, [stays]).services
    (found,) = grouping([strategy("single")(network, left)], network, [stays]).services
    assert found.period_s == own.period_s > 0


@pytest.mark.parametrize("medium", ["star", "switch", "air"])
def test_a_device_each_answers_most_and_all_together_soonest(medium: str) -> None:
    network, planner = real("vgg16-conv"), strategy("fused")
    whole = replace(CLUSTERS["no host"], medium=medium)
    found = {}
    for count in counts(4):
        groups = divided(whole, count)
        found[count] = grouping([planner(network, group) for group in groups], network, groups)
    assert found[1].devices == found[4].devices == {device.id for device in whole.devices}
    alone = 1.0 / found[4].services[0].latency_s
    assert found[4].capacity_per_s == pytest.approx(4 * alone, rel=0.05)
    assert found[4].capacity_per_s > found[2].capacity_per_s > found[1].capacity_per_s
    assert found[1].response_s(1) < found[2].response_s(1) < found[4].response_s(1)
    assert found[4].response_s(32) < found[2].response_s(32) < found[1].response_s(32)


def test_a_group_of_one_is_at_one_image_at_a_time() -> None:
    network = small()
    groups = divided(cluster(1.0, host=False), 1)
    found = grouping([strategy("single")(network, groups[0])], network, groups)
    assert found.services[0].period_s < found.services[0].latency_s  # it also travels


def test_a_device_that_computes_several_tasks_at_once_is_busy_with_them_together() -> None:
    network, planner = real("vgg16-conv"), strategy("auto")
    some = cluster(2.0, 2.0, host=False)
    some = replace(some, devices=tuple(replace(d, concurrency=4) for d in some.devices))
    (found,) = grouping([propose(planner, network, some)], network, [some]).services
    assert found.period_s <= found.latency_s
