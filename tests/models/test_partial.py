import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.cut.partial import cut_partial, summed_input
from models.cut.program import BlobSource
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.run.reference import ProgramRunner, WholeModel, compare, random_inputs
from models.tensors.boxes import Box


def classifier(transposed: int):
    """x (1, 6, 4, 4) -> Flatten -> Gemm -> Relu -> Gemm."""
    rng = np.random.default_rng(3)
    shape = (5, 96) if transposed else (96, 5)
    weights = {
        "b1": rng.standard_normal(shape, dtype=np.float32),
        "c1": rng.standard_normal(5, dtype=np.float32),
        "b2": rng.standard_normal((5, 3), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "b1", "c1"], ["g"], name="fc1", transB=transposed),
        helper.make_node("Relu", ["g"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "b2"], ["y"], name="fc2"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sums(model, parts: list[Box]) -> np.ndarray:
    network = divide(load_graph(model))
    nodes = network.nodes(0, 1)
    blobs = BlobSource()
    runner = ProgramRunner(blobs)
    x = random_inputs(network.graph)["x"]
    total = np.zeros((1, 5), np.float32)
    for part in parts:
        tile = cut_partial(network.graph, nodes, part, blobs)
        piece = np.ascontiguousarray(x[tile.inputs["x"].slices()])
        total += runner.run(tile.program, {"x": piece}, ["g"])[0]
    return total


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize(
    "parts",
    [
        [Box.of((0, 1), (0, 6), (0, 1), (0, 4)), Box.of((0, 1), (0, 6), (1, 4), (0, 4))],
        [Box.of((0, 1), (0, 2), (0, 4), (0, 4)), Box.of((0, 1), (2, 6), (0, 4), (0, 4))],
        [Box.of((0, 1), (0, 6), (0, 4), (0, 3)), Box.of((0, 1), (0, 6), (0, 4), (3, 4))],
    ],
)
def test_partial_sums_add_up(transposed: int, parts: list[Box]) -> None:
    model = classifier(transposed)
    network = divide(load_graph(model))
    assert [unit.name for unit in network.units] == ["fc1", "fc2"]
    model.graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 5]))
    whole = WholeModel(model).run(random_inputs(network.graph))
    assert compare({"g": sums(model, parts)}, {"g": whole["g"]}).max_rel_error < 1e-5
    assert compare({"g": sums(model, parts[1:])}, {"g": whole["g"]}).max_rel_error > 1e-2


def test_input_of_a_layer_that_can_be_summed_is_named() -> None:
    network = divide(load_graph(classifier(0)))
    graph = network.graph
    assert summed_input(graph, network.nodes(0, 1)) == "x"
    assert summed_input(graph, network.nodes(1, 2)) == "g"
    assert summed_input(graph, network.nodes(0, 2)) is None
