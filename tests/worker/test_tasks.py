import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.boxes import Box, covers_exactly
from worker.tasks.actions import (
    Discard,
    Done,
    Failed,
    InputSpec,
    OutputSpec,
    Piece,
    Run,
    SendToHost,
    SendToPeer,
    SetUp,
    TaskForm,
    TaskKey,
    TaskSpec,
)
from worker.tasks.early import EARLY_FOR_S, PIECE_BYTES
from worker.tasks.state import Tasks
from worker.tasks.subtract import minus

F32 = np.dtype(np.float32)
IN = Box.of((0, 2), (4, 8))
OUT = Box.of((0, 4))
KEY = TaskKey("r", 1, 0, 0)
HOST = OutputSpec("y", OUT, OUT, "host")


def spec(key=KEY, inputs=(("x", IN),), outputs=(HOST,), stream=7):
    read = tuple(InputSpec(n, b, F32) for n, b in inputs)
    return TaskSpec(key, TaskForm("p", read, outputs), stream)


def piece(box, value=1.0, key=KEY, tensor="x", dtype=np.float32):
    return Piece(key, tensor, box, np.full(box.shape, value, dtype))


def sent_by(device, box, value=1.0, key=KEY):
    return Piece(key, "x", box, np.full(box.shape, value, F32), device)


def plain(actions):
    """Actions as values that compare: arrays as lists."""
    shown = []
    for action in actions:
        match action:
            case Run(key, program, inputs, shapes):
                arrays = {name: array.tolist() for name, array in inputs.items()}
                shown.append(("run", key, program, arrays, dict(shapes)))
            case SendToHost(stream, pieces, done, more):
                sent = ("host", stream, [shape(p) for p in pieces], done)
                shown.append((*sent, "more to come") if more else sent)
            case SendToPeer(device, address, pieces, source, stream):
                shown.append(("peer", device, address, [shape(p) for p in pieces], source, stream))
            case _:
                shown.append(action)
    return shown


def shape(p):
    return (p.key, p.tensor, p.box, p.array.tolist())


@pytest.fixture
def tasks():
    return Tasks("me", cap_bytes=10_000)


def run_one(tasks, task=None, value=0.0):
    """A task up to its end."""
    task = task or spec()
    tasks.add_task(task, 0.0)
    for entry in task.form.inputs:
        tasks.add_piece(piece(entry.box, value, task.key, entry.tensor), 1.0)
    outputs = {
        o.tensor: np.arange(o.yields.volume, dtype=F32).reshape(o.yields.shape)
        for o in task.form.outputs
    }
    return tasks.finished(task.key, outputs, 2.0, 3.0)


def test_a_task_runs_when_its_pieces_have_come_and_its_output_goes_to_the_host(tasks):
    top, bottom = Box.of((0, 1), (4, 8)), Box.of((1, 2), (4, 8))
    assert tasks.add_task(spec(), 0.0) == []
    assert tasks.add_piece(piece(bottom, 2.0), 1.0) == []
    assert plain(tasks.add_piece(piece(top, 1.0), 2.0)) == [
        ("run", KEY, "p", {"x": [[1, 1, 1, 1], [2, 2, 2, 2]]}, {"y": OUT.shape})
    ]
    assert plain(tasks.finished(KEY, {"y": np.arange(4, dtype=F32)}, 3.0, 4.0)) == [
        ("host", 7, [(KEY, "y", OUT, [0, 1, 2, 3])], Done(KEY, 2.0, 3.0, 4.0))
    ]


def test_pieces_may_overtake_their_task(tasks):
    assert tasks.add_piece(piece(IN), 0.0) == []
    assert tasks.early_bytes > 32
    assert plain(tasks.add_task(spec(), 1.0)) == [
        ("run", KEY, "p", {"x": [[1] * 4] * 2}, {"y": OUT.shape})
    ]
    assert tasks.early_bytes == 0


