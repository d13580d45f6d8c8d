"""Whoever is overdue gets company; the first result is taken."""

from coordinator.tasks.deadlines import GIVE_UP_S, MOST_AT_ONCE, SLACK_S, give_up_s, patience_s
from coordinator.tasks.events import (
    Abort,
    Assign,
    Cancel,
    Complete,
    Delivered,
    Failed,
    Finished,
    Lost,
    Resend,
    Send,
    Submitted,
    Tick,
)
from coordinator.tasks.scheduler import Scheduler
from coordinator.tasks.task_graph import TaskGraph
from protos.wire.facts import DeviceId
from tests.requests.sketches import (
    HALVES,
    A,
    B,
    C,
    R,
    assigned,
    chain,
    direct_chain,
    merge,
    result,
    row,
    scheduler,
)
from tests.requests.world import Expected

LATE_S = patience_s(1.0) + 0.01  # `Expected` tasks take a second


def started(*devices: str) -> Scheduler:
    """Two halves on `a` and `b`, that left at once."""
    state = scheduler(*devices, expected=Expected())
    state.step(Submitted(R, chain([HALVES])), 0.0)
    for task in (0, 1):
        state.step(Delivered(R, task, 0), 0.0)
    return state


def test_a_straggler_is_hedged_and_the_loser_cancelled() -> None:
    state = started("a", "b", "c")
    state.step(result(0, row(0, 6)), 1.0)
    assert state.step(Tick(), patience_s(1.0) - 0.01) == []
    assert state.step(Tick(), LATE_S) == [
        Assign(R, 1, 1, A),
        Send(R, 1, 1, A, "t0", row(5, 12)),
    ]
    assert state.step(Tick(), LATE_S + 0.1) == []  # once
    assert state.step(result(1, row(6, 12), attempt=1), 5.0)[:2] == [
        merge(1, "t1", row(6, 12)),
        Cancel(R, 1, 0, B),
    ]


def test_the_straggler_may_still_be_first() -> None:
    state = started("a", "b", "c")
    state.step(result(0, row(0, 6)), 1.0)
    state.step(Tick(), LATE_S)
    actions = state.step(result(1, row(6, 12)), 5.0)
    assert Cancel(R, 1, 1, A) in actions
    assert Complete(R) in actions
    assert state.step(result(1, row(6, 12), attempt=1), 6.0) == []


def test_a_device_that_works_through_its_queue_is_not_late() -> None:
    state = scheduler("a", "b", expected=Expected())
    state.step(Submitted(R, chain([[(0, 4), (4, 8), (8, 12)]], names="aaa")), 0.0)
    for task in range(3):
        state.step(Delivered(R, task, 0), 0.0)
    state.step(result(0, row(0, 4)), 3.0)
    state.step(result(1, row(4, 8)), 6.0)
    assert state.step(Tick(), 9.0) == []
    assert assigned(state.step(Tick(), 6.0 + LATE_S)) == [Assign(R, 2, 1, B)]


def test_preparing_a_program_has_time_of_its_own() -> None:
    state = scheduler("a", "b", expected=Expected())
    state.step(Submitted(R, chain([[(0, 12)]])), 0.0)
    assert state.step(Tick(), LATE_S) == []
    assert assigned(state.step(Tick(), patience_s(1.2) + 0.01)) == [Assign(R, 0, 1, B)]


def test_a_task_is_late_only_when_it_has_its_inputs() -> None:
    state = scheduler("a", "b", "c", expected=Expected())
    state.step(Submitted(R, chain([HALVES, HALVES], barrier=False)), 0.0)
    state.step(result(0, row(0, 6)), 1.0)  # both of the next block have begun now
    late = assigned(state.step(Tick(), 100.0))
    assert [each.task for each in late] == [1]


def test_a_hedge_that_fails_leaves_the_first_on_watch() -> None:
    state = started("a", "b", "c")
    state.step(result(0, row(0, 6)), 1.0)
    state.step(Tick(), LATE_S)
    assert state.step(Failed(R, 1, 1, "runtime", "no"), 5.0) == []
    assert assigned(state.step(Tick(), 5.1)) == [Assign(R, 1, 2, C)]
    assert assigned(state.step(Lost(B), 5.2)) == []  # `c` is at it


def test_hedges_are_bounded_and_a_hang_ends() -> None:
    state = scheduler(*"abcdef", expected=Expected())
    state.step(Submitted(R, chain([[(0, 12)]])), 0.0)
    begun, now = 1, 0.0
    while R in state.requests:
        now += 1.0
        actions = state.step(Tick(), now)
        begun += len(assigned(actions))
    assert begun == MOST_AT_ONCE
    assert isinstance(actions[0], Abort)
    assert "got no result" in str(actions[0].error)
    assert GIVE_UP_S < now < give_up_s(1.2) + MOST_AT_ONCE * (LATE_S + 2)


def test_peers_that_say_nothing_go_on_through_the_host() -> None:
    state = scheduler("a", "b", expected=Expected())
    graph = direct_chain([HALVES, HALVES])
    state.step(Submitted(R, graph), 0.0)
    for task in range(4):
        state.step(Delivered(R, task, 0), 0.0)
    state.step(Finished(R, 0, 0), 1.0)
    state.step(Finished(R, 1, 0), 1.0)
    late_s = 1.0 + patience_s(graph.plan.predicted_latency_s)
    assert state.step(Tick(), late_s - 0.01) == []
    actions = state.step(Tick(), late_s + 0.01)
    kept = [action for action in actions if isinstance(action, Resend)]
    assert kept == [Resend(R, 0, 0, A, ("t1",)), Resend(R, 1, 0, B, ("t1",))]


def test_kept_boxes_that_do_not_come_are_computed_again() -> None:
    state = scheduler("a", "b", expected=Expected())
    state.step(Submitted(R, direct_chain([HALVES, HALVES])), 0.0)
    for task in (0, 1):
        state.step(Finished(R, task, 0), 1.0)
    state.step(Lost(B), 2.0)
    actions = state.step(Tick(), 2.0 + patience_s(1.2) + SLACK_S)
    assert Assign(R, 0, 1, A) in actions


class Crowded(Expected):
    """Device `b` is full."""

    def has_room(self, graph: TaskGraph, task: int, device: DeviceId) -> bool:
        return device != B


def test_a_device_without_room_helps_nobody_who_is_late_but_takes_over_from_the_lost() -> None:
    state = scheduler("a", "b", "c", expected=Crowded())
    state.step(Submitted(R, chain([[(0, 12)]])), 0.0)
    state.step(Delivered(R, 0, 0), 0.0)
    assert assigned(state.step(Tick(), LATE_S)) == [Assign(R, 0, 1, C)]
    alone = scheduler("a", "b", expected=Crowded())
    alone.step(Submitted(R, chain([[(0, 12)]])), 0.0)
    alone.step(Delivered(R, 0, 0), 0.0)
    assert assigned(alone.step(Tick(), LATE_S)) == []
    assert assigned(alone.step(Lost(A), LATE_S)) == [Assign(R, 0, 1, B)]


class Limited(Expected):
    """Device `b` takes whole networks only."""

    def takes(self, graph: TaskGraph, device: DeviceId) -> bool:
        return device != B


def test_a_device_with_limits_gets_a_tile_only_where_no_other_is_left() -> None:
    state = scheduler("a", "b", "c", expected=Limited())
    state.step(Submitted(R, chain([[(0, 12)]])), 0.0)
    assert assigned(state.step(Lost(A), 1.0)) == [Assign(R, 0, 1, C)]
    assert assigned(state.step(Lost(C), 2.0)) == [Assign(R, 0, 2, B)]
