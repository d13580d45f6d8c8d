"""Events in, exact actions out: the life of a request, and of its tasks."""

import pytest

from coordinator.tasks.events import (
    Assign,
    Cancelled,
    Complete,
    Failed,
    Finished,
    Lost,
    Merge,
    Received,
    Release,
    RequestId,
    ResultRefused,
    Send,
    Submitted,
)
from tests.requests.sketches import (
    HALVES,
    A,
    B,
    C,
    R,
    chain,
    direct_chain,
    ends_with_barrier,
    merge,
    result,
    row,
    scheduler,
)


def test_a_request_goes_through_its_blocks() -> None:
    state = scheduler("a", "b")
    graph = chain([HALVES, [(0, 12)]])
    assert state.step(Submitted(R, graph)) == [
        Assign(R, 0, 0, A),
        Send(R, 0, 0, A, "t0", row(0, 7)),
        Assign(R, 1, 0, B),
        Send(R, 1, 0, B, "t0", row(5, 12)),
    ]
    assert state.step(result(0, row(0, 6))) == [merge(0, "t1", row(0, 6))]
    assert state.step(result(1, row(6, 12))) == [
        merge(1, "t1", row(6, 12)),
        Assign(R, 2, 0, A),
        Send(R, 2, 0, A, "t1", row(0, 12)),
    ]
    assert state.step(result(2, row(0, 12), tensor="t2")) == [
        merge(2, "t2", row(0, 12)),
        Complete(R),
        Release(R, (A, B)),
    ]
    assert state.requests == {}


def test_boxes_leave_as_they_come_in_without_a_barrier() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([HALVES, HALVES], barrier=False)))
    assert state.step(result(0, row(0, 6))) == [
        merge(0, "t1", row(0, 6)),
        Assign(R, 2, 0, A),
        Send(R, 2, 0, A, "t1", row(0, 6)),
        Assign(R, 3, 0, B),
        Send(R, 3, 0, B, "t1", row(5, 6)),
    ]
    assert state.step(result(1, row(6, 12))) == [
        merge(1, "t1", row(6, 12)),
        Send(R, 2, 0, A, "t1", row(6, 7)),
        Send(R, 3, 0, B, "t1", row(6, 12)),
    ]


def test_an_output_may_come_in_several_boxes() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    assert state.step(result(0, row(0, 4))) == [merge(0, "t1", row(0, 4))]
    assert state.step(result(0, row(0, 4))) == []  # a duplicate
    assert state.step(result(0, row(4, 12)))[:2] == [
        merge(0, "t1", row(4, 12)),
        Complete(R),
    ]
    assert state.dropped["duplicate"] == 1


@pytest.mark.parametrize(
    "event",
    [
        Received(RequestId("other"), 0, 0, "t1", row(0, 6)),
        Received(R, 99, 0, "t1", row(0, 6)),
        Received(R, 0, 7, "t1", row(0, 6)),
        ResultRefused(R, 0, 7, "int8"),
        Failed(R, 0, 3, "runtime", "no"),
        Cancelled(RequestId("other")),
        Lost(C),
    ],
)
def test_strangers_change_nothing(event: Received) -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([HALVES])))
    assert state.step(event) == []
    assert set(state.requests) == {R}


def test_a_cancelled_request_frees_its_devices() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([HALVES])))
    assert state.step(Cancelled(R)) == [Release(R, (A, B))]
    assert state.step(Cancelled(R)) == []


def test_peers_are_assigned_at_once_and_the_host_gets_only_the_end() -> None:
    state = scheduler("a", "b")
    graph = direct_chain([HALVES, HALVES])
    assert [route.reader for route in graph.tasks[0].outputs[0].routes] == [2, 3]
    assert [route.box for route in graph.tasks[0].outputs[0].routes] == [row(0, 6), row(5, 6)]
    actions = state.step(Submitted(R, graph))
    assert [a for a in actions if isinstance(a, Assign)] == [
        Assign(R, 0, 0, A),
        Assign(R, 1, 0, B),
        Assign(R, 2, 0, A),
        Assign(R, 3, 0, B),
    ]
    assert [a.tensor for a in actions if isinstance(a, Send)] == ["t0", "t0"]
    assert state.step(Finished(R, 0, 0)) == []
    assert state.step(result(2, row(0, 6), tensor="t2")) == [Merge(R, 2, "t2", row(0, 6), False)]
    assert state.step(result(3, row(6, 12), tensor="t2")) == [
        Merge(R, 3, "t2", row(6, 12), False),
        Complete(R),
        Release(R, (A, B)),
    ]


def test_a_barrier_after_peers_waits_for_all_of_them() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, ends_with_barrier([HALVES, HALVES, [(0, 12)]])))
    for task in (0, 1):
        assert state.step(Finished(R, task, 0)) == []
    assert state.step(result(2, row(0, 6), tensor="t2")) == [merge(2, "t2", row(0, 6))]
    assert state.step(result(3, row(6, 12), tensor="t2")) == [
        merge(3, "t2", row(6, 12)),
        Send(R, 4, 0, A, "t2", row(0, 12)),
    ]
    assert Complete(R) in state.step(result(4, row(0, 12), tensor="t3"))


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_lost_device_that_is_still_connected_is_released_too(is_connected: bool) -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([HALVES])))
    state.step(Lost(B, is_connected))
    *_, release = state.step(Cancelled(R))
    assert release == Release(R, (A, B) if is_connected else (A,))
