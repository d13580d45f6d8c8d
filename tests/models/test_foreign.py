"""Operators and functions that are not ONNX's: what onnxruntime runs is split or runs whole."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.check.check import check, fused, refusals
from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.cut.tiles import tile_boxes, whole_map
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.onnx_file.model_file import MAX_NODES, without_functions
from protos.errors import BadRequest

SHAPE = [1, 2, 12, 12]
RUNTIME, OWN = "com.microsoft", "my.functions"


def between(node: onnx.NodeProto, *domains: str) -> onnx.ModelProto:
    """The node, from `a` to `b`, between two convolutions."""
    rng = np.random.default_rng(1)
    weights = rng.uniform(-0.5, 0.5, (2, 2, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="before", pads=[1] * 4),
        node,
        helper.make_node("Conv", ["b", "w"], ["y"], name="after", pads=[1] * 4),
    ]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(each, 1) for each in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_an_operator_of_the_runtime_alone_runs_whole_and_the_rest_is_split() -> None:
    model = between(helper.make_node("Inverse", ["a"], ["b"], "odd", domain=RUNTIME), RUNTIME)
    network = divide(load_graph(model))
    [only] = refusals(network)
    assert (only.layer, only.op) == ("odd", "com.microsoft.Inverse")
    report = check(model, network, (3, 1), fused(network))
    assert report.comparison.max_rel_error < 1e-4  # inverting magnifies the convolution's rounding
    assert 0.98 < report.partitioned_flop_share < 1.0


def test_an_operator_of_the_runtime_that_the_table_knows_is_split() -> None:
    node = helper.make_node("QuickGelu", ["a"], ["b"], "gate", domain=RUNTIME, alpha=1.5)
    model = between(node, RUNTIME)
    network = divide(load_graph(model))
    assert refusals(network) == ()
    assert check(model, network, (2, 2), fused(network)).ok


def test_programs_name_only_the_domains_that_they_use() -> None:
    model = between(helper.make_node("Relu", ["a"], ["b"]), RUNTIME, "of.somebody")
    network = divide(load_graph(model))
    boxes = tile_boxes(network, 0, 1, whole_map(network, 0, 1))
    program = cut(network.graph, network.nodes(0, 1), boxes, BlobSource()).program
    written = onnx.ModelProto.FromString(program.graph)
    assert [entry.domain for entry in written.opset_import] == [""]


@pytest.mark.parametrize(
    "chain",
    [
        # ONNX takes what is made of an unknown tensor for a number, or refuses it.
        [(RUNTIME, "Gelu", {}), ("", "HardSwish", {}), ("", "ReduceMax", {"axes": [3]})],
        [(RUNTIME, "Gelu", {}), ("", "MeanVarianceNormalization", {"axes": [2, 3]})],
        # onnxruntime says of a function's result that it is a number.
        [("", "MeanVarianceNormalization", {"axes": [0, 2, 3]}), (RUNTIME, "FastGelu", {})],
    ],
)
def test_shapes_behind_what_onnx_does_not_know(chain: list[tuple[str, str, dict]]) -> None:
    model = between(helper.make_node("Relu", ["a"], ["b"]), RUNTIME)
    nodes, name = [], "a"
    for k, (domain, op, attributes) in enumerate(chain):
        made = "b" if k + 1 == len(chain) else f"b{k}"
        nodes.append(helper.make_node(op, [name], [made], op, domain=domain, **attributes))
        name = made
    first, _, last = model.graph.node
    del model.graph.node[:]
    model.graph.node.extend([first, *nodes, last])
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = load_graph(model)
    assert len(graph.shape("b")) == 4
    network = divide(graph)
    assert check(model, network, (2, 2), fused(network)).ok


def test_operator_that_onnxruntime_cannot_load_is_an_error() -> None:
    model = between(helper.make_node("Nothing", ["a"], ["b"], domain="of.somebody"), "of.somebody")
    with pytest.raises(BadRequest, match=r"onnxruntime cannot run the model.*Nothing"):
        load_graph(model)


def function(name: str, called: list[str]) -> onnx.FunctionProto:
    """One that doubles what the functions `called` make, one after the other."""
    names = ["X", *(f"t{k}" for k in range(len(called)))]
    nodes = [
        helper.make_node(each, [names[k]], [names[k + 1]], domain=OWN)
        for k, each in enumerate(called)
    ]
    nodes.append(helper.make_node("Add", [names[-1], names[-1]], ["Y"]))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    return helper.make_function(OWN, name, ["X"], ["Y"], nodes, opsets)


def test_functions_are_written_out() -> None:
    model = between(helper.make_node("outer", ["a"], ["b"], domain=OWN), OWN)
    model.functions.extend([function("outer", ["inner", "inner"]), function("inner", [])])
    network = divide(load_graph(without_functions(model, MAX_NODES)))
    assert [node.op for node in network.graph.nodes] == ["Conv", "Add", "Add", "Add", "Conv"]
    assert check(model, network, (2, 2), fused(network)).ok


def test_a_function_that_calls_itself_is_an_error() -> None:
    model = between(helper.make_node("outer", ["a"], ["b"], domain=OWN), OWN)
    model.functions.extend([function("outer", ["inner"]), function("inner", ["outer"])])
    with pytest.raises(BadRequest, match="calls itself"):
        without_functions(model, MAX_NODES)


def test_functions_that_would_become_a_billion_nodes_are_an_error() -> None:
    model = between(helper.make_node("f9", ["a"], ["b"], domain=OWN), OWN)
    model.functions.append(function("f0", []))
    model.functions.extend(function(f"f{k}", [f"f{k - 1}"] * 10) for k in range(1, 10))
    with pytest.raises(BadRequest, match=r"1111111113 nodes.*inlined"):
        without_functions(model, MAX_NODES)
