"""Which tasks are computed again: nobody knows which is next, or goes unchecked for long."""

import random

from hypothesis import given
from hypothesis import strategies as st

from coordinator.audit.sampling import MOST_DEVICES, YOUNG_CHECKS, AuditSampling
from protos.wire.facts import DeviceId

EVERY = 200
A, B = DeviceId("a"), DeviceId("b")


class Latest(random.Random):
    """As late as possible."""

    def randint(self, a: int, b: int) -> int:
        return b


def gaps(sampling: AuditSampling, tasks: int, requests: int) -> list[int]:
    """Tasks from each check to the next, of requests with so many tasks of one device."""
    found, since = [], 0
    for _ in range(requests):
        since += tasks
        if sampling.ran({A: tasks}):
            sampling.chosen(A)
            found.append(since)
            since = 0
    return found


@given(st.integers(0, 1000), st.integers(1, 40))
def test_no_device_computes_twice_as_many_tasks_unchecked(seed: int, tasks: int) -> None:
    found = gaps(AuditSampling(EVERY, random.Random(seed)), tasks, 4000 // tasks)
    assert max(found) < 2 * EVERY


def test_a_known_device_is_checked_about_once_in_so_many_tasks() -> None:
    found = gaps(AuditSampling(EVERY, random.Random(1)), 1, 200_000)[YOUNG_CHECKS:]
    assert 0.7 * EVERY < sum(found) / len(found) < EVERY
    assert len(set(found)) > EVERY  # any number, not a habit


def test_a_new_device_is_checked_more_often() -> None:
    for seed in range(20):
        assert sum(gaps(AuditSampling(EVERY, random.Random(seed)), 1, 2000)[:YOUNG_CHECKS]) <= 300


def test_accused_device_is_sampled_like_a_new_one() -> None:
    sampling = AuditSampling(EVERY, Latest())
    gaps(sampling, 1, 2000)
    assert gaps(sampling, 1, 1000)[-1] == 300
    sampling.suspected(A)
    assert gaps(sampling, 1, 2000)[1:YOUNG_CHECKS] == [30] * (YOUNG_CHECKS - 1)


def test_most_overdue_device_comes_first() -> None:
    sampling = AuditSampling(EVERY, Latest())
    assert sampling.ran({A: 30, B: 29}) == [A]
    assert sampling.ran({A: 1, B: 10}) == [B, A]


def test_a_check_that_came_to_nothing_is_due_still() -> None:
    sampling = AuditSampling(EVERY, Latest())
    assert sampling.ran({A: 30}) == [A]
    sampling.chosen(A)
    assert sampling.ran({A: 1}) == []
    sampling.again(A)
    assert sampling.ran({A: 1}) == [A]


def test_devices_are_counted_apart_and_tallied() -> None:
    sampling = AuditSampling(EVERY, Latest())
    assert sampling.ran({A: 30, B: 29}) == [A]
    sampling.judged(A, wrong=True)
    sampling.judged(A, wrong=False)
    assert (sampling.tally(A), sampling.tally(B)) == ((30, 2, 1), (29, 0, 0))


def test_made_up_devices_take_no_memory() -> None:
    sampling = AuditSampling(EVERY, random.Random(1))
    for number in range(3 * MOST_DEVICES):
        sampling.ran({DeviceId(str(number)): 1})
    assert len(sampling._counts) == MOST_DEVICES
