import numpy as np
import pytest

from models.tensors.boxes import Box
from tests.worker.task_parts import F32, HOST, IN, KEY, OUT, piece, plain, run_one, task_order
from worker.tasks import state
from worker.tasks.actions import (
    Discard,
    Keep,
    OutputSpec,
    ReportFailure,
    RunProgram,
    SetUp,
    TaskEnd,
    TaskKey,
)
from worker.tasks.state import Tasks


def test_a_task_runs_when_its_pieces_have_come_and_its_output_goes_to_the_host(tasks):
    top, bottom = Box.of((0, 1), (4, 8)), Box.of((1, 2), (4, 8))
    assert tasks.add_task(task_order(), 0.0) == []
    assert tasks.add_piece(piece(bottom, 2.0), 1.0) == []
    assert plain(tasks.add_piece(piece(top, 1.0), 2.0)) == [
        ("run", KEY, "p", {"x": [[1, 1, 1, 1], [2, 2, 2, 2]]}, {"y": OUT.shape})
    ]
    assert plain(tasks.finished(KEY, {"y": np.arange(4, dtype=F32)}, 3.0, 4.0)) == [
        ("host", 7, [(KEY, "y", OUT, [0, 1, 2, 3])], TaskEnd(KEY, 2.0, 3.0, 4.0))
    ]


def later(task, request="r"):
    return TaskKey(request, 1, task, 0)


def test_tasks_of_a_request_are_set_up_while_the_first_runs(tasks):
    tasks.add_task(task_order(), 0.0)
    tasks.add_task(task_order(later(1)), 0.0)
    tasks.add_task(task_order(later(0, "another request")), 0.0)
    first, set_up = tasks.add_piece(piece(IN), 1.0)
    assert (first.key, set_up) == (KEY, SetUp("r"))
    early = tasks.next_to_set_up("r")
    assert (early.key, early.program, early.shapes) == (later(1), "p", {"y": OUT.shape})
    assert tasks.next_to_set_up("r") is None
    sent = piece(IN, 3.0, later(1))
    (run,) = tasks.add_piece(sent, 2.0)
    assert run is early  # with what was set up in it
    assert run.inputs["x"].tolist() == sent.array.tolist()
    assert run.inputs["x"] is not sent.array


def test_pieces_that_came_before_the_set_up_are_in_it(tasks):
    tasks.add_task(task_order(later(1)), 0.0)
    tasks.add_piece(piece(Box.of((0, 1), (4, 8)), 1.0, later(1)), 0.0)
    tasks.add_task(task_order(), 0.0)
    tasks.add_piece(piece(IN), 1.0)
    early = tasks.next_to_set_up("r")
    (run,) = tasks.add_piece(piece(Box.of((1, 2), (4, 8)), 2.0, later(1)), 2.0)
    assert run.inputs["x"] is early.inputs["x"]
    assert run.inputs["x"].tolist() == [[1] * 4, [2] * 4]


def test_waiting_tasks_alone_are_set_up_and_once(tasks):
    for number in range(4):
        tasks.add_task(task_order(later(number)), 0.0)
    tasks.cancel("r", 3, 0)
    run, set_up = tasks.add_piece(piece(IN, 1.0, later(2)), 1.0)
    assert (run.key, set_up) == (later(2), SetUp("r"))
    assert [tasks.next_to_set_up("r").key.task for _ in range(2)] == [0, 1]
    assert tasks.next_to_set_up("r") is None
    assert [type(action) for action in tasks.add_piece(piece(IN), 1.0)] == [RunProgram]


def test_task_assigned_while_another_computes_is_set_up_too(tasks):
    tasks.add_task(task_order(), 0.0)
    assert [type(action) for action in tasks.add_piece(piece(IN), 1.0)] == [RunProgram]
    assert tasks.add_task(task_order(later(1)), 2.0) == [SetUp("r")]
    assert tasks.add_task(task_order(later(2)), 2.0) == [], "the first order includes it"
    assert [tasks.next_to_set_up("r").key for _ in range(2)] == [later(1), later(2)]
    assert tasks.next_to_set_up("r") is None
    assert tasks.add_task(task_order(later(3)), 2.0) == [SetUp("r")]
    tasks.release(["r"])
    assert tasks.next_to_set_up("r") is None


