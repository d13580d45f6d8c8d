"""Einsum and Attention become products of matrices, which are divided by rows and stay exact."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from models.check.check import check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.operators import TABLE
from models.run.reference import random_inputs
from tests.models.faults import left_out

F32 = TensorProto.FLOAT


def model(nodes, inputs, outputs, constants=(), opset=23) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info(name, F32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, F32, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def operators(graph) -> set[str]:
    return {node.op for node in graph.nodes}


EINSUMS = {
    "bqd,bkd->bqk": ((1, 9, 4), (1, 7, 4)),
    "bhqd,bhkd->bhqk": ((1, 2, 9, 4), (1, 2, 7, 4)),
    "bqhd,bkhd->bhqk": ((1, 9, 2, 4), (1, 7, 2, 4)),
    "bhwc,hkc->bhwk": ((1, 6, 5, 4), (6, 3, 4)),
    "bchw,cd->bdhw": ((1, 4, 6, 5), (4, 3)),
    "ij,jk->ki": ((6, 4), (4, 5)),
    "abc,cbd->ad": ((6, 2, 4), (4, 2, 3)),
    "bhw,bhw->bh": ((1, 4, 5), (1, 4, 5)),
    "kj,ji": ((6, 4), (4, 5)),  # to ik: the order of the alphabet
}
KEPT = {
    "abc,cd->d": ((2, 3, 4), (4, 5)),
    "...c,cd->...d": ((1, 6, 4), (4, 5)),
    "ii,ij->ij": ((4, 4), (4, 5)),
    "ab,cd->abcd": ((2, 3), (4, 5)),
    "i,i": ((5,), (5,)),
}


def einsum(equation, shapes) -> onnx.ModelProto:
    a, b = (np.random.default_rng(k).standard_normal(s, np.float32) for k, s in enumerate(shapes))
    made = np.einsum(equation, a, b)
    nodes = [
        helper.make_node("Relu", ["a"], ["positive"]),
        helper.make_node("Einsum", ["positive", "b"], ["product"], equation=equation),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    return model(nodes, {"a": shapes[0], "b": shapes[1]}, {"y": made.shape}, opset=17)


@pytest.mark.parametrize(("equation", "shapes"), [*EINSUMS.items(), *KEPT.items()])
def test_an_einsum_is_the_product_that_it_names(equation, shapes) -> None:
    proto = einsum(equation, shapes)
    network = divide(load_graph(proto))
    assert ("Einsum" in operators(network.graph)) is (equation in KEPT)
    assert check(proto, network, (2, 2), fused(network)).ok
    if equation == "bqhd,bkhd->bhqk":
        assert all(unit.splits for unit in network.units)


def attending(shapes, mask=None, opset=23, **attributes) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["q"], ["positive"]),
        helper.make_node(
            "Attention", ["positive", "k", "v", *(["mask"] if mask is not None else [])], ["found"]
        ),
        helper.make_node("Relu", ["found"], ["y"]),
    ]
    nodes[1].attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    q, _, v = shapes
    made = (*q[:-1], v[-1])
    constants = {} if mask is None else {"mask": mask}
    return model(nodes, dict(zip("qkv", shapes, strict=True)), {"y": made}, constants, opset)


FOUR = ((1, 2, 9, 4), (1, 2, 7, 4), (1, 2, 7, 6))
THREE = ((1, 9, 8), (1, 7, 8), (1, 7, 12))
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
MASK = np.random.default_rng(3).standard_normal((9, 7)).astype(np.float32)
SEEN = np.random.default_rng(4).random((2, 9, 7)) < 0.8
SEEN[..., 0] = True


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    ("shapes", "mask", "attributes"),
    [
        (FOUR, None, {}),
        (FOUR, MASK, {"scale": 0.3}),
        (FOUR, SEEN, {}),
        (FOUR, None, {"is_causal": 1}),
        (THREE, None, HEADS),
        (THREE, MASK, HEADS | {"is_causal": 1}),
    ],
)
def test_an_attention_is_divided_by_its_queries(shapes, mask, attributes, opset) -> None:
    proto = attending(shapes, mask, opset, **attributes)
    network = divide(load_graph(proto))
    assert "Attention" not in operators(network.graph)
    feeds = random_inputs(network.graph)
    assert check(proto, network, (3, 1), fused(network), feeds=feeds).ok
    (answer,) = ort.InferenceSession(proto.SerializeToString()).run(None, dict(feeds))
    (defined,) = ReferenceEvaluator(proto).run(None, dict(feeds))
    np.testing.assert_allclose(answer, defined, atol=1e-5)
    assert any(unit.splits for unit in network.units)


def test_keys_that_are_not_padding_are_left_to_the_operator() -> None:
    proto = attending(FOUR, opset=24)
    proto.graph.node[1].input.extend(["", "", "", "lengths"])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([5]), "lengths"))
    network = divide(load_graph(proto))
    assert "Attention" in operators(network.graph)
    assert check(proto, network, (3, 1), fused(network)).ok


@pytest.mark.parametrize("op", ["Attention", "Softmax"])
def test_settings_of_a_newer_definition_are_left_to_the_operator(op) -> None:
    """As the window of opset 25's attention: what it changes is not known here."""
    proto = attending(FOUR, opset=24)
    node = proto.graph.node[1]
    if op == "Softmax":
        node = proto.graph.node[2]
        node.op_type = op
    node.attribute.append(helper.make_attribute("window_of_tomorrow", 3))
    kept = [each for each in load_graph(proto).nodes if each.op == op]
    assert any("newer ONNX" in each.refusal for each in kept) or (kept and op not in TABLE)


# The fault of each rewrite: a step, or the place of an operand, that is left out.
STEPS = {
    "transposed": (lambda: einsum("bqd,bkd->bqk", ((1, 4, 4), (1, 4, 4))), "Einsum", "Transpose"),
    "scaled": (lambda: attending(FOUR, MASK, scale=0.3), "Attention", "Mul"),
    "masked": (lambda: attending(FOUR, MASK), "Attention", "Add"),
    "masked later ones": (lambda: attending(THREE, is_causal=1, **HEADS), "Attention", "Add"),
    "weighed": (lambda: attending(FOUR, SEEN), "Attention", "Softmax"),
    "opset 24": (lambda: attending(FOUR, opset=24), "Attention", "Softmax"),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_left_out_is_noticed(name, monkeypatch) -> None:
    made, op, step = STEPS[name]
    proto = made()
    left_out(op, step, monkeypatch)
    network = divide(load_graph(proto))
    assert not check(proto, network, (3, 1), fused(network)).ok


@pytest.mark.parametrize(
    "attributes",
    [{"softcap": 2.0}, {"softmax_precision": TensorProto.DOUBLE}],
)
def test_an_attention_of_another_kind_runs_whole(attributes) -> None:
    proto = attending(FOUR, **attributes)
    network = divide(load_graph(proto))
    assert "Attention" in operators(network.graph)
    assert check(proto, network, (3, 1), fused(network)).ok


def test_a_query_that_sees_no_key_is_left_to_the_operator() -> None:
    nothing = SEEN.copy()
    nothing[0, 3] = False
    proto = attending(FOUR, nothing)
    assert "Attention" in operators(divide(load_graph(proto)).graph)
