"""A detector that picks its boxes itself: its rows are made where the answer is put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.planning.legal import check_plan
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.halo import halo
from coordinator.planning.planners.lw import lw
from coordinator.planning.planners.single import single
from coordinator.tasks.task_graph import outline_plan
from models.cut.units import divide
from models.graph.ending import Ending
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, answer, compare, random_inputs
from models.tensors.boxes import Span
from models.tensors.selection import Selection, dense
from tests.models.picking import ENTRIES, FAULTS, ROWS, SCORES, detector
from tests.planning.run_plan import run_plan
from tests.planning.support import MEMORY, cluster

KINDS = {"YOLO26": {}, "YOLOv10": {"twice": True}, "poses": {"more": 2}}
LEAST = 0.5
ROW_SCORES = Selection(1, 2, Span(4, 5), LEAST)


def ended(**how: object) -> tuple[Graph, Ending]:
    graph = load_graph(detector(**how), ends=True)
    assert graph.ending is not None
    return graph, graph.ending


@pytest.mark.parametrize("kind", KINDS)
def test_devices_make_the_list_and_the_answer_is_the_whole_models(kind: str) -> None:
    proto = detector(**KINDS[kind])
    graph, _ = ended(**KINDS[kind])
    assert not any(node.op in ("TopK", "GatherElements") for node in graph.nodes)
    network = divide(graph)
    assert all(unit.is_divisible for unit in network.units)
    feeds = random_inputs(graph)
    whole = WholeModel(proto, 1).run(feeds)
    some = cluster(*[0.01] * 3, link=MEMORY)
    for planner in (single, lw, halo, auto):
        plan = planner(network, some)
        check_plan(plan, network, some)
        assert compare(run_plan(plan, network, feeds), whole).max_rel_error <= 1e-5


def test_graph_has_an_ending_only_when_asked_for() -> None:
    graph = load_graph(detector())
    assert graph.ending is None
    assert any(node.op == "TopK" for node in graph.nodes)


def values(seed: int, count: int) -> np.ndarray:
    """A list with many equal scores, some at the threshold; few or many of them above it."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((1, ENTRIES, count)).astype(np.float32)
    below = np.nextafter(np.float32(LEAST), np.float32(0))
    choice = rng.choice(np.array([0, 0.1, below, LEAST, 0.7, 0.7, 1], np.float32), found.shape)
    scores = np.where(rng.random(found.shape) < 0.7, choice, rng.random(found.shape))
    scores[:, rng.random(ENTRIES) < rng.choice([0.5, 0.97])] *= 0.4
    found[:, :, 4 : 4 + SCORES] = scores[:, :, 4 : 4 + SCORES]
    return found


def rows(ending: Ending, list_: np.ndarray) -> np.ndarray:
    """The rows that a reader looks at."""
    (made,) = answer(ending.outputs, {}, {ending.source: list_}, ending).values()
    return made[0, made[0, :, 4] >= LEAST]


def narrowed(selection: Selection, list_: np.ndarray) -> np.ndarray:
    chosen = selection.chosen(list_)
    return dense(list_.take(chosen, 1), chosen.tolist(), 1, list_.shape)


MADE = {kind: ended(**how)[1] for kind, how in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32))
def test_rows_are_the_same_of_the_likely_entries_alone(kind: str, seed: int) -> None:
    ending = MADE[kind]
    (selection,) = ending.selected(dict.fromkeys(ending.outputs, ROW_SCORES)).values()
    assert (selection.scores, selection.least) == (Span(4, 4 + SCORES), LEAST)
    list_ = values(seed, 6 + SCORES if kind == "poses" else 4 + SCORES)
    assert np.array_equal(rows(ending, narrowed(selection, list_)), rows(ending, list_))


def test_a_selection_by_other_scores_would_be_seen() -> None:
    ending = MADE["YOLO26"]
    (right,) = ending.selected(dict.fromkeys(ending.outputs, ROW_SCORES)).values()
    wrong = replace(right, scores=Span(4, 3 + SCORES))
    lists = [values(seed, 4 + SCORES) for seed in range(20)]
    assert any(len(rows(ending, each)) for each in lists)
    assert any(
        not np.array_equal(rows(ending, narrowed(wrong, each)), rows(ending, each))
        for each in lists
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_detector_that_picks_otherwise_is_left_as_it_is(fault: str) -> None:
    assert load_graph(detector(fault), ends=True).ending is None


@pytest.mark.parametrize(
    "read",
    [
        replace(ROW_SCORES, scores=Span(5, 6)),
        replace(ROW_SCORES, scores=Span(4, 6)),
        replace(ROW_SCORES, axis=2, across=1),
        replace(ROW_SCORES, factor=3),
    ],
)
def test_readers_of_anything_but_rows_by_score_are_not_understood(read: Selection) -> None:
    _, ending = ended()
    (output,) = ending.outputs
    assert ending.understands({output: ROW_SCORES})
    assert not ending.understands({output: read})
    assert not ending.understands({})
    assert ending.selected({output: read, "other": read}) == {"other": read}


def test_a_plan_says_which_of_the_lists_entries_travel() -> None:
    graph, ending = ended()
    network = divide(graph)
    tasks = outline_plan(lw(network, cluster(*[0.01] * 3, link=MEMORY)), network)
    (output,) = ending.outputs
    found = tasks.selectable({output: ROW_SCORES})
    assert found
    assert all(each.scores == Span(4, 4 + SCORES) for each in found.values())
    assert set(found) <= set(graph.results)
    assert graph.shape(output) == (1, ROWS, 6)
