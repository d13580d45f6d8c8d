"""Answers that a network picks by rank, as non-maximum suppression picks boxes and a transformer
its queries.

Where two scores are closer than rounding, either may come first, and all that follows differs
although both are right. So what enters each ranking is judged by itself, and what follows is judged
by what the whole model makes of the same scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto

from models.graph.graph import Graph
from models.operators.tail import BODY
from models.tensors.arrays import Arrays

_RANKING = frozenset({"TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "Hardmax", "Unique"})
# What the whole model itself makes of a tensor that it is given.
_OWN = "{}__own"


def entering(model: ModelProto, graph: Graph) -> tuple[str, ...]:
    """The tensors that enter a ranking, or a tail, of those that both the model and the graph
    make.
    """
    made = {name for node in model.graph.node for name in node.output}
    ranked = [node.input[0] for node in model.graph.node if node.op_type in _RANKING]
    for node in graph.nodes:
        ranked += node.inputs if BODY in node.attributes else ()
    known = made & graph.producer.keys() - graph.constants.keys()
    same = (name for name in dict.fromkeys(ranked) if name in known)
    return tuple(name for name in same if not graph.tensors[name].is_dynamic)


def given(model: ModelProto, graph: Graph, names: Sequence[str]) -> ModelProto:
    """The model with these tensors as further inputs, of which everything behind them is made; what
    it makes itself of each of them becomes an output, `NAME__own`, also of those that were one.
    """
    apart = ModelProto()
    apart.CopyFrom(model)
    own = {name: _OWN.format(name) for name in names}
    for node in apart.graph.node:
        node.output[:] = [own.get(name, name) for name in node.output]
    outputs = [value for value in apart.graph.output if value.name not in own]
    del apart.graph.output[:]
    apart.graph.output.extend(outputs)
    for name in names:
        info = graph.tensors[name]
        kind = onnx.helper.make_tensor_value_info(name, info.data_type, info.shape)
        apart.graph.input.append(kind)
        apart.graph.output.append(
            onnx.helper.make_tensor_value_info(own[name], info.data_type, info.shape)
        )
    kept = [value for value in apart.graph.value_info if value.name not in own]
    del apart.graph.value_info[:]
    apart.graph.value_info.extend(kept)
    return apart


def with_own(answer: Arrays, tensors: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    """An answer of `given`, from a split network's answer and tensors."""
    others = {name: array for name, array in answer.items() if name not in names}
    return others | {_OWN.format(name): tensors[name] for name in names}
