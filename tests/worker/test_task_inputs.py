"""How the inputs of a task are filled: by whom, in which order, and what is dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tensors.boxes import Box, covers_exactly, minus
from tests.worker.task_parts import F32, HOST, IN, KEY, OUT, piece, plain, sent_by, task_order
from worker.tasks.actions import (
    InputSpec,
    TaskForm,
    TaskKey,
    TaskOrder,
    TensorPiece,
)
from worker.tasks.early import EARLY_FOR_S, PIECE_BYTES
from worker.tasks.state import Tasks


def test_pieces_may_overtake_their_task(tasks):
    assert tasks.add_piece(piece(IN), 0.0) == []
    assert tasks.early_bytes > 32
    assert plain(tasks.add_task(task_order(), 1.0)) == [
        ("run", KEY, "p", {"x": [[1] * 4] * 2}, {"y": OUT.shape})
    ]
    assert tasks.early_bytes == 0


def test_a_frame_that_is_the_whole_input_is_not_copied(tasks):
    tasks.add_task(task_order(), 0.0)
    sent = piece(IN)
    (run,) = tasks.add_piece(sent, 0.0)
    assert run.inputs["x"] is sent.array


def test_a_strided_whole_input_and_pieces_become_one_aligned_array(tasks):
    tasks.add_task(task_order(), 0.0)
    view = np.ones((2, 8), F32)[:, ::2]
    (run,) = tasks.add_piece(TensorPiece(KEY, "x", IN, view), 0.0)
    assert run.inputs["x"].flags.c_contiguous
    assert run.inputs["x"].ctypes.data % 64 == 0


def test_empty_inputs_are_full(tasks):
    empty = Box.of((0, 2), (4, 4))
    assert plain(tasks.add_task(task_order(inputs=(("x", empty),)), 0.0)) == [
        ("run", KEY, "p", {"x": [[], []]}, {"y": OUT.shape})
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (piece(IN, tensor="z"), "stranger"),
        (piece(IN, dtype=np.float64), "wrong_size"),
        (piece(Box.of((0, 2), (4, 9))), "wrong_size"),
        (piece(Box.of((0, 2))), "wrong_size"),
        (TensorPiece(KEY, "x", IN, np.zeros((2, 3), F32)), "wrong_size"),
    ],
)
def test_piece_that_does_not_fit_is_dropped_and_counted(tasks, bad, why):
    tasks.add_task(task_order(), 0.0)
    assert tasks.add_piece(bad, 0.0) == []
    assert tasks.dropped == {why: 1}


def test_duplicates_are_dropped_before_and_after_the_start(tasks):
    part = Box.of((0, 1), (4, 8))
    tasks.add_task(task_order(), 0.0)
    tasks.add_piece(piece(part), 0.0)
    assert tasks.add_piece(piece(part, 9.0), 0.0) == []
    (run,) = tasks.add_piece(piece(IN, 1.0), 0.0)
    assert tasks.add_piece(piece(IN, 9.0), 0.0) == []
    assert tasks.add_task(task_order(), 0.0) == []
    assert run.inputs["x"].max() == 1
    assert tasks.dropped == {"duplicate": 2, "duplicate_task": 1}


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


def test_early_pieces_are_bounded_however_small():
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
        (run,) = tasks.add_task(task_order(TaskKey(request, 1, 0, 0)), 0.0)
        assert run.inputs["x"].tolist() == [[value] * 4] * 2


def sourced(*sources):
    return TaskOrder(KEY, TaskForm("p", (InputSpec("x", IN, F32, sources),), (HOST,)), 7)


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
    tasks.add_task(task_order(other), 0.0)
    assert len(tasks.add_piece(sent_by("anybody", IN, key=other), 0.0)) == 1


def test_an_input_in_too_many_parts_is_not_filled_further():
    tasks = Tasks("me", cap_bytes=1 << 20)
    wide = Box.of((0, 2400))
    tasks.add_task(task_order(inputs=(("x", wide),)), 0.0)
    for column in range(0, 2400, 2):
        tasks.add_piece(sent_by("left", Box.of((column, column + 1))), 0.0)
    assert tasks.dropped["scattered"] > 100
    (run,) = tasks.add_piece(piece(wide), 0.0)  # whole, it is taken all the same
    assert run.inputs["x"].shape == (2400,)


boxes = st.builds(
    lambda a, b, c, d: Box.of((min(a, b), max(a, b)), (min(c, d), max(c, d))),
    *[st.integers(0, 6)] * 4,
)


@given(boxes, boxes)
def test_rest_and_part_of_a_box_are_the_box(box, part):
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
        tasks.add_task(task_order(inputs=(("x", box),)), 0.0)
    for number, part in enumerate(sent):
        if overtaken and number == when:
            ran += tasks.add_task(task_order(inputs=(("x", box),)), 0.0)
        ran += tasks.add_piece(TensorPiece(KEY, "x", part, source[part.slices()]), 0.0)
        reference[part.slices()] = source[part.slices()]
    if overtaken and when >= len(sent):
        ran += tasks.add_task(task_order(inputs=(("x", box),)), 0.0)
    full = not np.isnan(reference[box.slices()]).any()
    assert len(ran) == full
    if full:
        assert np.array_equal(ran[0].inputs["x"], source[box.slices()])
    tasks.release(["r"])
    assert (tasks.reserved_bytes, tasks.early_bytes, len(tasks)) == (0, 0, 0)


def test_pieces_of_peers_are_shown_until_the_request_is_released(tasks):
    top, bottom = Box.of((0, 1), (4, 8)), Box.of((1, 2), (4, 8))
    tasks.add_task(task_order(), 0.0)
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


def test_of_boxes_within_boxes_no_more_is_kept_than_fits_the_input(tasks):
    """As a hostile neighbour may send them: each adds a row to what is there."""
    box = Box.of((0, 64), (0, 8))
    tasks.add_task(task_order(inputs=(("x", box),)), 0.0)
    for rows in range(1, 64):
        tasks.add_piece(sent_by("left", Box.of((0, rows), (0, 8))), 1.0)
    (task,) = tasks._tasks.values()
    assert sum(each.array.nbytes for each in task.from_peers) <= box.volume * F32.itemsize
    assert len(tasks.add_piece(sent_by("left", box), 1.0)) == 1
    tasks.release([KEY.request])
    assert tasks.reserved_bytes == 0
