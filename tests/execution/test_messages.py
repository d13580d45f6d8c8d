"""Tasks on the wire: what requests have in common is written once, what differs every time."""

from coordinator.execution.events import Assign, Lost, Submitted
from coordinator.execution.messages import task_item
from coordinator.execution.scheduler import Scheduler
from tests.execution.sketches import HALVES, A, B, R, assigned, device, direct_chain, scheduler

OTHER = type(R)("other")


def described(state: Scheduler, each: Assign, port: int = 1):
    return task_item(each, state.requests[each.request], lambda to: f"{to}:{port}").task


def test_requests_differ_in_nothing_but_their_id() -> None:
    state, graph = scheduler("a", "b"), direct_chain([HALVES, HALVES])
    first = [described(state, each) for each in assigned(state.step(Submitted(R, graph)))]
    others = [described(state, each) for each in assigned(state.step(Submitted(OTHER, graph)))]
    assert [each.task for each in first] == [0, 1, 2, 3]
    assert {each.request for each in others} == {OTHER}
    for each in others:
        each.request = R
    assert others == first


def test_a_reader_elsewhere_is_told_elsewhere() -> None:
    graph = direct_chain([HALVES, HALVES], names="ab")
    state = scheduler("a", "b")
    before = described(state, assigned(state.step(Submitted(R, graph)))[0])
    assert {(out.to, out.address) for out in before.outputs} == {(A, "a:1"), (B, "b:1")}
    moved = described(state, Assign(R, 0, 0, A), port=2)
    assert {(out.to, out.address) for out in moved.outputs} == {(A, "a:2"), (B, "b:2")}
    others = scheduler("a", "c")
    after = described(others, assigned(others.step(Submitted(R, graph)))[0])
    assert {out.to for out in after.outputs} == {A, device("c")}


def test_through_the_host_after_a_loss() -> None:
    state, graph = scheduler("a", "b"), direct_chain([HALVES, HALVES])
    state.step(Submitted(R, graph))
    again = assigned(state.step(Lost(B)))
    assert again
    for each in again:
        task = described(state, each)
        assert (task.attempt, {out.to for out in task.outputs}) == (each.attempt, {"host"})
