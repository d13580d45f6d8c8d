"""Tasks on the wire: what requests have in common is written once, what differs every time."""

from coordinator.requests.messages import task_item
from coordinator.tasks.events import Assign, Cancelled, Lost, Submitted
from coordinator.tasks.scheduler import Scheduler
from tests.requests.sketches import HALVES, A, B, R, assigned, device, direct_chain, scheduler

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


def test_senders_of_a_tasks_input_are_named_to_its_reader() -> None:
    state, graph = scheduler("a", "b"), direct_chain([HALVES, HALVES])
    tasks = [described(state, each) for each in assigned(state.step(Submitted(R, graph)))]
    for message, spec in zip(tasks, graph.tasks, strict=True):
        named = {
            (device(each.device), tuple(each.box.start), tuple(each.box.stop))
            for entry in message.inputs
            for each in entry.sources
        }
        pieces = [piece for entry in spec.inputs for piece in entry.pieces]
        planned = {
            (
                graph.tasks[piece.source].device,
                tuple(span.start for span in piece.box),
                tuple(span.stop for span in piece.box),
            )
            for piece in pieces
            if piece.source is not None
        }
        assert message.sources_named
        assert named == planned
    assert any(entry.sources for message in tasks for entry in message.inputs)
    for each in assigned(state.step(Lost(B))):  # through the host from now on
        again = described(state, each)
        assert again.sources_named
        assert not any(entry.sources for entry in again.inputs)


def test_devices_are_told_where_values_may_be_any() -> None:
    state, graph = scheduler("a", "b"), direct_chain([HALVES, HALVES])
    for finite in (True, False, True):
        tasks = [
            described(state, each)
            for each in assigned(state.step(Submitted(R, graph, finite=finite)))
        ]
        assert {task.any_values for task in tasks} == {not finite}
        assert any(out.to != "host" for task in tasks for out in task.outputs)
        state.step(Cancelled(R))
