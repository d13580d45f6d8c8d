"""Files as seldom tools write them: names, outputs and endings that onnxruntime takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.catalogue import catalogue
from models.catalogue.guess import guess, metadata
from models.check.check import check, fused, require_programs
from models.cut.units import divide
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, random_inputs
from protos.errors import BadRequest

NUMBERS = np.random.default_rng(7)


def value(name: str, shape: list[int] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(NUMBERS.standard_normal(shape, dtype=np.float32), name)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
    **domains: int,
) -> ModelProto:
    graph = helper.make_graph(nodes, "seldom", inputs, outputs, constants)
    imports = [helper.make_opsetid("", 13)]
    imports += [helper.make_opsetid("ai.onnx.ml", version) for version in domains.values()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def same(model: ModelProto) -> Graph:
    """The graph of a model whose tiles give the whole model's answer."""
    graph = load_graph(model)
    network = divide(graph)
    require_programs(network)
    assert check(model, network, (2, 2), fused(network)).ok
    return graph


def named_as_an_output() -> ModelProto:
    """As tf2onnx writes MediaPipe's networks: a node has the name of what the next one makes."""
    conv = helper.make_node("Conv", ["t", "w"], ["c"], "head", pads=[1, 1, 1, 1])
    return model_of(
        [
            helper.make_node("Transpose", ["x"], ["t"], "first", perm=[0, 3, 1, 2]),
            conv,
            helper.make_node("Reshape", ["c", "shape"], ["head"], "last"),
        ],
        [value("x", [1, 16, 16, 3])],
        [value("head", [1, 16, 16, 1])],
        [weights("w", 1, 3, 3, 3), numpy_helper.from_array(np.array([1, 16, 16, 1]), "shape")],
    )


def test_nodes_may_be_called_as_outputs_of_others() -> None:
    same(named_as_an_output())


def test_nodes_may_all_have_one_name() -> None:
    model = named_as_an_output()
    for node in model.graph.node:
        node.name = "head"
    with pytest.raises(BadRequest):  # onnxruntime itself does not take it
        WholeModel(model)
    require_programs(divide(load_graph(model)))


def test_tensors_may_be_called_as_steps_of_imbrex() -> None:
    """`y__rows0` is what a step of `y` would be called."""
    model = model_of(
        [
            helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["y"], ["y__rows0"]),
            helper.make_node("Neg", ["y__rows0"], ["y__plain"]),
            helper.make_node("Add", ["y__plain", "w__part"], ["z"]),
        ],
        [value("x", [1, 3, 16, 16])],
        [value("z", [1, 4, 16, 16])],
        [weights("w", 4, 3, 3, 3), weights("w__part", 1, 4, 1, 1)],
    )
    graph = same(model)
    assert not {"y__rows0", "y__plain", "w__part"} & graph.tensors.keys()
    # What is an output keeps its name, and its base is renamed.
    model.graph.output.append(value("y__rows0", [1, 4, 16, 16]))
    assert same(model).outputs == ("z", "y__rows0")


def test_a_file_names_no_opset_that_it_does_not_use(tmp_path: Path) -> None:
    """As tools write decision trees and what surrounds them."""
    path = tmp_path / "learnt.onnx"
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    model = model_of([node], [value("x", [1, 3, 4, 4])], [value("y", [1, 3, 4, 4])], [], ml=1)
    del model.opset_import[0]
    onnx.save(model, path)
    same(catalogue.load(path).proto)
    node.domain, node.op_type = "", "Relu"
    del node.attribute[:]
    model.graph.node[0].CopyFrom(node)
    onnx.save(model, path)
    with pytest.raises(BadRequest, match="names no ONNX opset"):
        load_graph(catalogue.load(path).proto)


def test_an_output_may_be_constant() -> None:
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        [value("x", [1, 3, 16, 16])],
        [value("y", [1, 4, 16, 16]), value("anchors", [10, 4])],
        [weights("w", 4, 3, 3, 3), weights("anchors", 10, 4)],
    )
    assert same(model).shape("anchors") == (10, 4)


def in_words(*, best_only: bool = False) -> ModelProto:
    """A classifier as Custom Vision exports it: the best class's name, and a map of all."""
    classes = ["bicycle", "cat", "dog"]
    ends = [value("label", [1], TensorProto.STRING)]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Softmax", ["f"], ["probs"], axis=1),
        helper.make_node("ArgMax", ["probs"], ["best"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder",
            ["best"],
            ["label"],
            domain="ai.onnx.ml",
            keys_int64s=[0, 1, 2],
            values_strings=classes,
        ),
    ]
    if not best_only:
        nodes.append(
            helper.make_node(
                "ZipMap", ["probs"], ["loss"], domain="ai.onnx.ml", classlabels_strings=classes
            )
        )
        scores = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        of_names = helper.make_map_type_proto(TensorProto.STRING, scores)
        ends.append(helper.make_value_info("loss", helper.make_sequence_type_proto(of_names)))
    inputs = [value("x", [1, 3, 16, 16])]
    return model_of(nodes, inputs, ends, [weights("w", 3, 3, 3, 3)], ml=2)


def test_a_classifier_that_answers_in_words_gives_scores_and_labels(tmp_path: Path) -> None:
    onnx.save(model := in_words(), tmp_path / "words.onnx")
    loaded = catalogue.load(tmp_path / "words.onnx")
    graph = same(loaded.proto)
    assert {name: graph.shape(name) for name in graph.outputs} == {"loss": (1, 3)}
    feeds = random_inputs(graph)
    scores = WholeModel(loaded.proto).run(feeds)["loss"]
    (whole,) = WholeModel(model).run(feeds)["loss"]
    assert scores[0] == pytest.approx([whole[name] for name in ("bicycle", "cat", "dog")])
    found = guess(graph, metadata(loaded.proto), None, 0)
    assert (found.task, found.labels) == ("classification", ("bicycle", "cat", "dog"))


def test_an_answer_of_words_alone_is_refused(tmp_path: Path) -> None:
    onnx.save(in_words(best_only=True), tmp_path / "words.onnx")
    with pytest.raises(BadRequest, match="'label' is no tensor of numbers, but text") as caught:
        catalogue.load(tmp_path / "words.onnx")
    assert "scores" in caught.value.cure


@pytest.mark.parametrize("names", [("h", "w"), ("height", "width")])
def test_a_picture_without_a_batch_has_an_open_height(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    model = model_of(
        [
            helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Transpose", ["f"], ["t"], perm=[2, 0, 1]),
            helper.make_node("Unsqueeze", ["t", "axes"], ["u"]),
            helper.make_node("Conv", ["u", "w"], ["y"], pads=[1, 1, 1, 1]),
        ],
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [*names, 3])],
        [value("y", None)],
        [weights("w", 4, 3, 3, 3), numpy_helper.from_array(np.array([0]), "axes")],
    )
    onnx.save(model, tmp_path / "open.onnx")
    loaded = catalogue.load(f"{tmp_path / 'open.onnx'}@20x12")
    assert same(loaded.proto).shape("x") == (20, 12, 3)
    # A batch of points is none.
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch_size"
    onnx.save(model, tmp_path / "open.onnx")
    with pytest.raises(BadRequest, match="no fixed size along dimension 1"):
        load_graph(catalogue.load(tmp_path / "open.onnx").proto)
