"""Answers that a network's tail picks by rank, as non-maximum suppression picks boxes.

Where two scores are closer than rounding, either may come first, and the answers differ although
both are right. Then what enters the tail is judged instead, and what the tail makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import ModelProto, helper

from models.agreement import Judgement, reference_of
from models.graph import Graph
from models.operators.tail import BODY
from models.reference import Arrays, WholeModel, compare
from models.soundness import without_unread
from models.tolerance import tolerance


def judged_ahead(
    model: ModelProto, graph: Graph, feeds: Arrays, tensors: Arrays, answer: Arrays
) -> Judgement | None:
    """How far an answer is off, of which `tensors` are known, by what enters the tail; None if the
    network has no tail, or one that reads what the model itself does not make.
    """
    tail = next((node for node in graph.nodes if BODY in node.attributes), None)
    if tail is None:
        return None
    entering = [name for name in tail.inputs if name not in graph.constants]
    made = {name for node in model.graph.node for name in node.output}
    if not entering or not made.issuperset(entering):
        return None
    kinds = [
        helper.make_tensor_value_info(name, graph.tensors[name].data_type, graph.shape(name))
        for name in entering
    ]
    ahead = _with(model, [], kinds)
    found = reference_of(ahead, graph, feeds).judge({name: tensors[name] for name in entering})
    behind = _with(model, kinds, model.graph.output)
    picked = WholeModel(behind).run({**feeds, **{name: tensors[name] for name in entering}})
    error = compare(answer, picked)
    return found.worse(Judgement(error, error.max_rel_error / tolerance(graph)))


def _with(
    model: ModelProto, given: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> ModelProto:
    """What makes these outputs where some tensors are given besides the model's inputs."""
    part = ModelProto()
    part.CopyFrom(model)
    names = {value.name for value in given}
    nodes = [node for node in model.graph.node if names.isdisjoint(node.output)]
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(without_unread(nodes, [value.name for value in outputs]))
    part.graph.input.extend(given)
    part.graph.output.extend(outputs)
    return part
