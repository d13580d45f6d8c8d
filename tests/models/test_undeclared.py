"""Operators that nobody declared: reported, and run whole; one declaration has them cut."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.check.check import check, fused, refusals
from models.cut.units import divide
from models.graph.graph import Graph, Node
from models.onnx_file.importer import load_graph
from models.operators import TABLE, Kind, Operator
from models.tensors.boxes import Box, Span
from tests.models.attention import Net

CHANNELS, ROWS = 1, 2


def running_sum(axis: int) -> onnx.ModelProto:
    """A convolution, and sums along an axis by an operator that the table does not have."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("CumSum", ["a", "axis"], ["y"], name="running"),
    ]
    weights = [
        numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w"),
        numpy_helper.from_array(np.array(axis, np.int64), "axis"),
    ]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, [1, 2, 9, 9])],
        [helper.make_tensor_value_info("y", kind, [1, 2, 9, 9])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_operator_of_nobody_is_opaque() -> None:
    """Left out of the table on purpose: reported, never an error."""
    model = running_sum(ROWS)
    network = divide(load_graph(model))
    [only] = refusals(network)
    assert (only.layer, only.op) == ("running", "CumSum")
    assert check(model, network, (3, 1), fused(network)).ok


def _all_channels(graph: Graph, node: Node, box: Box) -> Box:
    return box.replace(CHANNELS, Span(0, graph.shape(node.outputs[0])[CHANNELS]))


# It mixes channels: a tile is whole along them, and reads the same rows and columns.
DECLARED = Operator(
    Kind.MIXING,
    "mixing",
    reads=lambda graph, node, box: (box, Box.whole(graph.shape(node.inputs[1]))),
    yields=_all_channels,
)


def test_an_operator_is_one_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    model = running_sum(CHANNELS)
    before = check(model, divide(load_graph(model)), (3, 1), [(0, 1), (1, 2)])
    monkeypatch.setitem(TABLE, "CumSum", DECLARED)  # type: ignore[arg-type]
    network = divide(load_graph(model))
    after = check(model, network, (3, 1), fused(network))
    assert (after.refusals, after.ok) == ((), True)
    assert before.partitioned_flop_share < after.partitioned_flop_share == 1.0
    assert {len(unit.nodes) for unit in network.units} == {2}, "it belongs to the convolution"
    # The same declaration is wrong where the sum goes over rows, which tiles do not have whole.
    model = running_sum(ROWS)
    network = divide(load_graph(model))
    assert not check(model, network, (3, 1), fused(network)).ok


def best_of_rows() -> onnx.ModelProto:
    """A convolution, and the three largest of each row, without their places."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("TopK", ["a", "k"], ["values", "indices"], name="best", axis=-1),
        helper.make_node("Neg", ["values"], ["y"], name="after"),
    ]
    weights = [
        numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w"),
        numpy_helper.from_array(np.array([3], np.int64), "k"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_output_that_an_operator_must_have_stays() -> None:
    model = best_of_rows()
    network = divide(load_graph(model))
    assert next(node for node in network.graph.nodes if node.op == "TopK").outputs[1] == "indices"
    assert check(model, network, (3, 1), fused(network)).ok


def quantised_pyramid(steps: int) -> onnx.ModelProto:
    """Maps that are added in 8 bits by an operator of onnxruntime, each resized to twice the size
    that the sum has.
    """
    net = Net(1, 3, 64, 64)
    scale, zero = net.constant(np.array(0.05, np.float32)), net.constant(np.array(128, np.uint8))
    settings = [scale, zero]
    x = net.add("QuantizeLinear", net.conv("x", 3, 8, 3, stride=8), *settings)
    for _ in range(steps):
        x = net.add("QLinearAdd", x, *settings, x, *settings, *settings, domain="com.microsoft")
        size = net.add("Slice", net.add("Shape", x), net.ints(2), net.ints(4), net.ints(0))
        size = net.add("Mul", size, net.ints(2))
        sizes = net.add("Concat", net.ints(1, 8), size, axis=0)
        x = net.add("Resize", x, "", "", sizes, mode="nearest")
    return net.model(net.add("DequantizeLinear", x, *settings))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_sizes_behind_operators_of_the_runtime_are_no_tail(steps: int) -> None:
    model = quantised_pyramid(steps)
    network = divide(load_graph(model))
    assert not [node.op for node in network.graph.nodes if node.op == "imbrex.Tail"]
    assert network.graph.shape(network.graph.outputs[0]) == (1, 8, 8 << steps, 8 << steps)
    assert check(model, network, (3, 1), fused(network)).ok


def test_a_tail_behind_what_nobody_infers_says_so() -> None:
    """onnxruntime has no inference for it either."""
    net = Net(1, 8)
    x = net.add("Trilu", net.reshape(net.linear("x", 8, 64), 8, 8))
    model = net.model(net.add("Relu", net.add("CDist", x, x, domain="com.microsoft")))
    network = divide(load_graph(model))
    [reason] = [each.reason for each in refusals(network) if each.op == "imbrex.Tail"]
    assert reason.startswith("neither ONNX nor onnxruntime says of what shape"), reason
