"""Operators that nobody declared: reported, and run whole."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.check import check, fused, refusals
from models.importer import load_graph
from models.units import divide


def test_an_operator_of_nobody_is_opaque() -> None:
    """Left out of the table on purpose: reported, never an error."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("CumSum", ["a", "axis"], ["y"], name="running"),
    ]
    weights = [
        numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w"),
        numpy_helper.from_array(np.array(2, np.int64), "axis"),
    ]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, [1, 2, 9, 9])],
        [helper.make_tensor_value_info("y", kind, [1, 2, 9, 9])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = divide(load_graph(model))
    [only] = refusals(network)
    assert (only.layer, only.op) == ("running", "CumSum")
    assert check(model, network, (3, 1), fused(network)).ok
