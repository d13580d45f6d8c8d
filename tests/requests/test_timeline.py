import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.tasks.timeline import TaskTimes, Timeline, Timing


def timing_of(tasks: list[tuple[float, float, float]], start: float, end: float) -> Timing:
    found = Timeline(start)
    for index, (begin, stop, arrival) in enumerate(tasks):
        found.tasks.append(TaskTimes(index, 0, "a", begin, begin, stop))
        found.arrivals.add(index, 0, 4, arrival)
    found.ended_s = end
    return found.conclude()


def test_phases_of_two_overlapping_tasks() -> None:
    timing = timing_of([(2.0, 5.0, 6.0), (3.0, 6.5, 8.0)], 0.0, 9.0)
    assert timing.compute_s == pytest.approx(4.5)  # 2 .. 6.5
    assert timing.gather_s == pytest.approx(1.5)  # 6.5 .. 8
    assert timing.scatter_s == pytest.approx(3.0)  # 0 .. 2 and 8 .. 9
    assert timing.total_s == pytest.approx(9.0)


times = st.floats(0, 10)


@given(st.lists(st.tuples(times, times, times).map(lambda t: tuple(sorted(t))), max_size=6))
def test_phases_add_up_to_the_total(tasks: list[tuple[float, float, float]]) -> None:
    timing = timing_of(tasks, 0.0, 10.0)
    parts = timing.queue_s + timing.scatter_s + timing.compute_s + timing.gather_s
    assert parts == pytest.approx(timing.total_s)
    assert min(timing.scatter_s, timing.compute_s, timing.gather_s) >= 0