def test_a_frame_that_is_the_whole_input_is_not_copied(tasks):
    tasks.add_task(spec(), 0.0)
    sent = piece(IN)
    (run,) = tasks.add_piece(sent, 0.0)
    assert run.inputs["x"] is sent.array


def test_a_strided_whole_input_and_pieces_become_one_aligned_array(tasks):
    tasks.add_task(spec(), 0.0)
    view = np.ones((2, 8), F32)[:, ::2]
    (run,) = tasks.add_piece(Piece(KEY, "x", IN, view), 0.0)
    assert run.inputs["x"].flags.c_contiguous
    assert run.inputs["x"].ctypes.data % 64 == 0


def later(task, request="r"):
    return TaskKey(request, 1, task, 0)


def test_while_the_first_runs_the_others_of_its_request_are_set_up(tasks):
    tasks.add_task(spec(), 0.0)
    tasks.add_task(spec(later(1)), 0.0)
    tasks.add_task(spec(later(0, "another request")), 0.0)
    first, set_up = tasks.add_piece(piece(IN), 1.0)
    assert isinstance(set_up, SetUp)
    assert first.key == KEY
    assert (set_up.run.key, set_up.run.program, set_up.run.shapes) == (
        later(1),
        "p",
        {"y": OUT.shape},
    )
    sent = piece(IN, 3.0, later(1))
    (run,) = tasks.add_piece(sent, 2.0)
    assert run is set_up.run  # with what was set up in it
    assert run.inputs["x"].tolist() == sent.array.tolist()
    assert run.inputs["x"] is not sent.array


def test_what_came_before_its_task_was_set_up_is_in_it(tasks):
    tasks.add_task(spec(later(1)), 0.0)
    tasks.add_piece(piece(Box.of((0, 1), (4, 8)), 1.0, later(1)), 0.0)
    tasks.add_task(spec(), 0.0)
    _, set_up = tasks.add_piece(piece(IN), 1.0)
    (run,) = tasks.add_piece(piece(Box.of((1, 2), (4, 8)), 2.0, later(1)), 2.0)
    assert run.inputs["x"] is set_up.run.inputs["x"]
    assert run.inputs["x"].tolist() == [[1] * 4, [2] * 4]


def test_only_what_waits_is_set_up_and_once(tasks):
    for number in range(4):
        tasks.add_task(spec(later(number)), 0.0)
    tasks.cancel("r", 3, 0)
    assert [type(action) for action in tasks.add_piece(piece(IN, 1.0, later(2)), 1.0)] == [
        Run,
        SetUp,
        SetUp,
    ]
    assert [type(action) for action in tasks.add_piece(piece(IN), 1.0)] == [Run]
    tasks.add_task(spec(later(4)), 2.0)
    run, set_up = tasks.add_piece(piece(IN, 1.0, later(1)), 3.0)
    assert (run.key, set_up.run.key) == (later(1), later(4))


def test_empty_inputs_are_full(tasks):
    empty = Box.of((0, 2), (4, 4))
    assert plain(tasks.add_task(spec(inputs=(("x", empty),)), 0.0)) == [
        ("run", KEY, "p", {"x": [[], []]}, {"y": OUT.shape})
    ]


def test_one_action_per_destination_and_outputs_to_itself_stay_here(tasks):
    half, rest = Box.of((0, 2)), Box.of((2, 4))
    next_key = TaskKey("r", 1, 5, 2)
    outputs = (
        OutputSpec("y", half, OUT, "pi-2", "a:1", 9, 1),
        OutputSpec("y", rest, OUT, "me", "", 5, 2),
        OutputSpec("y", rest, OUT, "pi-2", "a:1", 8, 1),
        OutputSpec("y", OUT, OUT, "host"),
        OutputSpec("y", Box.of((1, 1)), OUT, "pi-3", "b:1", 8, 1),
    )
    tasks.add_task(spec(next_key, inputs=(("y", rest),)), 0.0)
    peer = [(TaskKey("r", 1, 9, 1), "y", half, [0, 1]), (TaskKey("r", 1, 8, 1), "y", rest, [2, 3])]
    assert plain(run_one(tasks, spec(outputs=outputs))) == [
        ("peer", "pi-2", "a:1", peer, KEY, 7),
        ("host", 7, [(KEY, "y", OUT, [0, 1, 2, 3])], Done(KEY, 1.0, 2.0, 3.0, 16), "more to come"),
        ("run", next_key, "p", {"y": [2, 3]}, {"y": OUT.shape}),
    ]


