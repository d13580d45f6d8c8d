"""Who of those that wait starts on which group; and how the load is told."""

from types import SimpleNamespace

import pytest

from coordinator.planning.groups import ServiceTimes
from coordinator.plans.grouping import ARRIVALS_S, OUTSTANDING_S, DeviceGroup, Load, starts


def group(latency_s: float, period_s: float, in_flight: int = 0) -> DeviceGroup:
    return DeviceGroup(SimpleNamespace(), ServiceTimes(latency_s, period_s, 0.0), in_flight)


def test_every_idle_group_takes_one_and_one_more_is_on_its_way() -> None:
    groups = [group(1, 1), group(1, 1)]
    assert [(p, groups.index(g)) for p, g in starts(groups, 9)] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_a_group_whose_devices_take_turns_is_at_more_images() -> None:
    assert len(starts([group(3, 1)], 9)) == 4


def test_full_groups_start_nothing() -> None:
    assert starts([group(1, 1, 2)], 3) == []


def test_a_slow_group_is_used_only_when_it_answers_sooner() -> None:
    fast, slow = group(1, 1), group(5, 5)
    assert starts([fast, slow], 3) == [(0, fast), (1, fast)]
    assert starts([fast, slow], 6) == [(0, fast), (1, fast), (5, slow)]


def test_the_rate_follows_the_arrivals_and_is_forgotten() -> None:
    load = Load()
    assert load.rate_per_s(0.0) == 0.0
    for tick in range(400):
        load.arrived(tick / 20)
        load.ended(tick / 20 + 0.01)
    assert load.rate_per_s(20.0) == pytest.approx(20, rel=0.05)
    assert load.rate_per_s(20.0 + 5 * ARRIVALS_S) < 0.2


def test_single_requests_are_no_burst() -> None:
    load = Load()
    load.arrived(100.0)
    assert load.rate_per_s(100.0) <= 1.2
    assert load.mean_outstanding(100.0) == 1.0


@pytest.mark.parametrize(("pause_s", "expected"), [(0.1, 8.0), (10.0, 3.9), (120.0, 1.0)])
def test_a_crowd_is_expected_again_for_some_seconds(pause_s: float, expected: float) -> None:
    load = Load()
    for _ in range(9):
        load.arrived(0.0)
    assert load.mean_outstanding(1.5) > 7
    for _ in range(9):
        load.ended(2.0)
    load.arrived(2.0 + pause_s)
    assert load.mean_outstanding(2.0 + pause_s) == pytest.approx(expected, rel=0.1)
    # Whoever is alone is soon seen to be.
    assert load.mean_outstanding(2.0 + pause_s + 5 * OUTSTANDING_S) == pytest.approx(1.0, abs=0.1)
