import pytest

from coordinator.devices.other_coordinators import PERIOD_S, OthersShare


def told_every_period(
    each: OthersShare, steps: int, own_s: float, others_s: float, concurrency: int = 1
) -> float:
    """The share after some periods in which the device computed so long for either."""
    counted = 0.0
    each.told(counted, True, concurrency, now=0.0)
    for step in range(1, steps + 1):
        each.computed(own_s)
        counted += own_s + others_s
        each.told(counted, True, concurrency, now=step * PERIOD_S)
    return each.share


def test_share_of_others_is_the_time_that_is_not_ours() -> None:
    share = told_every_period(OthersShare(), 10, own_s=0.3 * PERIOD_S, others_s=0.4 * PERIOD_S)
    assert share == pytest.approx(0.4, rel=0.01)


def test_our_own_work_is_nobody_elses() -> None:
    assert told_every_period(OthersShare(), 10, own_s=PERIOD_S, others_s=0.0) == 0


def test_a_device_with_several_tasks_at_once_has_more_time() -> None:
    share = told_every_period(OthersShare(), 10, 0.0, PERIOD_S, concurrency=4)
    assert share == pytest.approx(0.25, rel=0.01)


def test_share_of_others_leaves_something() -> None:
    assert told_every_period(OthersShare(), 20, own_s=0.0, others_s=2 * PERIOD_S) == 0.9


def test_reports_that_are_late_are_made_up_for() -> None:
    late = OthersShare()
    late.told(0.0, are_others=True, concurrency=1, now=0.0)
    for step in range(1, 20):
        late.told(step * PERIOD_S / 2, are_others=True, concurrency=1, now=step * PERIOD_S)
        late.computed(PERIOD_S / 2)
    assert late.share < 0.01


def test_greetings_in_quick_succession_say_nothing() -> None:
    each = OthersShare()
    each.told(0.0, are_others=True, concurrency=1, now=0.0)
    each.told(0.5, are_others=True, concurrency=1, now=PERIOD_S / 2)
    assert each.share == 0
    each.told(PERIOD_S, are_others=True, concurrency=1, now=PERIOD_S)
    assert each.share > 0


def test_lone_coordinator_has_everything() -> None:
    each = OthersShare()
    told_every_period(each, 3, own_s=0.0, others_s=PERIOD_S)
    each.told(100.0, are_others=False, concurrency=1, now=100.0)
    assert each.share == 0
    # What was computed meanwhile is not the next one's.
    each.told(1000.0, are_others=False, concurrency=1, now=1000.0)
    each.told(1000.0, are_others=True, concurrency=1, now=1000.0 + PERIOD_S)
    assert each.share == 0