def test_the_host_learns_the_end_even_where_it_gets_no_tensor(tasks):
    outputs = (OutputSpec("y", OUT, OUT, "pi-2", "a:1"),)
    assert plain(run_one(tasks, spec(outputs=outputs)))[1:] == [
        ("host", 7, [], Done(KEY, 1.0, 2.0, 3.0, 16))
    ]


def test_the_end_of_a_task_can_travel_with_what_later_tasks_of_the_request_send(tasks):
    outputs = (OutputSpec("y", OUT, OUT, "pi-2", "a:1"),)
    tasks.add_task(spec(TaskKey("other", 1, 0, 0)), 0.0)
    tasks.add_task(spec(TaskKey("r", 1, 5, 0)), 0.0)
    first, second = plain(run_one(tasks, spec(outputs=outputs)))
    assert first == ("host", 7, [], Done(KEY, 1.0, 2.0, 3.0, 16), "more to come")
    assert second[0] == "peer", "what it brings about comes after the end was noted"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (piece(IN, tensor="z"), "stranger"),
        (piece(IN, dtype=np.float64), "wrong_size"),
        (piece(Box.of((0, 2), (4, 9))), "wrong_size"),
        (piece(Box.of((0, 2))), "wrong_size"),
        (Piece(KEY, "x", IN, np.zeros((2, 3), F32)), "wrong_size"),
    ],
)
def test_what_does_not_fit_is_dropped_and_counted(tasks, bad, why):
    tasks.add_task(spec(), 0.0)
    assert tasks.add_piece(bad, 0.0) == []
    assert tasks.dropped == {why: 1}


def test_duplicates_are_dropped_before_and_after_the_start(tasks):
    part = Box.of((0, 1), (4, 8))
    tasks.add_task(spec(), 0.0)
    tasks.add_piece(piece(part), 0.0)
    assert tasks.add_piece(piece(part, 9.0), 0.0) == []
    (run,) = tasks.add_piece(piece(IN, 1.0), 0.0)
    assert tasks.add_piece(piece(IN, 9.0), 0.0) == []
    assert tasks.add_task(spec(), 0.0) == []
    assert run.inputs["x"].max() == 1
    assert tasks.dropped == {"duplicate": 2, "duplicate_task": 1}


def test_another_plan_or_attempt_is_another_task(tasks):
    tasks.add_task(spec(), 0.0)
    assert tasks.add_piece(piece(IN, key=TaskKey("r", 2, 0, 0)), 0.0) == []
    assert tasks.add_piece(piece(IN, key=TaskKey("r", 1, 0, 1)), 0.0) == []
    assert len(tasks.add_piece(piece(IN), 0.0)) == 1


def test_release_frees_everything_and_later_frames_are_strangers(tasks):
    run_one(tasks)
    tasks.add_task(spec(TaskKey("r", 1, 1, 0)), 0.0)
    tasks.add_piece(piece(IN, key=TaskKey("r", 1, 2, 0)), 0.0)
    assert tasks.release(["r"]) == []
    assert (len(tasks), tasks.reserved_bytes, tasks.early_bytes) == (0, 0, 0)
    assert tasks.add_piece(piece(IN), 0.0) == []
    assert tasks.add_task(spec(), 0.0) == []
    assert tasks.dropped == {"stranger": 1, "late_task": 1}


