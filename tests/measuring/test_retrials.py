"""Devices without work are measured again, ever less often."""

from itertools import pairwise

from coordinator.measuring.queues import FIRST_S, LAST_S, PROBATION_S, Retrials
from protos.wire.facts import DeviceId

USED, OTHER = DeviceId("used"), DeviceId("other")
BOTH = [USED, OTHER]


def trials(retrials: Retrials, seconds: range) -> list[tuple[int, DeviceId]]:
    """When which device was due, with a request each second that leaves one of them out."""
    return [(now, due) for now in seconds for due in retrials.answered({USED}, BOTH, now)]


def test_a_device_without_work_is_tried_after_a_minute_and_then_ever_less_often() -> None:
    seen = trials(Retrials(), range(5 * 3600))
    assert {device for _, device in seen} == {OTHER}
    moments = [0, *(now for now, _ in seen)]
    waits = [later - before for before, later in pairwise(moments)]
    assert waits[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert waits[-1] == LAST_S


def test_hours_without_requests_do_not_count() -> None:
    retrials = Retrials()
    retrials.answered(set(BOTH), BOTH, 0.0)
    assert retrials.answered({USED}, BOTH, 8 * 3600.0) == []
    assert retrials.answered({USED}, BOTH, 8 * 3600.0 + FIRST_S) == [OTHER]


def test_a_device_that_proves_itself_begins_anew() -> None:
    for seconds, wait_s in ((10, 2 * FIRST_S), (int(PROBATION_S) + 10, FIRST_S)):
        retrials = Retrials()
        (tried, _), *_ = trials(retrials, range(100))
        for now in range(tried, tried + seconds):
            assert retrials.answered(set(BOTH), BOTH, now) == []
        left_s = tried + seconds
        (again, _), *_ = trials(retrials, range(left_s, left_s + 300))
        assert again - left_s == wait_s


def test_a_device_that_left_begins_anew() -> None:
    retrials = Retrials()
    trials(retrials, range(100))
    retrials.answered({USED}, [USED], 100.0)
    (again, _), *_ = trials(retrials, range(101, 300))
    assert again - 101 == FIRST_S
