"""Events in, exact actions out; then every order of events that Hypothesis can think of."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.execution.events import (
    Abort,
    Action,
    Assign,
    Cancel,
    Cancelled,
    Complete,
    Failed,
    Finished,
    Joined,
    Lost,
    Merge,
    Received,
    Release,
    RequestId,
    Send,
    Submitted,
)
from coordinator.execution.scheduler import MAX_ATTEMPTS, Scheduler
from models.boxes import Box
from protos.errors import LostWorker, PeerViolation
from tests.execution.sketches import HALVES, WIDTH, chain, device, direct_chain, row

R = RequestId("r")
A, B, C = device("a"), device("b"), device("c")


def scheduler(*devices: str) -> Scheduler:
    state = Scheduler()
    for name in devices:
        assert state.step(Joined(device(name))) == []
    return state


def result(task: int, box: Box, attempt: int = 0, tensor: str = "t1") -> Received:
    return Received(R, task, attempt, tensor, box)


def merge(tensor: str, box: Box) -> Merge:
    return Merge(R, TASKS[tensor, box], tensor, box, aside=False)


TASKS = {
    ("t1", row(0, 6)): 0,
    ("t1", row(6, 12)): 1,
    ("t2", row(0, 12)): 2,
    ("t1", row(0, 4)): 0,
    ("t1", row(4, 12)): 0,
}


def test_a_request_goes_through_its_blocks() -> None:
    state = scheduler("a", "b")
    graph = chain([HALVES, [(0, 12)]])
    assert state.step(Submitted(R, graph)) == [
        Assign(R, 0, 0, A),
        Send(R, 0, 0, A, "t0", row(0, 7)),
        Assign(R, 1, 0, B),
        Send(R, 1, 0, B, "t0", row(5, 12)),
    ]
    assert state.step(result(0, row(0, 6))) == [merge("t1", row(0, 6))]
    assert state.step(result(1, row(6, 12))) == [
        merge("t1", row(6, 12)),
        Assign(R, 2, 0, A),
        Send(R, 2, 0, A, "t1", row(0, 12)),
    ]
    assert state.step(result(2, row(0, 12), tensor="t2")) == [
        merge("t2", row(0, 12)),
        Complete(R),
        Release(R, (A, B)),
    ]
    assert state.requests == {}


def test_without_a_barrier_boxes_leave_as_they_come_in() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([HALVES, HALVES], barrier=False)))
    assert state.step(result(0, row(0, 6))) == [
        merge("t1", row(0, 6)),
        Assign(R, 2, 0, A),
        Send(R, 2, 0, A, "t1", row(0, 6)),
        Assign(R, 3, 0, B),
        Send(R, 3, 0, B, "t1", row(5, 6)),
    ]
    assert state.step(result(1, row(6, 12))) == [
        merge("t1", row(6, 12)),
        Send(R, 2, 0, A, "t1", row(6, 7)),
        Send(R, 3, 0, B, "t1", row(6, 12)),
    ]


def test_an_output_may_come_in_several_boxes() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    assert state.step(result(0, row(0, 4))) == [merge("t1", row(0, 4))]
    assert state.step(result(0, row(0, 4))) == []  # a duplicate
    assert state.step(result(0, row(3, 5))) == []  # overlaps what is there
    assert state.step(result(0, row(4, 12)))[:2] == [
        merge("t1", row(4, 12)),
        Complete(R),
    ]
    assert state.dropped["stranger"] == 2


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
    assert actions[0] == merge("t1", row(6, 12))
    assert state.step(result(2, row(0, 12), tensor="t2"))[1:] == [Complete(R), Release(R, (A,))]


def test_a_planned_device_that_is_gone_is_replaced_at_once() -> None:
    state = scheduler("c")
    actions = state.step(Submitted(R, chain([HALVES])))
    assert [a.device for a in actions if isinstance(a, Assign)] == [C, C]


def test_the_substitute_is_the_least_busy() -> None:
    state = scheduler("a", "b", "c")
    state.step(Submitted(R, chain([[(0, 4), (4, 8), (8, 12)]], names="aab")))
    actions = state.step(Lost(B))
    assert actions[0] == Assign(R, 2, 1, C)


def test_without_any_device_the_request_ends_with_one_clear_error() -> None:
    state = scheduler("a")
    state.step(Submitted(R, chain([HALVES])))
    (abort,) = state.step(Lost(A))
    assert isinstance(abort, Abort)
    assert isinstance(abort.error, LostWorker)
    assert state.requests == {}
    assert state.step(Submitted(R, chain([HALVES])))[0].request == R


def test_a_failed_task_runs_elsewhere_but_not_for_ever() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    where = []
    for attempt in range(MAX_ATTEMPTS - 1):
        actions = state.step(Failed(R, 0, attempt, "out_of_memory", "no"))
        where += [a.device for a in actions if isinstance(a, Assign)]
    assert where == [B, A, B]
    actions = state.step(Failed(R, 0, MAX_ATTEMPTS - 1, "out_of_memory", "no"))
    assert isinstance(actions[0], Abort)
    assert isinstance(actions[0].error, PeerViolation)


def test_bad_input_is_not_tried_again() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, chain([[(0, 12)]])))
    assert isinstance(state.step(Failed(R, 0, 0, "bad_input", "no"))[0], Abort)


@pytest.mark.parametrize(
    "event",
    [
        Received(RequestId("other"), 0, 0, "t1", row(0, 6)),
        Received(R, 99, 0, "t1", row(0, 6)),
        Received(R, 0, 7, "t1", row(0, 6)),
        Received(R, 0, 0, "t9", row(0, 6)),
        Received(R, 0, 0, "t1", row(0, 7)),
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


def test_a_loss_among_peers_goes_on_through_the_host() -> None:
    state = scheduler("a", "b")
    state.step(Submitted(R, direct_chain([HALVES, HALVES])))
    state.step(Finished(R, 0, 0))
    actions = state.step(Lost(B))
    assert [a for a in actions if isinstance(a, Cancel)] == [Cancel(R, 0, 0, A), Cancel(R, 2, 0, A)]
    assert [a for a in actions if isinstance(a, Assign)] == [Assign(R, 0, 1, A), Assign(R, 1, 1, A)]
    assert state.step(Finished(R, 0, 1)) == []  # through the host, a task is done when merged
    state.step(result(0, row(0, 6), 1))
    actions = state.step(result(1, row(6, 12), 1))
    assert [a for a in actions if isinstance(a, Send)] == [
        Send(R, 2, 1, A, "t1", row(6, 7)),
        Send(R, 3, 1, A, "t1", row(6, 12)),
    ]
    state.step(result(2, row(0, 6), 1, tensor="t2"))
    assert Complete(R) in state.step(result(3, row(6, 12), 1, tensor="t2"))


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: a request ends exactly once, with all of its output."""

    @initialize(barrier=st.booleans())
    def begin(self, barrier: bool) -> None:
        self.state = scheduler("a", "b", "c")
        thirds = [(0, 4), (4, 8), (8, 12)]
        self.graph = chain([thirds, HALVES, thirds, [(0, 12)]], barrier=barrier)
        self.pending: list[tuple[Assign, dict[str, set[int]]]] = []
        self.ends: dict[RequestId, list[Action]] = {}
        self.painted: dict[RequestId, dict[str, set[int]]] = {}
        self.count = 0

    def feed(self, event: object) -> None:
        for action in self.state.step(event):
            match action:
                case Assign():
                    assert action.device in self.state.devices
                    self.pending.append((action, {}))
                case Send(request, task, attempt, _, tensor, box):
                    holds = self.painted[request].get(tensor, set())
                    cells = set(range(box[0].start, box[0].stop))
                    assert tensor == "t0" or cells <= holds, "sent before it was merged"
                    for assign, got in self.pending:
                        if (assign.request, assign.task, assign.attempt) == (
                            request,
                            task,
                            attempt,
                        ):
                            assert not got.setdefault(tensor, set()) & cells, "sent twice"
                            got[tensor] |= cells
                case Merge(request, _, tensor, box):
                    cells = set(range(box[0].start, box[0].stop))
                    self.painted[request].setdefault(tensor, set()).update(cells)
                case Complete(request) | Abort(request):
                    self.ends.setdefault(request, []).append(action)

    @rule()
    def submit(self) -> None:
        request = RequestId(f"r{self.count}")
        self.count += 1
        self.painted[request] = {}
        self.feed(Submitted(request, self.graph))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.pending) - 1))
        assign, got = self.pending[index]
        spec = self.graph.tasks[assign.task]
        full = all(
            set(range(i.box[0].start, i.box[0].stop)) <= got.get(i.tensor, set())
            for i in spec.inputs
        )
        if full:
            self.pending.pop(index)
            output = spec.outputs[0]
            self.feed(
                Received(assign.request, assign.task, assign.attempt, output.tensor, output.box)
            )

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        assign, _ = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.feed(Failed(assign.request, assign.task, assign.attempt, "runtime", "no"))

    @rule(name=st.sampled_from("abc"))
    def lose(self, name: str) -> None:
        if data_left := [each for each in self.pending if each[0].device == device(name)]:
            for each in data_left:
                self.pending.remove(each)
        self.feed(Lost(device(name)))

    @rule(name=st.sampled_from("abc"))
    def join(self, name: str) -> None:
        self.feed(Joined(device(name)))

    @precondition(lambda self: self.state.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.state.requests)))
        self.feed(Cancelled(request))
        self.ends.setdefault(request, []).append(Complete(request))

    @invariant()
    def every_request_ends_once_or_is_on_its_way(self) -> None:
        if not hasattr(self, "state"):
            return
        for request, painted in self.painted.items():
            ends = self.ends.get(request, [])
            assert len(ends) == (0 if request in self.state.requests else 1)
            if request in self.state.requests:
                running = [a for a, _ in self.pending if a.request == request]
                assert running, "nothing is running: it would hang"
            del painted
        for run in self.state.requests.values():
            assert set(run.touched) <= set(self.state.devices)

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        self.feed(Joined(A))
        for _ in range(len(self.pending) * 40 + 40):
            for assign, _ in list(self.pending):
                spec = self.graph.tasks[assign.task]
                self.pending = [each for each in self.pending if each[0] != assign]
                output = spec.outputs[0]
                self.feed(
                    Received(assign.request, assign.task, assign.attempt, output.tensor, output.box)
                )
        assert not self.state.requests
        for request, ends in self.ends.items():
            if isinstance(ends[0], Complete) and len(self.painted[request].get("t4", ())):
                assert self.painted[request]["t4"] == set(range(WIDTH))


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