def test_a_running_task_that_is_released_or_cancelled_is_discarded(tasks):
    for key in (KEY, TaskKey("s", 1, 0, 3)):
        tasks.add_task(spec(key), 0.0)
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
    tasks.add_task(spec(), 0.0)
    tasks.add_task(spec(other, stream=8), 0.0)
    assert tasks.stream_closed(7) == []
    assert len(tasks) == 1
    assert len(tasks.add_piece(piece(IN, key=other), 0.0)) == 1


def test_a_host_that_comes_back_may_try_the_same_request_again(tasks):
    tasks.add_task(spec(), 0.0)
    tasks.stream_closed(7)
    again = TaskKey("r", 1, 0, 1)
    tasks.add_task(spec(again, stream=9), 1.0)
    assert len(tasks.add_piece(piece(IN, key=again), 1.0)) == 1


def test_outputs_are_kept_until_released_and_can_be_sent_to_somebody_new(tasks):
    run_one(tasks)
    again = OutputSpec("y", Box.of((1, 3)), OUT, "pi-9", "c:1", 4, 1)
    assert plain(tasks.resend(KEY, (again,), 7, 5.0)) == [
        ("peer", "pi-9", "c:1", [(TaskKey("r", 1, 4, 1), "y", Box.of((1, 3)), [1, 2])], KEY, 7)
    ]
    assert plain(tasks.resend(KEY, (HOST,), 7, 5.0)) == [
        ("host", 7, [(KEY, "y", OUT, [0, 1, 2, 3])], None)
    ]
    tasks.release(["r"])
    (failed,) = tasks.resend(KEY, (again,), 7, 5.0)
    assert (failed.key, failed.code) == (KEY, "no_output")


def test_a_resend_of_what_was_not_made_fails(tasks):
    run_one(tasks)
    wrong = OutputSpec("z", OUT, OUT, "host")
    (failed,) = tasks.resend(KEY, (wrong,), 7, 5.0)
    assert failed.code == "no_output"


@pytest.mark.parametrize(
    "bad",
    [
        spec(inputs=(("x", IN), ("x", IN))),
        spec(outputs=(HOST, OutputSpec("y", OUT, Box.of((0, 9)), "host"))),
        spec(outputs=(OutputSpec("y", Box.of((0, 5)), OUT, "host"),)),
        spec(outputs=(OutputSpec("y", Box.of((0, 1), (0, 1)), OUT, "host"),)),
    ],
)
def test_a_task_that_contradicts_itself_fails(tasks, bad):
    (failed,) = tasks.add_task(bad, 0.0)
    assert isinstance(failed, Failed)
    assert (failed.stream, failed.key, failed.code) == (7, KEY, "bad_input")
    assert len(tasks) == 0


def test_memory_is_reserved_at_the_start_and_refused_beyond_the_cap():
    tasks = Tasks("me", cap_bytes=100)
    assert tasks.add_task(spec(), 0.0) == []  # 32 bytes in, 16 out
    assert tasks.add_task(spec(TaskKey("r", 1, 1, 0)), 0.0) == []
    (failed,) = tasks.add_task(spec(TaskKey("r", 1, 2, 0)), 0.0)
    assert failed.code == "out_of_memory"
    tasks.add_piece(piece(IN), 0.0)
    tasks.finished(KEY, {"y": np.zeros(4, F32)}, 0, 0)
    assert tasks.reserved_bytes == 16 + 48
    tasks.release(["r"])
    assert tasks.reserved_bytes == 0