def test_outputs_leave_in_one_action_per_destination_and_own_ones_stay(tasks):
    half, rest = Box.of((0, 2)), Box.of((2, 4))
    next_key = TaskKey("r", 1, 5, 2)
    outputs = (
        OutputSpec("y", half, OUT, "pi-2", "a:1", 9, 1),
        OutputSpec("y", rest, OUT, "me", "", 5, 2),
        OutputSpec("y", rest, OUT, "pi-2", "a:1", 8, 1),
        OutputSpec("y", OUT, OUT, "host"),
        OutputSpec("y", Box.of((1, 1)), OUT, "pi-3", "b:1", 8, 1),
    )
    tasks.add_task(task_order(next_key, inputs=(("y", rest),)), 0.0)
    peer = [(TaskKey("r", 1, 9, 1), "y", half, [0, 1]), (TaskKey("r", 1, 8, 1), "y", rest, [2, 3])]
    *sent, kept = run_one(tasks, task_order(outputs=outputs))
    assert plain(sent) == [
        ("peer", "pi-2", "a:1", peer, KEY),
        (
            "host",
            7,
            [(KEY, "y", OUT, [0, 1, 2, 3])],
            TaskEnd(KEY, 1.0, 2.0, 3.0, 16),
            "more to come",
        ),
    ]
    assert isinstance(kept, Keep)
    assert plain(tasks.add_piece(kept.piece, 4.0)) == [
        ("run", next_key, "p", {"y": [2, 3]}, {"y": OUT.shape}),
    ]


def test_the_host_learns_the_end_even_where_it_gets_no_tensor(tasks):
    outputs = (OutputSpec("y", OUT, OUT, "pi-2", "a:1"),)
    assert plain(run_one(tasks, task_order(outputs=outputs)))[1:] == [
        ("host", 7, [], TaskEnd(KEY, 1.0, 2.0, 3.0, 16))
    ]


def test_the_end_of_a_task_can_travel_with_what_later_tasks_of_the_request_send(tasks):
    outputs = (OutputSpec("y", OUT, OUT, "pi-2", "a:1"),)
    tasks.add_task(task_order(TaskKey("other", 1, 0, 0)), 0.0)
    tasks.add_task(task_order(TaskKey("r", 1, 5, 0)), 0.0)
    first, second = plain(run_one(tasks, task_order(outputs=outputs)))
    assert first == ("host", 7, [], TaskEnd(KEY, 1.0, 2.0, 3.0, 16), "more to come")
    assert second[0] == "peer", "what it brings about comes after the end was noted"


def test_task_of_another_plan_or_attempt_is_another_task(tasks):
    tasks.add_task(task_order(), 0.0)
    assert tasks.add_piece(piece(IN, key=TaskKey("r", 2, 0, 0)), 0.0) == []
    assert tasks.add_piece(piece(IN, key=TaskKey("r", 1, 0, 1)), 0.0) == []
    assert len(tasks.add_piece(piece(IN), 0.0)) == 1


def test_release_frees_everything_and_later_frames_are_strangers(tasks):
    run_one(tasks)
    tasks.add_task(task_order(TaskKey("r", 1, 1, 0)), 0.0)
    tasks.add_piece(piece(IN, key=TaskKey("r", 1, 2, 0)), 0.0)
    assert tasks.release(["r"]) == []
    assert (len(tasks), tasks.reserved_bytes, tasks.early_bytes) == (0, 0, 0)
    assert tasks.add_piece(piece(IN), 0.0) == []
    assert tasks.add_task(task_order(), 0.0) == []
    assert tasks.dropped == {"stranger": 1, "late_task": 1}


def test_a_running_task_that_is_released_or_cancelled_is_discarded(tasks):
    for key in (KEY, TaskKey("s", 1, 0, 3)):
        tasks.add_task(task_order(key), 0.0)
        tasks.add_piece(piece(IN, key=key), 0.0)
    assert tasks.release(["r"]) == [Discard(KEY)]
    assert tasks.cancel("s", 0, 2) == []
    assert tasks.cancel("s", 0, 3) == [Discard(TaskKey("s", 1, 0, 3))]
    assert tasks.finished(KEY, {}, 0, 0) == []
    assert tasks.finished(TaskKey("s", 1, 0, 3), {}, 0, 0) == []
    assert tasks.dropped == {"unwanted_result": 2}
    assert tasks.reserved_bytes == 0


def test_a_host_that_goes_takes_its_requests_with_it(tasks):
    other = TaskKey("s", 1, 0, 0)
    tasks.add_task(task_order(), 0.0)
    tasks.add_task(task_order(other, stream=8), 0.0)
    assert tasks.stream_closed(7) == []
    assert len(tasks) == 1
    assert len(tasks.add_piece(piece(IN, key=other), 0.0)) == 1


def test_a_host_that_comes_back_may_try_the_same_request_again(tasks):
    tasks.add_task(task_order(), 0.0)
    tasks.stream_closed(7)
    again = TaskKey("r", 1, 0, 1)
    tasks.add_task(task_order(again, stream=9), 1.0)
    assert len(tasks.add_piece(piece(IN, key=again), 1.0)) == 1


