"""Tiles that finish together, against a dynamic program that tries every division."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.planning.search.balance import TileCosts, balanced
from tests.examples import examples


def random_costs(devices: int, blocks: int, rows: int, seed: int) -> TileCosts:
    """Costs that grow with a tile, by steps of very different sizes, often of none."""
    rng = np.random.default_rng(seed)
    shape = (devices, blocks, rows)
    steps = rng.exponential(size=shape) * rng.integers(0, 2, shape) * 10.0 ** rng.integers(-3, 2)
    ends = np.concatenate([np.zeros((devices, blocks, 1)), np.cumsum(steps, axis=2)], axis=2)
    # A tile's beginning takes off less than what the tiles before it cost: that is the halo.
    halo = rng.uniform(0, 0.5, (devices, blocks, 1))
    begins = np.maximum.accumulate(ends * (1 - halo), axis=2)
    begins[:, :, 0] = 0
    fixed = rng.exponential(size=(devices, blocks)) * rng.choice([0.0, 0.1, 3.0])
    return TileCosts.of([(fixed, begins, ends)])


def oracle(costs: TileCosts, block: int, devices: Iterable[int]) -> float:
    """O(D H^2): best[h] = least slowest tile of these devices over the first h rows."""
    rows, place = costs.rows[block], costs.places[block]
    best = np.full(rows + 1, np.inf)
    best[0] = 0.0
    for d in devices:
        after = best.copy()
        for stop in range(1, rows + 1):
            for start in range(stop):
                one = costs.fixed[d, block] + costs.ends[d, place + stop]
                one -= costs.begins[d, place + start]
                after[stop] = min(after[stop], max(best[start], one))
        best = after
    return float(best[rows])


@settings(max_examples=examples(60))
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12), st.integers(0, 10**6))
def test_bisection_finds_the_optimum(devices: int, blocks: int, rows: int, seed: int) -> None:
    costs = random_costs(devices, blocks, rows, seed)
    times, marks = balanced(costs)
    for k in range(devices):
        for block in range(blocks):
            wanted = oracle(costs, block, range(k + 1))
            assert times[k, block] <= wanted * (1 + 1e-9) + 1e-12
            assert times[k, block] >= wanted * (1 - 1e-9) - 1e-12
            ends = marks[k, block]
            assert ends[0] == 0
            assert ends[-1] == rows
            assert (np.diff(ends) >= 0).all()
            assert (ends[k + 1 :] == rows).all(), "later devices get nothing"
            slowest = max(
                float(costs.seconds(d, np.array(block), ends[d], ends[d + 1]))
                for d in range(devices)
            )
            assert abs(slowest - times[k, block]) < 1e-12


@settings(max_examples=examples(40))
@given(st.integers(2, 4), st.integers(1, 10), st.integers(0, 10**6))
def test_balance_of_any_subset_of_devices_is_the_best(devices: int, rows: int, seed: int) -> None:
    costs = random_costs(devices, 2, rows, seed)
    subsets = [s for s in itertools.product((False, True), repeat=devices) if any(s)]
    times, marks = balanced(costs, np.array(subsets))
    for k, subset in enumerate(subsets):
        used = [d for d in range(devices) if subset[d]]
        for block in range(2):
            assert times[k, block] == pytest.approx(oracle(costs, block, used), rel=1e-9)
            sizes = np.diff(marks[k, block])
            assert sizes.sum() == rows
            assert all(subset[d] for d in np.flatnonzero(sizes))


@settings(max_examples=examples(30))
@given(
    st.integers(1, 4), st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 10**6)
)
def test_maps_of_several_sizes_at_once(devices: int, sizes: list[int], seed: int) -> None:
    each = [random_costs(devices, 2, rows, seed + k) for k, rows in enumerate(sizes)]
    parts = [
        (one.fixed, one.begins.reshape(devices, 2, -1), one.ends.reshape(devices, 2, -1))
        for one in each
    ]
    times, marks = balanced(TileCosts.of(parts))
    apart = [balanced(one) for one in each]
    assert times == pytest.approx(np.concatenate([alone for alone, _ in apart], axis=1), rel=1e-9)
    assert (marks[:, :, -1] == np.repeat(sizes, 2)).all()


@settings(max_examples=examples(30))
@given(st.integers(2, 6), st.integers(2, 60), st.integers(0, 10**6))
def test_balance_over_more_devices_is_never_slower(devices: int, rows: int, seed: int) -> None:
    times, _ = balanced(random_costs(devices, 2, rows, seed))
    assert (np.diff(times, axis=0) <= 1e-12).all()


def test_a_device_that_isn_t_worth_its_message_gets_nothing() -> None:
    rows = np.arange(11.0)
    ends = np.stack([rows, rows, rows])[:, None, :]
    fixed = np.array([[0.0], [100.0], [0.0]])
    times, marks = balanced(TileCosts.of([(fixed, ends, ends)]))
    assert times[2, 0] == 5.0
    assert list(marks[2, 0]) == [0, 5, 5, 10]


def test_tiles_are_in_proportion_to_rates() -> None:
    rows = np.arange(31.0)
    ends = np.stack([rows, rows / 2])[:, None, :]
    times, marks = balanced(TileCosts.of([(np.zeros((2, 1)), ends, ends)]))
    assert list(marks[1, 0]) == [0, 10, 30]
    assert times[1, 0] == 10.0