def test_early_pieces_are_capped_and_expire():
    tasks = Tasks("me", cap_bytes=1000, early_cap_bytes=3 * PIECE_BYTES)
    keys = [TaskKey("r", 1, number, 0) for number in range(3)]
    for key in keys:
        tasks.add_piece(piece(IN, key=key), 0.0)
    held_bytes = tasks.early_bytes
    assert 2 * (PIECE_BYTES + 32) < held_bytes <= 3 * PIECE_BYTES
    assert tasks.dropped == {"early_overflow": 1}
    tasks.add_piece(piece(IN, key=keys[2]), EARLY_FOR_S)
    assert (tasks.early_bytes, tasks.dropped["early_expired"]) == (held_bytes // 2, 2)


def test_however_small_pieces_are_only_so_many_are_held():
    tasks = Tasks("me", cap_bytes=1000, early_cap_bytes=10 * PIECE_BYTES)
    empty = Box.of((0, 0), (4, 8))
    for number in range(100):
        tasks.add_piece(sent_by("flood", empty, key=TaskKey("r", 1, number, 0)), 0.0)
    assert tasks.dropped["early_overflow"] > 90
    tasks.add_piece(sent_by("flood", empty, key=TaskKey("r" * 10**6, 1, 0, 0)), 0.0)
    assert tasks.early_bytes <= 10 * PIECE_BYTES


def test_a_flood_of_one_sender_drops_nothing_of_others():
    tasks = Tasks("me", cap_bytes=1000, early_cap_bytes=20 * PIECE_BYTES)
    tasks.add_piece(sent_by("left", IN, 3.0, TaskKey("first", 1, 0, 0)), 0.0)
    for number in range(100):
        tasks.add_piece(sent_by("flood", IN, key=TaskKey("r", 1, number, 0)), 0.0)
    tasks.add_piece(sent_by("right", IN, 5.0, TaskKey("later", 1, 0, 0)), 0.0)
    for request, value in (("first", 3.0), ("later", 5.0)):
        (run,) = tasks.add_task(spec(TaskKey(request, 1, 0, 0)), 0.0)
        assert run.inputs["x"].tolist() == [[value] * 4] * 2


def sourced(*sources):
    return TaskSpec(KEY, TaskForm("p", (InputSpec("x", IN, F32, sources),), (HOST,)), 7)


@pytest.mark.parametrize("early", [True, False])
def test_a_piece_is_taken_only_from_whom_the_host_named_for_it(tasks, early):
    top, bottom = Box.of((0, 1), (4, 8)), Box.of((1, 2), (4, 8))
    task = sourced(("left", top), ("right", bottom))
    bad = [sent_by("stranger", top), sent_by("right", top), sent_by("left", IN, 9.0)]
    good = [sent_by("left", top, 1.0), sent_by("right", bottom, 2.0)]
    if early:
        for each in (*bad, *good):
            tasks.add_piece(each, 0.0)
        (run,) = tasks.add_task(task, 0.0)
    else:
        tasks.add_task(task, 0.0)
        assert [tasks.add_piece(each, 0.0) for each in bad] == [[], [], []]
        tasks.add_piece(good[0], 0.0)
        (run,) = tasks.add_piece(good[1], 0.0)
    assert run.inputs["x"].tolist() == [[1.0] * 4, [2.0] * 4]
    assert tasks.dropped == {"wrong_sender": 3}


def test_the_host_may_send_what_a_neighbour_did_not_and_an_older_one_names_nobody(tasks):
    tasks.add_task(sourced(("left", IN)), 0.0)
    assert len(tasks.add_piece(piece(IN), 0.0)) == 1
    other = TaskKey("old", 1, 0, 0)
    tasks.add_task(spec(other), 0.0)
    assert len(tasks.add_piece(sent_by("anybody", IN, key=other), 0.0)) == 1


def test_an_input_in_too_many_parts_is_not_filled_further():
    tasks = Tasks("me", cap_bytes=1 << 20)
    wide = Box.of((0, 8192))
    tasks.add_task(spec(inputs=(("x", wide),)), 0.0)
    for column in range(0, 8192, 2):
        tasks.add_piece(sent_by("left", Box.of((column, column + 1))), 0.0)
    assert tasks.dropped["scattered"] > 2048
    (run,) = tasks.add_piece(piece(wide), 0.0)  # whole, it is taken all the same
    assert run.inputs["x"].shape == (8192,)


def test_a_failed_run_is_told_once_and_a_failed_send_keeps_the_outputs(tasks):
    run_one(tasks)
    assert tasks.failed(KEY, "send", "gone") == [Failed(7, KEY, "send", "gone")]
    assert plain(tasks.resend(KEY, (HOST,), 7, 0.0))
    other = TaskKey("r", 1, 1, 0)
    tasks.add_task(spec(other), 0.0)
    tasks.add_piece(piece(IN, key=other), 0.0)
    assert tasks.failed(other, "runtime", "no") == [Failed(7, other, "runtime", "no")]
    assert tasks.failed(other, "runtime", "no") == []


boxes = st.builds(
    lambda a, b, c, d: Box.of((min(a, b), max(a, b)), (min(c, d), max(c, d))),
    *[st.integers(0, 6)] * 4,
)


@given(boxes, boxes)
def test_what_is_left_of_a_box_and_what_was_taken_are_the_box(box, part):
    rest = minus(box, part)
    assert covers_exactly([*rest, box.intersect(part)], box)


@given(st.lists(boxes, max_size=12), st.integers(0, 12), st.booleans())
def test_any_pieces_in_any_order_fill_the_input_once(parts, when, overtaken):
    """Against the plain rule: the task runs when every element has been written."""
    tasks = Tasks("me", 10_000)
    box = Box.of((1, 5), (2, 6))
    reference = np.full((7, 7), np.nan, F32)
    source = np.arange(49, dtype=F32).reshape(7, 7)
    inside = [part.intersect(box) for part in parts]
    sent = [part for part in inside if not part.is_empty]
    ran = []
    if not overtaken:
        tasks.add_task(spec(inputs=(("x", box),)), 0.0)
    for number, part in enumerate(sent):
        if overtaken and number == when:
            ran += tasks.add_task(spec(inputs=(("x", box),)), 0.0)
        ran += tasks.add_piece(Piece(KEY, "x", part, source[part.slices()]), 0.0)
        reference[part.slices()] = source[part.slices()]
    if overtaken and when >= len(sent):
        ran += tasks.add_task(spec(inputs=(("x", box),)), 0.0)
    full = not np.isnan(reference[box.slices()]).any()
    assert len(ran) == full
    if full:
        assert np.array_equal(ran[0].inputs["x"], source[box.slices()])
    tasks.release(["r"])
    assert (tasks.reserved_bytes, tasks.early_bytes, len(tasks)) == (0, 0, 0)


def test_what_peers_sent_is_shown_until_the_request_is_released(tasks):
    top, bottom = Box.of((0, 1), (4, 8)), Box.of((1, 2), (4, 8))
    tasks.add_task(spec(), 0.0)
    tasks.add_piece(sent_by("left", top, 3.0), 1.0)
    tasks.add_piece(piece(bottom), 1.0)
    kept = tasks.reserved_bytes
    tasks.finished(KEY, {"y": np.arange(4, dtype=F32)}, 2.0, 3.0)
    # The outputs, and the row that came from the peer; not the one that the host has.
    assert kept - tasks.reserved_bytes == 16
    shown = plain(tasks.show(KEY, "x", IN, 7))
    assert shown == [("host", 7, [(KEY, "x", top, [[3.0] * 4])], None)]
    assert plain(tasks.show(KEY, "x", top, 7)) == shown
    (refused,) = tasks.show(KEY, "x", bottom, 7)
    assert (refused.code, refused.stream) == ("no_output", 7)
    assert tasks.show(KEY, "other", IN, 7)[0].code == "no_output"
    tasks.release([KEY.request])
    assert tasks.show(KEY, "x", top, 7)[0].code == "no_output"
    assert tasks.reserved_bytes == 0
