"""Eliminating variables finds what trying everything finds."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.planning.papers import minsum
from coordinator.planning.papers.minsum import (
    Table,
    TooWideError,
    descend,
    greedy_order,
    minimise,
    total_of,
    widest,
)
from tests.examples import examples

COSTS = st.floats(0, 100) | st.just(float("inf"))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Table]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    tables = []
    for _ in range(draw(st.integers(0, 6))):
        scope = draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, 3))]
        shape = tuple(sizes[v] for v in scope)
        count = int(np.prod(shape))
        costs = draw(st.lists(COSTS, min_size=count, max_size=count))
        tables.append(Table(tuple(scope), np.array(costs).reshape(shape)))
    return sizes, tables


def everything(sizes: Sequence[int], tables: Sequence[Table]) -> float:
    choices = itertools.product(*(range(size) for size in sizes))
    return min(total_of(tables, choice) for choice in choices)


@settings(max_examples=examples(150))
@given(problems(), st.randoms(use_true_random=False))
def test_any_order_finds_the_least_total(problem, random) -> None:
    sizes, tables = problem
    order = list(range(len(sizes)))
    random.shuffle(order)
    for each in (order, greedy_order(sizes, tables)):
        cost, choice = minimise(sizes, tables, each)
        assert cost == pytest.approx(everything(sizes, tables))
        assert total_of(tables, choice) == pytest.approx(cost)


@settings(max_examples=examples(100))
@given(problems())
def test_descent_ends_where_no_single_change_helps(problem) -> None:
    sizes, tables = problem
    choice = list(descend(sizes, tables))
    for variable, size in enumerate(sizes):
        mine = [table for table in tables if variable in table.variables]
        here = total_of(mine, choice)
        for other in range(size):
            changed = [*choice[:variable], other, *choice[variable + 1 :]]
            assert total_of(mine, changed) >= here


def test_elimination_that_is_too_wide_is_refused(monkeypatch) -> None:
    pair = np.zeros((3, 3))
    star = [Table((0, leaf), pair) for leaf in range(1, 5)]
    assert widest([3] * 5, star, [0, 1, 2, 3, 4]) == 3**5
    assert widest([3] * 5, star, greedy_order([3] * 5, star)) == 9
    monkeypatch.setattr(minsum, "MAX_ENTRIES", 3**5 - 1)
    with pytest.raises(TooWideError) as caught:
        minimise([3] * 5, star, [0, 1, 2, 3, 4])
    assert caught.value.entries == 3**5
