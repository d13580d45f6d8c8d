"""A vision transformer: loaded, reported as opaque with the reasons, and run whole."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.check import check, fused, refusals
from models.importer import load_graph
from models.units import divide

WIDTH, HEADS, TOKENS = 16, 2, 16


def vit() -> onnx.ModelProto:
    """Patches by a convolution, one encoder block, the mean of the tokens, a classifier."""
    rng = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array, f"c{len(weights)}"))
        return weights[-1].name

    def floats(*shape: int) -> str:
        return constant(rng.standard_normal(shape, dtype=np.float32) * 0.2)

    def ints(*values: int) -> str:
        return constant(np.array(values, dtype=np.int64))

    def add(op: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def heads(source: str, order: list[int]) -> str:
        split = add("Reshape", source, ints(1, TOKENS, HEADS, WIDTH // HEADS))
        return add("Transpose", split, perm=order)

    patches = add("Conv", "x", floats(WIDTH, 3, 8, 8), strides=[8, 8])
    flat = add("Reshape", patches, ints(1, WIDTH, TOKENS))
    tokens = add("Transpose", flat, perm=[0, 2, 1])
    normal = add("LayerNormalization", tokens, floats(WIDTH), floats(WIDTH), axis=-1)
    q, k, v = (add("MatMul", normal, floats(WIDTH, WIDTH)) for _ in range(3))
    scores = add("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
    mixed = add("MatMul", add("Softmax", scores, axis=-1), heads(v, [0, 2, 1, 3]))
    joined = add("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = add("Reshape", joined, ints(1, TOKENS, WIDTH))
    attended = add("Add", tokens, add("MatMul", joined, floats(WIDTH, WIDTH)))
    hidden = add("MatMul", attended, floats(WIDTH, 2 * WIDTH))
    hidden = add("MatMul", add("Gelu", hidden), floats(2 * WIDTH, WIDTH))
    pooled = add("ReduceMean", add("Add", attended, hidden), ints(1), keepdims=0)
    add("Gemm", pooled, floats(WIDTH, 5), floats(5))
    graph = helper.make_graph(
        nodes,
        "vit",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [1, 5])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_a_transformer_is_reported_and_runs() -> None:
    model = vit()
    network = divide(load_graph(model))
    found = {each.op: each.reason for each in refusals(network)}
    assert found["MatMul"] == "MatMul needs all of its input, so it runs whole on one device"
    assert {"LayerNormalization", "Reshape", "Transpose"} <= set(found)
    report = check(model, network, (2, 2), fused(network))
    assert report.ok
    assert 0.5 < report.partitioned_flop_share < 0.6  # its one convolution


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
