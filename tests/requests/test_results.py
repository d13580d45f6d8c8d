"""What can't be a task's result is refused and counted, and the task runs elsewhere."""

import pytest

from coordinator.tasks.events import (
    Accuse,
    Assign,
    Cancel,
    Complete,
    Failed,
    Received,
    ResultRefused,
    Send,
    Submitted,
)
from models.tensors.boxes import Box
from tests.requests.sketches import (
    HALVES,
    A,
    B,
    R,
    assigned,
    chain,
    direct_chain,
    merge,
    result,
    row,
    scheduler,
)

WHOLE = [[(0, 12)]]
ELSEWHERE = [Cancel(R, 0, 0, A), Assign(R, 0, 1, B), Send(R, 0, 1, B, "t0", row(0, 12))]


@pytest.mark.parametrize(
    "wrong",
    [
        result(0, row(0, 13)),
        result(0, row(3, 3)),
        result(0, Box.of((0, 6), (0, 6))),
        result(0, row(0, 12), tensor="t9"),
        ResultRefused(R, 0, 0, "it sent int8"),
    ],
)
def test_task_with_a_refused_result_runs_elsewhere(wrong: Received | ResultRefused) -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain(WHOLE)))
    accuse, *others = state.step(wrong)
    assert isinstance(accuse, Accuse)
    assert accuse.device == A
    assert "it sent" in accuse.cause
    assert others == ELSEWHERE
    assert state.refused == {A: 1}
    assert Complete(R) in state.step(result(0, row(0, 12), attempt=1))


def test_values_that_are_not_finite_count_against_a_device_once_another_disproves_them() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain(WHOLE)))
    strange = Received(R, 0, 0, "t1", row(0, 12), finite=False)
    assert state.step(strange) == ELSEWHERE
    assert state.refused == {A: 1}
    ended = state.step(result(0, row(0, 12), attempt=1))
    assert [each.device for each in ended if isinstance(each, Accuse)] == [A]
    assert Complete(R) in ended


def test_overlapping_parts_are_refused() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain(WHOLE)))
    state.step(result(0, row(0, 4)))
    assert state.step(result(0, row(3, 5)))[1:] == ELSEWHERE


def test_values_that_are_not_finite_are_believed_of_a_second_device() -> None:
    state = scheduler("a", "b")
    graph = chain(WHOLE)
    state.step(Submitted(R, graph))
    state.step(Received(R, 0, 0, "t1", row(0, 12), finite=False))
    again = Received(R, 0, 1, "t1", row(0, 12), finite=False)
    believed = state.step(again)
    assert believed[0] == merge(0, "t1", row(0, 12))
    assert not any(isinstance(each, Accuse) for each in believed)
    # From then on they are known to be the model's own.
    state.step(Submitted(R, graph))
    assert Complete(R) in state.step(Received(R, 0, 0, "t1", row(0, 12), finite=False))
    state.step(Submitted(R, chain(WHOLE)))
    assert assigned(state.step(Received(R, 0, 0, "t1", row(0, 12), finite=False)))


def test_results_of_inputs_that_are_not_finite_are_accepted() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain(WHOLE), finite=False))
    assert Complete(R) in state.step(Received(R, 0, 0, "t1", row(0, 12), finite=False))
    assert state.refused == {}


def test_peers_exchange_what_a_network_is_known_to_make_though_it_is_not_finite() -> None:
    state, graph = scheduler("a", "b"), direct_chain([HALVES, HALVES])
    begun = assigned(state.step(Submitted(R, graph)))
    first = next(each for each in begun if each.task == 0)
    state.step(Failed(R, 0, first.attempt, "not_finite", "as it computes"))
    assert not state.requests[R].direct
    again = state.requests[R].tasks[0].latest
    assert again is not None
    state.step(Received(R, 0, again.number, "t1", row(0, 6), finite=False))
    assert state.requests[R].unusual
    state.step(Submitted(type(R)("next"), graph))
    run = state.requests[type(R)("next")]
    assert (run.direct, run.unusual) == (True, True)
    state.step(Submitted(type(R)("another"), direct_chain([HALVES, HALVES])))
    assert not state.requests[type(R)("another")].unusual
