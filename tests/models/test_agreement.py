"""Each kind of value is judged by its own magnitude, and by how far onnxruntime is from itself."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from models.check.agreement import ChannelRange, Reference, kinds
from models.check.tolerance import rounding
from models.onnx_file.importer import load_graph
from tests.models.attention import Net

LIMIT = 1e-5
RNG = np.random.default_rng(0)


def boxes(rows_last: bool) -> np.ndarray:
    """A detector's output: four coordinates in pixels and three scores, for 200 boxes."""
    pixels, scores = 640.0 * RNG.random((4, 200)), 0.4 * RNG.random((3, 200))
    found = np.concatenate([pixels, scores])[None].astype(np.float32)
    return found if rows_last else found.transpose(0, 2, 1)


@pytest.mark.parametrize("rows_last", [True, False])
def test_a_scores_error_does_not_hide_behind_a_pixel(rows_last: bool) -> None:
    whole = boxes(rows_last)
    axis = 1 if rows_last else 2
    assert list(kinds({"out": whole})) == [
        ChannelRange("out", axis, 0, 4),
        ChannelRange("out", axis, 4, 7),
    ]
    reference = Reference({"out": whole}, None, LIMIT)
    assert reference.judge({"out": whole}).excess == 0.0
    pixel, score = whole.copy(), whole.copy()
    pixel[0, 0, 0] += 1e-3
    score[0, -1, -1] += 1e-3
    assert reference.judge({"out": pixel}).excess < 1.0
    judged = reference.judge({"out": score})
    assert judged.comparison.max_rel_error > 1e-3
    assert judged.excess > 100
    assert judged.worst == ChannelRange("out", axis, 4, 7)


def test_noise_of_onnxruntime_is_allowed() -> None:
    whole = RNG.random((1, 1, 40, 40)).astype(np.float32)
    noisy, wrong = whole.copy(), whole.copy()
    noisy[0, 0, 3, 3] += 8e-5
    wrong[0, 0, 20:] += 1e-3
    reference = Reference({"out": whole}, {"out": noisy}, LIMIT)
    assert 7e-5 < reference.noise < 9e-5
    shifted = whole.copy()
    shifted[0, 0, 9, 9] -= 9e-5
    assert reference.judge({"out": shifted}).excess <= 1.0
    assert Reference({"out": whole}, None, LIMIT).judge({"out": shifted}).excess > 1.0
    assert reference.judge({"out": wrong}).excess > 1.0


def test_small_values_of_a_sigmoid_lie_in_steps() -> None:
    net = Net(1, 3, 16, 16)
    scores = net.add("Sigmoid", net.add("Sub", net.conv("x", 3, 4), net.constant(np.float32(12))))
    boxes = net.conv("x", 3, 4)
    graph = load_graph(net.model(net.add("Concat", boxes, scores, axis=1), boxes))
    assert [rounding(graph, name) for name in graph.outputs] == [2.0**-22, 0.0]
    whole = np.full((1, 1, 20, 20), 5e-5, np.float32)
    one, more = whole.copy(), whole.copy()
    one[0, 0, 3, 3] += 2.0**-23
    more[0, 0, 3, 3] += 2.0**-21
    reference = Reference({"out": whole}, None, LIMIT, rounded={"out": 2.0**-22})
    assert reference.judge({"out": one}).excess <= 1.0
    assert reference.judge({"out": more}).excess > 1.0
    assert Reference({"out": whole}, None, LIMIT).judge({"out": one}).excess > 1.0


def test_an_element_of_steps_agrees_with_either_answer_and_nothing_else() -> None:
    step = 0.1
    whole = step * RNG.integers(0, 9, (1, 1, 40, 40)).astype(np.float32)
    again, mixed = whole.copy(), whole.copy()
    again[0, 0, ::4] += np.float32(step)
    mixed[0, 0, ::8] = again[0, 0, ::8]
    reference = Reference({"out": whole}, {"out": again}, LIMIT, either=True)
    assert reference.noise > 0.1
    for right in (whole, again, mixed):
        assert reference.judge({"out": right}).excess == 0.0
    beyond, elsewhere, between = whole.copy(), whole.copy(), whole.copy()
    beyond[0, 0, 0, 0] = again[0, 0, 0, 0] + np.float32(step)
    elsewhere[0, 0, 1, 0] += np.float32(step)
    between[0, 0, 0, 0] += np.float32(step / 2)
    for wrong in (beyond, elsewhere, between):
        assert reference.judge({"out": wrong}).excess > 1.0
    assert reference.judge({"out": whole[..., :5]}).excess == inf
    assert reference.judge({"out": np.full_like(whole, nan)}).excess == inf


def test_few_values_are_of_one_kind() -> None:
    logits = np.array([[3.0, 1e-4, -2.0]], dtype=np.float32)
    assert list(kinds({"out": logits})) == [ChannelRange("out", 0, 0, 1)]
    assert list(kinds({"out": logits.reshape(1, 3, 1, 1)})) == [ChannelRange("out", 0, 0, 1)]
    near = logits + np.array([[0.0, 1e-5, 0.0]], dtype=np.float32)
    assert Reference({"out": logits}, None, LIMIT).judge({"out": near}).excess <= 1.0


def test_a_channel_of_zeros_is_of_its_neighbours_kind() -> None:
    whole = np.ones((1, 3, 10, 10), dtype=np.float32)
    whole[0, 1] = 0.0
    assert list(kinds({"out": whole})) == [ChannelRange("out", 1, 0, 3)]
    answer = whole.copy()
    answer[0, 1, 0, 0] = 1e-9
    assert Reference({"out": whole}, None, LIMIT).judge({"out": answer}).excess < 1.0


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"out": np.zeros((1, 4, 10, 10), np.float32)},
        {"out": np.zeros((1, 3, 10), np.float32)},
        {"out": np.full((1, 3, 10, 10), np.nan, np.float32)},
        {"out": np.zeros((1, 3, 10, 10), np.float64)},
    ],
)
def test_answer_of_another_form_agrees_with_nothing(answer: dict[str, np.ndarray]) -> None:
    whole = np.ones((1, 3, 10, 10), dtype=np.float32)
    assert Reference({"out": whole}, None, LIMIT).judge(answer).excess == inf


def test_a_single_number_is_compared() -> None:
    reference = Reference({"out": np.float32(2.0)}, None, LIMIT)
    assert reference.judge({"out": np.float32(2.0)}).excess == 0.0
    assert reference.judge({"out": np.float32(2.1)}).excess > 1.0


@pytest.mark.parametrize("odd", [inf, nan])
def test_a_second_answer_that_is_not_finite_allows_nothing(odd: float) -> None:
    whole = RNG.random((1, 1, 40, 40)).astype(np.float32)
    noisy, wrong = whole.copy(), whole.copy()
    noisy[0, 0, 3, 3] = odd
    wrong[0, 0, 20:] += 1e-3
    reference = Reference({"out": whole}, {"out": noisy}, LIMIT)
    assert reference.noise == 0.0
    assert reference.judge({"out": wrong}).excess > 1.0
