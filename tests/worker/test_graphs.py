import onnx
import pytest
from onnx import TensorProto, helper

from models.cut.program import Program, WeightRef
from models.graph.graph import OPSETS
from models.tensors.memory import KEPT_FROM_BYTES
from protos.errors import BadRequest
from tests.worker.support import conv_model, conv_program, message_of
from worker.programs.graphs import checked_model, matrices, program_of


def test_a_program_is_what_its_message_says():
    program, _ = conv_program()
    assert program_of(message_of(program)) == program
    assert checked_model(program).graph.node[0].op_type == "Conv"


def test_a_program_that_is_not_its_hash_is_refused():
    program, _ = conv_program()
    message = message_of(program)
    message.weights[0].sha256 = "0" * 64
    with pytest.raises(BadRequest, match="does not match its hash"):
        program_of(message)


def refused(model, weights=()):
    data = model if isinstance(model, bytes) else model.SerializeToString()
    with pytest.raises(BadRequest) as caught:
        checked_model(Program(data, weights))
    return str(caught.value)


def external(tensor):
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return tensor


def test_bytes_that_are_no_onnx_model_are_refused():
    assert "not an ONNX model" in refused(b"\x89PNG\r\n")


@pytest.mark.parametrize("opset", [OPSETS.start - 1, OPSETS.stop])
def test_an_unsupported_opset(opset):
    assert f"opset {opset}" in refused(conv_model(opset=opset)[0])


def test_model_without_an_opset_is_refused():
    model, _ = conv_model()
    del model.opset_import[:]
    assert "which opset" in refused(model)


def test_custom_operators_and_functions():
    model, _ = conv_model()
    model.opset_import.add(domain="my.library", version=1)
    assert "my.library" in refused(model)
    model, _ = conv_model()
    model.functions.add(name="f", domain="ai.onnx.ml")
    assert "functions" in refused(model)


def test_an_external_initialiser():
    model, _ = conv_model()
    external(model.graph.initializer[0])
    text = refused(model)
    assert "external file for 'w'" in text
    assert "/etc" not in text


def test_external_data_hidden_in_attributes_and_subgraphs():
    hidden = external(onnx.TensorProto(name="k", data_type=1, dims=[1]))
    constant = helper.make_node("Constant", [], ["k"], value=hidden)
    model, _ = conv_model(extra=[constant])
    assert "'k'" in refused(model)
    branch = helper.make_graph([], "branch", [], [], initializer=[hidden])
    node = helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch)
    model, _ = conv_model(extra=[node])
    assert "'k'" in refused(model)


@pytest.mark.parametrize("key", ["location", "offset"])
def test_external_entries_without_the_flag(key):
    model, _ = conv_model()
    model.graph.initializer[0].external_data.add(key=key, value="0")
    assert "external" in refused(model)


def test_weights_that_clash_or_make_no_sense():
    model, _ = conv_model(("w",))
    ref = WeightRef("w", "0" * 64, 1, (16, 16, 3, 3))
    assert "'b' twice" in refused(model, (ref, WeightRef("b", "0" * 64, 1, (16,))))
    assert "'w' twice" in refused(model, (ref, ref))
    assert "data type 8" in refused(model, (WeightRef("w", "0" * 64, 8, (1,)),))
    assert "shape (-1,)" in refused(model, (WeightRef("w", "0" * 64, 1, (-1,)),))


def product(*nodes, outputs=("y",)):
    """A graph of these nodes, and its weights: `large` and `small`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([helper.make_node(*each) for each in nodes], "g", [x], made)
    columns = KEPT_FROM_BYTES // 4 // 8
    refs = [
        WeightRef("large", "0" * 64, TensorProto.FLOAT, (8, columns)),
        WeightRef("small", "0" * 64, TensorProto.FLOAT, (8, columns - 1)),
    ]
    return helper.make_model(graph), refs


def test_only_large_matrices_that_products_alone_read_stay_as_they_are():
    matmul, gemm = ("MatMul", ["x", "large"], ["y"]), ("Gemm", ["x", "large"], ["y"])
    assert matrices(*product(matmul)) == {"large"}
    assert matrices(*product(gemm)) == {"large"}
    assert not matrices(*product(("MatMul", ["x", "small"], ["y"])))
    assert not matrices(*product(("MatMul", ["large", "x"], ["y"])))
    assert not matrices(*product(("Add", ["x", "large"], ["y"])))
    assert not matrices(*product(matmul, ("Relu", ["large"], ["z"])))
    assert not matrices(*product(matmul, outputs=("y", "large")))


def test_a_matrix_that_a_nested_graph_reads_does_not_stay():
    model, refs = product(("MatMul", ["x", "large"], ["y"]))
    inner = helper.make_graph([helper.make_node("Relu", ["large"], ["i"])], "inner", [], [])
    node = helper.make_node("If", ["x"], ["o"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph([node], "outer", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=outer))
    assert not matrices(model, refs)
