"""List scheduling: independent work is divided, as far as sending it pays."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.planning.planners.branches import HeftTask, longest_s, placement
from tests.examples import examples


def free(source: int, target: int, size: int) -> float:
    return 0.0


def by_size(source: int, target: int, size: int) -> float:
    return float(size)


def task(*seconds: float, reads: dict[int, int] | None = None) -> HeftTask:
    return HeftTask(seconds, [0.0] * len(seconds), reads or {})


def end_s(tasks: list[HeftTask], placed: list[int]) -> float:
    """When all tasks are done, in the order in which they are given."""
    free_s = [0.0] * len(tasks[0].seconds)
    ends: list[float] = []
    for each, processor in zip(tasks, placed, strict=True):
        begin = max(free_s[processor], each.ready_s[processor])
        for source, size in each.reads.items():
            begin = max(begin, ends[source] + (size if placed[source] != processor else 0))
        ends.append(begin + each.seconds[processor])
        free_s[processor] = ends[-1]
    return max(ends)


def test_branches_go_to_different_processors() -> None:
    tasks = [
        task(1, 1),
        *(task(5, 5, reads={0: 1}) for _ in range(2)),
        task(1, 1, reads={1: 1, 2: 1}),
    ]
    start, one, other, _ = placement(tasks, by_size)
    assert {one, other} == {0, 1}
    assert start in (one, other)


def test_a_chain_stays_where_it_is() -> None:
    tasks = [task(2, 2), task(2, 2, reads={0: 1}), task(2, 2, reads={1: 1})]
    assert len(set(placement(tasks, by_size))) == 1
    faster_later = [task(2, 3), task(3, 2, reads={0: 2})]
    assert placement(faster_later, by_size) == [0, 0]
    assert placement(faster_later, free) == [0, 1]


def test_data_dearer_to_send_than_to_compute_is_not_sent() -> None:
    tasks = [task(1, 1), *(task(5, 5, reads={0: 6}) for _ in range(2))]
    assert len(set(placement(tasks, by_size))) == 1


def test_inputs_from_elsewhere_are_waited_for() -> None:
    near = HeftTask([3, 3], [0, 9], {})
    assert placement([near, near], free) == [0, 0]


def test_empty_list_of_tasks_needs_no_place() -> None:
    assert placement([], free) == []
    assert longest_s([]) == 0.0


@settings(max_examples=examples(60))
@given(st.data())
def test_heft_is_never_better_than_the_best_of_all_placements(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    tasks = []
    for index in range(count):
        reads = {k: 0 for k in range(index) if data.draw(st.booleans())}
        tasks.append(task(*data.draw(st.tuples(*[st.integers(1, 9)] * 2)), reads=reads))
    found = placement(tasks, free)
    assert len(found) == count
    best = min(end_s(tasks, list(each)) for each in itertools.product((0, 1), repeat=count))
    assert all(processor in (0, 1) for processor in found)
    assert end_s(tasks, found) >= best >= longest_s(tasks)
