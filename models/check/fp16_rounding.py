"""Arithmetic in half precision, as far as onnxruntime can show it: what nodes make, and the
weights, are rounded to float16; sums are in float32. A processor that also adds in half precision
loses more.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def round_to_half(model: onnx.ModelProto, floats: Set[str]) -> None:
    """Has the model round its float32 weights, and those of its tensors that `floats` names;
    outputs that are encoded stay as they are.

    Values beyond 65504 become infinite.
    """
    graph = model.graph
    encoded = {
        each.name for each in graph.output if each.type.tensor_type.elem_type != TensorProto.FLOAT
    }
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):
                rounded = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for k, name in enumerate(node.output):
            if name in floats - encoded:
                exact, half = f"{name}__exact", f"{name}__half"
                node.output[k] = exact
                nodes.append(helper.make_node("Cast", [exact], [half], to=TensorProto.FLOAT16))
                nodes.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(made)
