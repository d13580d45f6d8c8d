"""Chains of Reshape and Transpose, in tiles of any size."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.check.check import check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph


def a_last_axis_of_one(rows: int) -> onnx.ModelProto:
    """A map of so many rows and columns; its columns, then an axis of one element, come last."""
    shape = np.array([1, 2, 1, rows, rows])
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["apart"], name="apart"),
        helper.make_node("Transpose", ["apart"], ["y"], name="moved", perm=[0, 1, 3, 4, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "arranged",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, rows, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, rows, rows, 1])],
        [numpy_helper.from_array(shape, "shape")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("rows", [3, 64, 65, 130])
def test_a_last_axis_of_one(rows: int) -> None:
    model = a_last_axis_of_one(rows)
    network = divide(load_graph(model))
    assert [node.op for node in network.graph.nodes] == ["imbrex.Arrange"]
    for grid in ((1, 1), (2, 1), (3, 2)):
        assert check(model, network, grid, fused(network)).comparison.max_abs_error == 0.0


def test_a_chain_that_is_not_divided_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torchvision's Mask R-CNN: it moves more rows than planners may ask for."""
    monkeypatch.setattr("models.onnx_file.importer.MOST_LINES_ASKED", 0)
    model = a_last_axis_of_one(64)
    network = divide(load_graph(model))
    (node,) = network.graph.nodes
    assert node.op == "imbrex.Arrange"
    assert node.refusal
    assert check(model, network, (2, 1), fused(network)).comparison.max_abs_error == 0.0