def test_outputs_are_kept_until_released_and_can_be_sent_to_somebody_new(tasks):
    run_one(tasks)
    again = OutputSpec("y", Box.of((1, 3)), OUT, "pi-9", "c:1", 4, 1)
    assert plain(tasks.resend(KEY, (again,), 7)) == [
        ("peer", "pi-9", "c:1", [(TaskKey("r", 1, 4, 1), "y", Box.of((1, 3)), [1, 2])], KEY)
    ]
    assert plain(tasks.resend(KEY, (HOST,), 7)) == [
        ("host", 7, [(KEY, "y", OUT, [0, 1, 2, 3])], None)
    ]
    tasks.release(["r"])
    (failed,) = tasks.resend(KEY, (again,), 7)
    assert (failed.key, failed.code) == (KEY, "no_output")


def test_a_resend_of_what_was_not_made_fails(tasks):
    run_one(tasks)
    wrong = OutputSpec("z", OUT, OUT, "host")
    (failed,) = tasks.resend(KEY, (wrong,), 7)
    assert failed.code == "no_output"


@pytest.mark.parametrize(
    "bad",
    [
        task_order(inputs=(("x", IN), ("x", IN))),
        task_order(outputs=(HOST, OutputSpec("y", OUT, Box.of((0, 9)), "host"))),
        task_order(outputs=(OutputSpec("y", Box.of((0, 5)), OUT, "host"),)),
        task_order(outputs=(OutputSpec("y", Box.of((0, 1), (0, 1)), OUT, "host"),)),
    ],
)
def test_a_task_that_contradicts_itself_fails(tasks, bad):
    (failed,) = tasks.add_task(bad, 0.0)
    assert isinstance(failed, ReportFailure)
    assert (failed.stream, failed.key, failed.code) == (7, KEY, "bad_input")
    assert len(tasks) == 0


def test_memory_is_reserved_at_the_start_and_refused_beyond_the_cap():
    tasks = Tasks("me", cap_bytes=100)
    assert tasks.add_task(task_order(), 0.0) == []  # 32 bytes in, 16 out
    assert tasks.add_task(task_order(TaskKey("r", 1, 1, 0)), 0.0) == []
    (failed,) = tasks.add_task(task_order(TaskKey("r", 1, 2, 0)), 0.0)
    assert failed.code == "out_of_memory"
    tasks.add_piece(piece(IN), 0.0)
    tasks.finished(KEY, {"y": np.zeros(4, F32)}, 0, 0)
    assert tasks.reserved_bytes == 16 + 48
    tasks.release(["r"])
    assert tasks.reserved_bytes == 0


def test_a_failed_run_is_told_once_and_a_failed_send_keeps_the_outputs(tasks):
    run_one(tasks)
    assert tasks.failed(KEY, "send", "gone") == [ReportFailure(7, KEY, "send", "gone")]
    assert plain(tasks.resend(KEY, (HOST,), 7))
    other = TaskKey("r", 1, 1, 0)
    tasks.add_task(task_order(other), 0.0)
    tasks.add_piece(piece(IN, key=other), 0.0)
    assert tasks.failed(other, "runtime", "no") == [ReportFailure(7, other, "runtime", "no")]
    assert tasks.failed(other, "runtime", "no") == []


@pytest.mark.parametrize("is_early", [False, True])
def test_a_task_whose_inputs_came_before_it_says_so(tasks, is_early):
    steps = [lambda: tasks.add_task(task_order(), 1.0), lambda: tasks.add_piece(piece(IN), 1.0)]
    for step in reversed(steps) if is_early else steps:
        step()
    (told,) = tasks.finished(KEY, {"y": np.zeros(4, F32)}, 2.0, 3.0)
    assert told.done.described_last == is_early


def test_the_late_end_of_an_old_stream_leaves_what_came_over_the_new_one(tasks):
    again = TaskKey("r", 1, 0, 1)
    tasks.add_task(task_order(), 0.0)
    tasks.add_task(task_order(again, stream=9), 1.0)
    assert tasks.stream_closed(7) == []
    assert len(tasks) == 1
    assert len(tasks.add_piece(piece(IN, key=again), 2.0)) == 1


def test_a_task_without_memory_for_its_inputs_still_waits(tasks, monkeypatch):
    def none(*_):
        raise MemoryError

    empty = Box.of((0, 0), (4, 8))
    tasks.add_task(task_order(inputs=(("x", IN), ("none", empty))), 0.0)
    monkeypatch.setattr(state, "aligned_empty", none)
    with pytest.raises(MemoryError):
        tasks.add_piece(piece(IN), 1.0)
    assert not tasks.running()
    assert tasks.failed(KEY, "out_of_memory", "no")[0].code == "out_of_memory"
    tasks.release(["r"])
    assert tasks.reserved_bytes == 0
