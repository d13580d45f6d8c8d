"""Lost devices and failed tasks: what was lost is computed elsewhere, from what survives."""

from coordinator.tasks.events import (
    Abort,
    Action,
    Assign,
    Cancel,
    Complete,
    Failed,
    Finished,
    Joined,
    Lost,
    Release,
    Resend,
    Send,
    Submitted,
    Tick,
)
from coordinator.tasks.scheduler import MAX_FAILURES, STRANDED_S, Scheduler
from protos.errors import LostWorker, PeerViolation
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


def test_a_lost_device_costs_no_request() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([HALVES, [(0, 12)]])))
    state.step(result(0, row(0, 6)))
    assert state.step(Lost(B)) == [
        Assign(R, 1, 1, A),
        Send(R, 1, 1, A, "t0", row(5, 12)),
    ]
    assert state.step(result(1, row(6, 12), attempt=0)) == []  # too late
    assert state.dropped["late"] == 1
    actions = state.step(result(1, row(6, 12), attempt=1))
    assert actions[0] == merge(1, "t1", row(6, 12))
    assert state.step(result(2, row(0, 12), tensor="t2"))[1:] == [Complete(R), Release(R, (A,))]


def test_a_planned_device_that_is_gone_is_replaced_at_once() -> None:
    state = scheduler("c")
    actions = state.step(Submitted(R, chain([HALVES])))
    assert [each.device for each in assigned(actions)] == [C, C]


def test_the_substitute_is_the_least_busy() -> None:
    state = scheduler("a", "b", "c")
    state.step(Submitted(R, chain([[(0, 4), (4, 8), (8, 12)]], names="aab")))
    actions = state.step(Lost(B))
    assert actions[0] == Assign(R, 2, 1, C)


def test_request_without_any_device_ends_with_a_clear_error() -> None:
    state = scheduler("a")
    state.step(Submitted(R, chain([HALVES])), 1.0)
    assert state.step(Lost(A), 5.0) == []
    assert state.step(Tick(), 4.9 + STRANDED_S) == []
    (abort,) = state.step(Tick(), 5.0 + STRANDED_S)
    assert isinstance(abort, Abort)
    assert isinstance(abort.error, LostWorker)
    assert state.requests == {}
    assert state.step(Submitted(R, chain([HALVES])), 20.0) == []
    assert state.step(Tick(), 20.0 + STRANDED_S)[0].request == R


def test_a_request_goes_on_when_a_device_comes_back() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, direct_chain([HALVES, HALVES])))
    state.step(Lost(A), 1.0)
    state.step(Lost(B), 1.0)
    back = state.step(Joined(B), 2.0)
    assert [each.device for each in assigned(back)] == [B, B]
    assert state.step(Tick(), 2.0 + STRANDED_S) == []
    boxes = [row(0, 6), row(6, 12)]
    ahead = assigned(back)
    while ahead:
        each = ahead.pop(0)
        box, tensor = boxes[each.task % 2], f"t{1 + each.task // 2}"
        actions = state.step(result(each.task, box, attempt=each.attempt, tensor=tensor), 3.0)
        ahead += assigned(actions)
    assert Complete(R) in actions


def test_a_failed_task_runs_elsewhere_but_not_for_ever() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    where = []
    for attempt in range(MAX_FAILURES - 1):
        actions = state.step(Failed(R, 0, attempt, "out_of_memory", "no"))
        where += [each.device for each in assigned(actions)]
    assert where == [B, A, B]
    actions = state.step(Failed(R, 0, MAX_FAILURES - 1, "out_of_memory", "no"))
    assert isinstance(actions[0], Abort)
    assert isinstance(actions[0].error, PeerViolation)


def test_bad_input_is_not_tried_again() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    assert isinstance(state.step(Failed(R, 0, 0, "bad_input", "no"))[0], Abort)


def test_a_program_that_is_gone_is_brought_again_to_the_same_device() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    assert assigned(state.step(Failed(R, 0, 0, "no_program", "no"))) == [Assign(R, 0, 1, A)]


# ---------------------------------------------------------------- among peers


def midway() -> Scheduler:
    """Three blocks over two peers: the first is computed, the second on `b` as well."""
    state = scheduler("a", "b")
    state.step(Submitted(R, direct_chain([HALVES, HALVES, HALVES])))
    for task in (0, 1, 3):
        assert state.step(Finished(R, task, 0)) == []
    return state


def resends(actions: list[Action]) -> list[Resend]:
    return [action for action in actions if isinstance(action, Resend)]


def test_a_loss_among_peers_restarts_from_the_latest_boxes_that_survive() -> None:
    state = midway()
    actions = state.step(Lost(B))
    assert [a for a in actions if isinstance(a, Cancel)] == [Cancel(R, 2, 0, A), Cancel(R, 4, 0, A)]
    assert resends(actions) == [Resend(R, 0, 0, A, ("t1",))]
    assert assigned(actions) == [Assign(R, 1, 1, A)]
    state.step(result(0, row(0, 6)))
    actions = state.step(result(1, row(6, 12), attempt=1))
    assert [a for a in actions if isinstance(a, Send)] == [
        Send(R, 2, 1, A, "t1", row(6, 7)),
        Send(R, 3, 1, A, "t1", row(6, 12)),
    ]


def test_outputs_of_a_device_are_not_asked_of_its_next_life() -> None:
    state = midway()
    state.step(Lost(A))
    state.step(Joined(A))
    actions = state.step(Lost(B))
    assert resends(actions) == []
    assert assigned(actions) == [Assign(R, 0, 2, A), Assign(R, 1, 1, A)]


def test_a_peer_that_is_out_of_reach_costs_no_boxes() -> None:
    state = midway()
    actions = state.step(Failed(R, 2, 0, "send", "b does not answer"))
    assert resends(actions) == [
        Resend(R, 0, 0, A, ("t1",)),
        Resend(R, 1, 0, B, ("t1",)),
        Resend(R, 3, 0, B, ("t2",)),
    ]
    assert assigned(actions) == []


def test_kept_boxes_that_are_gone_after_all_are_computed_again() -> None:
    state = midway()
    state.step(Lost(B))
    actions = state.step(Failed(R, 0, 0, "no_output", "not kept here"))
    assert assigned(actions) == [Assign(R, 0, 1, A)]


def test_a_device_whose_work_was_all_passed_on_is_not_missed() -> None:
    state = scheduler("a", "b", "c")
    state.step(Submitted(R, direct_chain([[(0, 4), (4, 8), (8, 12)], HALVES])))
    for task in (0, 1, 2):
        state.step(Finished(R, task, 0))
    state.step(result(4, row(6, 12), tensor="t2"))  # all that reads of what `c` made
    assert state.step(Lost(C)) == []
    assert Complete(R) in state.step(result(3, row(0, 6), tensor="t2"))
