"""SOYBEAN's algebra against sets of elements; its Theorems 1-3; section 2.2's bytes."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.matrices import (
    COLUMNS,
    PARTIAL,
    REPLICATED,
    ROWS,
    MatrixFlow,
    Part,
    elementwise,
    product,
)
from benchmarks.matrices import _conversion as conversion
from benchmarks.training import DATA_PARALLEL, MODEL_PARALLEL, FixedCut, Perceptron, total_bytes
from coordinator.planning.papers.kcut_search import Group, k_cut
from tests.examples import examples

EVEN = (0.5, 0.5)
TILINGS = st.sampled_from([ROWS, COLUMNS, REPLICATED])
SIZES = st.integers(1, 40).map(float)


@st.composite
def flows(draw: st.DrawFn) -> MatrixFlow:
    """Random graphs of products and elementwise operations over up to six matrices."""
    count = draw(st.integers(2, 6))
    sizes = {f"m{i}": draw(SIZES) for i in range(count)}
    operations = []
    for output in range(1, count):
        earlier = st.integers(0, output - 1)
        if draw(st.booleans()):
            flags = {"x_transposed": draw(st.booleans()), "y_transposed": draw(st.booleans())}
            operations.append(product(draw(earlier), draw(earlier), output, **flags))
        else:
            operations.append(elementwise((draw(earlier),), output))
    return MatrixFlow.of(sizes, operations)


def cuts(tree: Group) -> list[Group]:
    return [tree, *(cut for part in tree.parts for cut in cuts(part))] if tree.parts else []


# ---------------------------------------------------------------- conversions


def held_by(tilings: list[int], device: tuple[int, ...], cells: list) -> set:
    """Elements of a matrix that a device holds. Each cut halves rows (or columns) by a digit of
    its own, so cuts are independent of each other.
    """
    return {
        cell
        for cell in cells
        if all(
            tiling == REPLICATED or cell[tiling][cut] == device[cut]
            for cut, tiling in enumerate(tilings)
        )
    }


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(TILINGS, TILINGS), min_size=1, max_size=3))
def test_conversion_moves_what_is_required_and_not_there(pairs) -> None:
    count = len(pairs)
    digits = list(itertools.product((0, 1), repeat=count))
    cells = list(itertools.product(digits, digits))
    moved = sum(
        len(held_by([t for _, t in pairs], d, cells) - held_by([s for s, _ in pairs], d, cells))
        for d in digits
    )
    part = Part(float(len(cells)), float(len(cells)))
    for source, target in pairs:
        need, held = conversion(source, target, 0.5)
        part = Part(part.need * need, part.held * held)
    assert part.missing * 2**count == moved


@pytest.mark.parametrize(
    ("source", "target", "share_of_matrix"),
    [
        (ROWS, ROWS, 0),
        (ROWS, COLUMNS, 1 / 2),
        (COLUMNS, ROWS, 1 / 2),
        (ROWS, REPLICATED, 1),
        (REPLICATED, COLUMNS, 0),
        (REPLICATED, REPLICATED, 0),
    ],
)
def test_conversions_between_two_devices(source, target, share_of_matrix) -> None:
    pairs = [conversion(source, target, share) for share in EVEN]
    assert sum(need - held for need, held in pairs) == pytest.approx(share_of_matrix)


@pytest.mark.parametrize(("target", "matrices"), [(ROWS, 1), (COLUMNS, 1), (REPLICATED, 2)])
def test_partial_sums_are_added_up_and_then_replicated(target, matrices) -> None:
    flow = MatrixFlow.of({"x": 3.0, "y": 4.0, "z": 5.0}, [product(0, 1, 2)])
    form = [each.makes for each in flow.flow[0].forms].index(PARTIAL)
    assert flow.moved(0, form, (COLUMNS, ROWS, target), EVEN) == pytest.approx(5.0 * matrices)


@settings(max_examples=examples(50))
@given(st.integers(2, 6), st.integers(1, 4))
def test_adding_up_over_many_devices_fetches_all_other_sums(ways, width) -> None:
    """n devices with partial sums of S bytes: each fetches n - 1 parts of its S / n."""
    flow = MatrixFlow.of({"x": 1.0, "y": 1.0, "z": float(width)}, [product(0, 1, 2)])
    form = [each.makes for each in flow.flow[0].forms].index(PARTIAL)
    shares = (1 / ways,) * ways
    moved = flow.moved(0, form, (COLUMNS, ROWS, ROWS), shares)
    assert moved == pytest.approx((ways - 1) * width)


# ---------------------------------------------------------------- theorems


@settings(max_examples=examples(300))
@given(flows(), st.integers(1, 3))
def test_theorem_1_total_is_the_weighted_sum_of_the_cuts(flow, k) -> None:
    """c_k = sum of 2^(k-i) delta_i: cut number i from the first is made in 2^i groups alike."""
    tree, leaves = k_cut(flow, [1.0] * 2**k)
    assert len(leaves) == 2**k
    total, group = 0.0, tree
    for depth in range(k):
        total += 2**depth * group.delta_bytes
        group = group.parts[0]
    assert tree.total_bytes == pytest.approx(total)
    missing = sum(p.missing for leaf in leaves for parts in leaf.parts for p in parts)
    assert tree.total_bytes == pytest.approx(missing), "the cuts account for all that is moved"


@st.composite
def sequences(draw: st.DrawFn) -> tuple[MatrixFlow, list[tuple[tuple[int, ...], list[int]]]]:
    """A graph and up to three cuts: tilings of its matrices, forms of its operations."""
    flow = draw(flows())
    steps = []
    for _ in range(draw(st.integers(2, 3))):
        tilings = tuple(draw(TILINGS) for _ in flow.names)
        forms = [draw(st.integers(0, len(each.forms) - 1)) for each in flow.flow]
        steps.append((tilings, forms))
    return flow, steps


def moved_by(flow: MatrixFlow, steps) -> list[float]:
    """What each cut adds, in all groups together."""
    added = []
    for depth, (tilings, forms) in enumerate(steps):
        each = sum(flow.moved(o, form, tilings, EVEN) for o, form in enumerate(forms))
        added.append(2**depth * each)
        flow = flow.part_in(forms, tilings, EVEN, 0)
    return added


@settings(max_examples=examples(100))
@given(sequences())
def test_theorem_2_order_of_the_cuts_does_not_matter(sequence) -> None:
    flow, steps = sequence
    totals = [sum(moved_by(flow, order)) for order in itertools.permutations(steps)]
    assert totals == pytest.approx([totals[0]] * len(totals))


def transposed(flow: MatrixFlow, step) -> set[tuple[int, int]]:
    """Operands (operation, place) that a cut turns from one split to another."""
    tilings, forms = step
    found = set()
    for o, (each, form) in enumerate(zip(flow.flow, forms, strict=True)):
        pairs = [(tilings[m], n) for m, n in zip(each.inputs, each.forms[form].needs, strict=True)]
        makes = each.forms[form].makes
        pairs.append((makes if makes != PARTIAL else tilings[each.output], tilings[each.output]))
        found |= {(o, place) for place, pair in enumerate(pairs) if set(pair) == {ROWS, COLUMNS}}
    return found


@settings(max_examples=examples(150))
@given(sequences())
def test_theorem_3_a_cut_costs_at_most_twice_the_one_inside_it(sequence) -> None:
    """delta_i <= 2 delta_(i-1) if the outer cut is the cheaper one of the two to begin with: what
    a cut adds in all groups never falls. One exception: of an operand that both cuts turn from
    rows to columns the second moves only half as much (3/4 of it in all, not 1/2 twice).
    """
    flow, (first, second, *_) = sequence
    alone_first, alone_second = moved_by(flow, [first])[0], moved_by(flow, [second])[0]
    assume(alone_first <= alone_second)
    outer, inner = moved_by(flow, [first, second])
    both = transposed(flow, first) & transposed(flow, second)
    assert outer <= inner * (2 if both else 1) + 1e-9


@settings(max_examples=examples(30))
@given(flows(), st.integers(2, 3))
def test_theorem_3_holds_for_the_cuts_that_are_found(flow, k) -> None:
    tree, _ = k_cut(flow, [1.0] * 2**k)
    for group in cuts(tree):
        for part in group.parts:
            if part.parts:
                assert group.delta_bytes <= 4 * part.delta_bytes + 1e-9


@settings(max_examples=examples(30))
@given(flows(), st.lists(st.integers(1, 5).map(float), min_size=1, max_size=6))
def test_cuts_for_any_number_of_uneven_devices_move_what_is_missing(flow, weights) -> None:
    tree, leaves = k_cut(flow, weights)
    assert len(leaves) == len(weights)
    assert sum(group.stop - group.start == 1 for group in flat(tree)) == len(weights)
    missing = sum(p.missing for leaf in leaves for parts in leaf.parts for p in parts)
    assert tree.total_bytes == pytest.approx(missing)
    assert math.isfinite(tree.total_bytes)


def flat(tree: Group) -> list[Group]:
    return [tree, *(each for part in tree.parts for each in flat(part))]


@settings(max_examples=examples(25))
@given(flows())
def test_first_cut_is_the_best_of_all(flow) -> None:
    assume(len(flow.names) <= 4)
    tree, _ = k_cut(flow, [1.0, 1.0])
    every = itertools.product((ROWS, COLUMNS, REPLICATED), repeat=len(flow.names))
    best = min(
        sum(
            flow.moved(o, flow.best_form(o, tilings, EVEN), tilings, EVEN)
            for o in range(len(flow.flow))
        )
        for tilings in every
    )
    assert tree.total_bytes == pytest.approx(best)


# ---------------------------------------------------------------- section 2.2

PERCEPTRON = Perceptron(layers=5, width=300, batch=400)
HYBRID = [FixedCut(4, DATA_PARALLEL), FixedCut(4, MODEL_PARALLEL)]


@pytest.mark.parametrize(
    ("named", "megabytes"),
    [
        ([FixedCut(16, DATA_PARALLEL)], 57.6),
        ([FixedCut(16, MODEL_PARALLEL)], 76.8),
        (HYBRID, 33.6),
    ],
)
def test_section_2_2(named, megabytes) -> None:
    assert total_bytes(PERCEPTRON.flow("whole"), named) == pytest.approx(megabytes * 1e6)


@pytest.mark.parametrize(("batch", "width"), [(400, 300), (300, 400), (16, 512), (4096, 64)])
def test_k_cut_moves_no_more_than_what_people_choose(batch, width) -> None:
    perceptron = Perceptron(5, width, batch)
    found = k_cut(perceptron.flow(), [1.0] * 16)[0].total_bytes
    for named in ([FixedCut(16, DATA_PARALLEL)], [FixedCut(16, MODEL_PARALLEL)], HYBRID):
        assert found <= total_bytes(perceptron.flow(), named)
        assert found <= total_bytes(perceptron.flow("whole"), named)


def test_the_better_parallelism_changes_with_the_shape() -> None:
    """Section 2.2: with batch 300 and layers of 400, model parallelism becomes better."""
    flow = Perceptron(5, width=400, batch=300).flow("whole")
    data, model = ([FixedCut(16, kinds)] for kinds in (DATA_PARALLEL, MODEL_PARALLEL))
    assert total_bytes(flow, model) < total_bytes(flow, data)


def test_inference_moves_nothing_if_the_batch_is_split() -> None:
    flow = PERCEPTRON.flow(training=False)
    assert total_bytes(flow, [FixedCut(16, DATA_PARALLEL)]) == 0
    assert k_cut(flow, [1.0] * 16)[0].total_bytes == 0


def test_split_weights_in_inference_move_activations_only() -> None:
    flow = PERCEPTRON.flow("whole", training=False)
    assert total_bytes(flow, [FixedCut(16, MODEL_PARALLEL)]) == pytest.approx(38.4e6)
    assert np.isclose(sum(part.need for part in flow.parts[0]), (0.48 * 2 + 0.36 + 0.48) * 1e6)
