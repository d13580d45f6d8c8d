"""One cut is optimal; BFS levels share tensors only with their neighbours."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.planning.papers import kcut_search as kcut
from coordinator.planning.papers import minsum
from coordinator.planning.papers.kcut_search import Operation, levels, one_cut
from tests.examples import examples


def operation(rng: np.random.Generator, tensors: tuple[int, ...], sizes: list[int], forms: int):
    return Operation(
        tensors,
        tuple(rng.integers(0, 50, (forms, sizes[tensor])).astype(float) for tensor in tensors),
        rng.integers(0, 50, forms).astype(float),
    )


@st.composite
def flows(draw: st.DrawFn) -> tuple[list[int], list[Operation]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    operations = []
    for _ in range(draw(st.integers(1, 6))):
        tensors = draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, 3))]
        operations.append(operation(rng, tuple(tensors), sizes, draw(st.integers(1, 3))))
    return sizes, operations


def moved(operations: list[Operation], tilings: tuple[int, ...]) -> float:
    return sum(
        min(
            each.fixed[form]
            + sum(
                costs[form, tilings[t]] for t, costs in zip(each.tensors, each.moved, strict=True)
            )
            for form in range(len(each.fixed))
        )
        for each in operations
    )


@settings(max_examples=examples(150))
@given(flows(), st.booleans())
def test_single_cut_moves_the_fewest_bytes(flow, narrow) -> None:
    sizes, operations = flow
    with pytest.MonkeyPatch.context() as patch:
        if narrow:
            patch.setattr(kcut, "_LEVEL_ENTRIES", 1)
        cost, tilings = one_cut(sizes, operations)
    every = itertools.product(*(range(size) for size in sizes))
    assert cost == moved(operations, tilings) == min(moved(operations, each) for each in every)


@settings(max_examples=examples(150))
@given(flows())
def test_levels_share_tensors_only_with_their_neighbours(flow) -> None:
    _, operations = flow
    depth = {o: d for d, level in enumerate(levels(operations)) for o in level}
    assert sorted(depth) == list(range(len(operations)))
    for a, b in itertools.combinations(range(len(operations)), 2):
        if set(operations[a].tensors) & set(operations[b].tensors):
            assert abs(depth[a] - depth[b]) <= 1


def test_a_chain_has_one_operation_per_level() -> None:
    chain = [operation(np.random.default_rng(1), (i, i + 1), [2] * 5, 2) for i in range(4)]
    assert levels(chain) == [[0], [1], [2], [3]]


def test_tilings_too_many_to_try_are_improved_one_by_one(monkeypatch) -> None:
    rng = np.random.default_rng(5)
    pairs = list(itertools.combinations(range(6), 2))
    operations = [operation(rng, pair, [3] * 6, 2) for pair in pairs]
    monkeypatch.setattr(minsum, "MAX_ENTRIES", 10)
    cost, tilings = one_cut([3] * 6, operations)
    assert cost == moved(operations, tilings)
