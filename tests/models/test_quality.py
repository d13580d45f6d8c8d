from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.vision.detection import DetectedBox
from models.vision.quality import (
    EvaluatedPicture,
    GroundTruth,
    average_precision,
    exactly_right,
    matched,
    mean_average_precision,
)

Corners = tuple[float, float, float, float]


def at(place: int) -> Corners:
    """Boxes of 10 x 10 that touch nothing."""
    return (20.0 * place, 0.0, 20.0 * place + 10.0, 10.0)


def there(*places: int, label: str = "a") -> list[GroundTruth]:
    return [GroundTruth(label, at(place)) for place in places]


def seen(*items: tuple[int, float], label: str = "a") -> list[DetectedBox]:
    return [DetectedBox(label, 0, score, at(place)) for place, score in items]


def test_average_precision_is_one_for_all_objects_and_zero_for_none() -> None:
    assert average_precision([EvaluatedPicture(seen((0, 0.9), (1, 0.8)), there(0, 1))]) == 1.0
    assert average_precision([EvaluatedPicture([], there(0, 1))]) == 0.0
    assert average_precision([EvaluatedPicture(seen((5, 0.9)), there(0))]) == 0.0


HAND = [
    # hit, miss, hit of 2: precision 1 for the first half of recall, 2/3 for the second
    (seen((0, 0.9), (9, 0.8), (1, 0.7)), there(0, 1), 0.5 + 0.5 * 2 / 3),
    # a miss before everything: 1/2, then 2/3, and the better precision counts for both
    (seen((9, 0.9), (0, 0.8), (1, 0.7)), there(0, 1), 2 / 3),
    # half of what is there
    (seen((0, 0.9)), there(0, 1), 0.5),
    # misses after the last hit cost nothing
    (seen((0, 0.9), (8, 0.2), (9, 0.1)), there(0), 1.0),
    # the same thing twice: the second one is a miss
    (seen((0, 0.9), (0, 0.8), (1, 0.7)), there(0, 1), 0.5 + 0.5 * 2 / 3),
    # hit, miss, miss, hit, hit of 4
    (
        seen((0, 0.9), (8, 0.8), (9, 0.7), (1, 0.6), (2, 0.5)),
        there(0, 1, 2, 3),
        0.25 * 1 + 0.5 * 3 / 5,
    ),
]


@pytest.mark.parametrize(("found", "truth", "expected"), HAND)
def test_cases_computed_by_hand(
    found: list[DetectedBox], truth: list[GroundTruth], expected: float
) -> None:
    assert average_precision([EvaluatedPicture(found, truth)]) == pytest.approx(expected)


def test_scores_are_ranked_over_all_pictures() -> None:
    good = EvaluatedPicture(seen((0, 0.6)), there(0))
    bad = EvaluatedPicture(seen((5, 0.9)), [])
    assert average_precision([good, bad]) == pytest.approx(0.5)
    assert average_precision([good, replace(bad, found=seen((5, 0.1)))]) == 1.0


def test_a_detection_cannot_claim_another_pictures_truth() -> None:
    assert (
        average_precision([EvaluatedPicture(seen((0, 0.9)), []), EvaluatedPicture([], there(0))])
        == 0.0
    )


def test_the_bar_of_overlap_is_inclusive() -> None:
    half = DetectedBox("a", 0, 0.9, (0.0, 0.0, 10.0, 5.0))
    less = DetectedBox("a", 0, 0.9, (0.0, 0.0, 10.0, 4.9))
    assert average_precision([EvaluatedPicture([half], there(0))]) == 1.0
    assert average_precision([EvaluatedPicture([less], there(0))]) == 0.0
    assert average_precision([EvaluatedPicture([less], there(0))], min_iou=0.4) == 1.0


def test_the_mean_is_over_the_labels_of_the_truth() -> None:
    picture = EvaluatedPicture(
        [*seen((0, 0.9)), *seen((1, 0.9), label="b"), *seen((2, 0.9), label="stray")],
        [*there(0), *there(3, label="b")],
    )
    mean, each = mean_average_precision([picture])
    assert each == {"a": 1.0, "b": 0.0}
    assert mean == 0.5


def test_a_right_box_with_a_wrong_label_is_no_hit() -> None:
    picture = EvaluatedPicture(seen((0, 0.9), label="b"), there(0))
    assert mean_average_precision([picture])[0] == 0.0
    assert [hit for _, hit in matched(picture)] == [False]


def test_pictures_that_are_exactly_right_are_counted() -> None:
    right = EvaluatedPicture(seen((0, 0.9), (1, 0.8)), there(0, 1))
    one_more = EvaluatedPicture(seen((0, 0.9), (5, 0.8)), there(0))
    one_less = EvaluatedPicture(seen((0, 0.9)), there(0, 1))
    assert exactly_right([right, one_more, one_less, EvaluatedPicture([], [])]) == 2


def test_without_truth_there_is_no_precision() -> None:
    with pytest.raises(ValueError, match="without truth"):
        average_precision([EvaluatedPicture(seen((0, 0.9)), [])])
    with pytest.raises(ValueError, match="without truth"):
        mean_average_precision([])


outcomes = st.lists(
    st.tuples(st.booleans(), st.integers(1, 1000)), max_size=12, unique_by=lambda o: o[1]
)


@given(outcomes, st.integers(0, 5))
def test_average_precision_is_the_area_under_the_curve(
    outcome: list[tuple[bool, int]], missed: int
) -> None:
    """Oracle: at every recall reached, the best precision at that recall or beyond."""
    places = list(range(len(outcome)))
    found = [
        DetectedBox("a", 0, score / 1000, at(place if hit else place + 500))
        for place, (hit, score) in zip(places, outcome, strict=True)
    ]
    truth = there(*[place for place, (hit, _) in zip(places, outcome, strict=True) if hit])
    truth += there(*range(1000, 1000 + missed))
    if not truth:
        return
    ranked = [hit for hit, _ in sorted(outcome, key=lambda item: -item[1])]
    curve = [(sum(ranked[: n + 1]), sum(ranked[: n + 1]) / (n + 1)) for n in range(len(ranked))]
    area = sum(
        max((precision for hits, precision in curve if hits >= step), default=0.0)
        for step in range(1, len(truth) + 1)
    )
    assert average_precision([EvaluatedPicture(found, truth)]) == pytest.approx(area / len(truth))


def test_a_planted_fault_lowers_the_precision() -> None:
    truth = there(*range(10))
    found = seen(*[(n, 0.9 - n / 100) for n in range(10)])
    shifted = [
        replace(item, box=tuple(edge + 4.0 for edge in item.box)) if n == 0 else item
        for n, item in enumerate(found)
    ]
    assert average_precision([EvaluatedPicture(found, truth)]) == 1.0
    assert average_precision([EvaluatedPicture(shifted, truth)]) == pytest.approx(9 * 0.9 / 10)
