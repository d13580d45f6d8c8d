import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tensors.boxes import Box, Span, covers_exactly

SIZE = 6
spans = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda t: Span(min(t), max(t)))
boxes = st.tuples(spans, spans).map(Box)


def painted(box: Box) -> np.ndarray:
    grid = np.zeros((SIZE, SIZE), dtype=int)
    grid[box.slices()] = 1
    return grid


@given(boxes, boxes)
def test_intersection_and_containment_agree_with_painting(a: Box, b: Box) -> None:
    both = painted(a) & painted(b)
    assert both.sum() == (0 if a.intersect(b).is_empty else a.intersect(b).volume)
    assert a.contains(b) == bool((painted(a) >= painted(b)).all())


@given(boxes, boxes)
def test_the_hull_is_the_smallest_box_that_holds_both(a: Box, b: Box) -> None:
    hull = a.hull(b)
    assert hull.contains(a)
    assert hull.contains(b)
    union = np.argwhere(painted(a) | painted(b))
    if len(union):
        low, high = union.min(axis=0), union.max(axis=0) + 1
        assert hull == Box(tuple(Span(int(x), int(y)) for x, y in zip(low, high, strict=True)))


@given(st.lists(boxes, max_size=5))
def test_covers_exactly_agrees_with_counting(parts: list[Box]) -> None:
    whole = Box.of((0, SIZE), (0, SIZE))
    count = sum((painted(part) for part in parts), np.zeros((SIZE, SIZE), dtype=int))
    assert covers_exactly(parts, whole) == bool((count == 1).all())


def test_slices_are_relative_to_the_outer_box() -> None:
    outer = Box.of((0, 1), (10, 20))
    inner = Box.of((0, 1), (12, 15))
    array = np.arange(10).reshape(1, 10)
    assert array[inner.slices(inside=outer)].tolist() == [[2, 3, 4]]


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_volume_of_a_box_is_its_number_of_elements(shape: tuple[int, ...]) -> None:
    assert Box.whole(shape).volume == int(np.prod(shape))
