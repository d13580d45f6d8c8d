"""Boxes of equal scores: whichever comes first is right, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.check.agreement import entering, given, reference_of, with_own
from models.check.check import fused
from models.cut.program import BlobSource
from models.cut.tiles import grid
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.operators.tail import BODY
from models.run.reference import WholeModel, random_inputs
from models.run.run_tiles import TileRun
from tests.models.tails import suppression


def tied() -> onnx.ModelProto:
    """All candidates have the same score."""
    model = suppression()
    (weights,) = (each for each in model.graph.initializer if list(each.dims) == [6, 16, 1, 1])
    array = numpy_helper.to_array(weights).copy()
    array[4:] = 0.0
    weights.CopyFrom(numpy_helper.from_array(array, weights.name))
    return model


def preferring(model: onnx.ModelProto, scores: str, place: int) -> onnx.ModelProto:
    """The model in which one candidate's score is larger by less than rounding allows."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    more = np.zeros((1, 2, 256), np.float32)
    more[..., place] = 2e-7
    found.graph.initializer.append(numpy_helper.from_array(more, "more"))
    index, node = next((k, n) for k, n in enumerate(found.graph.node) if scores in n.output)
    node.output[0] = "rounded"
    found.graph.node.insert(index + 1, onnx.helper.make_node("Add", ["rounded", "more"], [scores]))
    return found


@pytest.mark.parametrize("fault", ["", "a box", "a score"])
def test_boxes_of_equal_scores_are_right_in_either_order(fault: str) -> None:
    model = tied()
    network = divide(load_graph(model))
    graph, feeds = network.graph, random_inputs(network.graph)
    (tail,) = (node for node in graph.nodes if BODY in node.attributes)
    boxes, scores = (name for name in tail.inputs if name not in graph.constants)
    run = TileRun(network, BlobSource(), feeds)
    for start, stop in fused(network):
        run.block(start, stop, grid(network, start, stop, 3, 1))
    answer = WholeModel(preferring(model, scores, 200)).run(feeds)
    tensors = {**run.tensors, scores: answer[scores]}
    assert reference_of(model, graph, feeds).judge(answer).excess > 1.0
    if fault == "a box":
        tensors[boxes] = tensors[boxes] * np.float32(1.01)
    elif fault == "a score":
        tensors[scores] = tensors[scores] * np.float32(1.01)
    names = entering(model, graph)
    assert set(names) == {boxes, scores}
    cut = given(model, graph, names)
    right = reference_of(cut, graph, {**feeds, **{name: tensors[name] for name in names}})
    judged = right.judge(with_own(answer, tensors, names))
    assert (judged.excess <= 1.0) == (not fault)
    # What the tail itself made of other boxes is no answer to these.
    assert right.judge(with_own(run.answer(), tensors, names)).excess > 1.0
