"""Malformed models give one clear error each; damaged files end nothing but the reading."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from models.catalogue import catalogue
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.onnx_file.model_file import MAX_NODES
from models.run.reference import WholeModel
from protos.errors import BadRequest
from tests.models import fuzz_models
from tests.models.model_files import saved, tiny

ROOT = Path(__file__).parent.parent.parent
GIGABYTE = 1 << 30


def read(path: Path) -> None:
    loaded = catalogue.load(path)
    divide(load_graph(loaded.proto, loaded.name))
    WholeModel(loaded.proto, threads=1)


def cyclic(model: ModelProto) -> None:
    model.graph.node[0].input[0] = "conv1_relu"


def missing_initialiser(model: ModelProto) -> None:
    del model.graph.initializer[0]


def missing_output(model: ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def unread_input(model: ModelProto) -> None:
    model.graph.node[0].input[0] = "fixed"
    array = np.zeros((1, 3, 32, 32), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(array, "fixed"))


def made_twice(model: ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def absurd_input(model: ModelProto) -> None:
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = 10**6


def absurd_weight(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 2**60


def negative_weight(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def short_weight(model: ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.raw_data = weight.raw_data[:-1]


def absurd_fill(model: ModelProto) -> None:
    sizes = numpy_helper.from_array(np.array([1, 10**6, 10**6], np.int64), "sizes")
    model.graph.initializer.append(sizes)
    model.graph.node.append(helper.make_node("ConstantOfShape", ["sizes"], ["filled"], name="f"))
    model.graph.node.append(helper.make_node("Neg", ["filled"], ["negative"], name="n"))
    model.graph.output[0].name = "negative"


def wide_kernel(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 1
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "pads":
            attribute.ints[:] = [0, 0, 0, 0]


def text_input(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def whole_numbers(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32


def rankless_input(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.ClearField("shape")


def no_groups(model: ModelProto) -> None:
    _set(model, "group", 0)


def no_stride(model: ModelProto) -> None:
    _set(model, "strides", [0, 0])


def one_pad(model: ModelProto) -> None:
    _set(model, "pads", [1])


def text_stride(model: ModelProto) -> None:
    _set(model, "strides", "two")


def no_weights(model: ModelProto) -> None:
    del model.graph.node[0].input[1:]


def unknown_operator(model: ModelProto) -> None:
    model.graph.node[1].op_type = "Rleu"


def captured(model: ModelProto) -> None:
    value = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    branch = helper.make_graph([helper.make_node("Abs", ["nowhere"], ["inner"])], "b", [], value)
    node = helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))


def both_public(model: ModelProto) -> None:
    model.graph.node.append(helper.make_node("Abs", ["conv1"], ["image__rows0"]))
    model.graph.output.append(
        helper.make_tensor_value_info("image__rows0", TensorProto.FLOAT, None)
    )


def text_output(model: ModelProto) -> None:
    cast = helper.make_node("Cast", ["conv1"], ["words"], to=TensorProto.STRING)
    model.graph.node.append(cast)
    model.graph.output.append(helper.make_tensor_value_info("words", TensorProto.STRING, None))


def sparse(model: ModelProto) -> None:
    model.graph.sparse_initializer.add()


def _set(model: ModelProto, name: str, value: object) -> None:
    attributes = model.graph.node[0].attribute
    kept = [each for each in attributes if each.name != name]
    del attributes[:]
    attributes.extend([*kept, helper.make_attribute(name, value)])


def from_the_future(model: ModelProto) -> None:
    model.ir_version = 99
    unknown_operator(model)


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (cyclic, r"the graph is cyclic: node 'conv1' \(Conv\)"),
        (missing_initialiser, r"'conv1' \(Conv\) reads 'conv1\.weight', which is not an input"),
        (missing_output, "nothing in the model makes its output 'nowhere'"),
        (unread_input, "no output depends on an input"),
        (made_twice, "'conv1' is made twice"),
        (absurd_input, r"'image' would take 1\.2e\+04 GB"),
        (absurd_weight, r"'conv1\.weight' is damaged"),
        (negative_weight, r"'conv1\.weight' is damaged"),
        (short_weight, r"'conv1\.weight' is damaged"),
        (absurd_fill, "would take 4e.03 GB"),
        (wide_kernel, "has a negative size|not a valid ONNX graph"),
        (text_input, "'image' is of ONNX type 8"),
        (whole_numbers, "not a valid ONNX graph|onnxruntime cannot run"),
        (rankless_input, "'image' is not a tensor of known rank"),
        (no_groups, "'conv1' .*declaration"),
        (no_stride, "not a valid ONNX graph|'conv1' .*declaration"),
        (one_pad, "not a valid ONNX graph|'conv1' .*declaration"),
        (text_stride, "'conv1' .*attribute 'strides' is of another type"),
        (no_weights, "'conv1' .*it has 1 inputs"),
        (unknown_operator, "onnxruntime cannot run the model .*Rleu"),
        (from_the_future, "onnxruntime cannot run the model .*max supported IR version"),
        (captured, "'chosen' .*reads 'nowhere', which is not an input"),
        (sparse, "sparse initialisers"),
        (both_public, "'image__rows0' has a name that imbrex gives to a step of 'image'"),
        (text_output, "'words' is no tensor of numbers, but text"),
    ],
)
def test_fault_of_a_malformed_model_is_said(
    tmp_path: Path, damage: Callable[[ModelProto], None], cause: str
) -> None:
    model = tiny()
    damage(model)
    with pytest.raises(BadRequest, match=cause) as caught:
        read(saved(tmp_path, model))
    assert caught.value.cure


def test_nodes_may_come_in_any_order(tmp_path: Path) -> None:
    model = tiny()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    loaded = catalogue.load(saved(tmp_path, model))
    assert [node.name for node in load_graph(loaded.proto).nodes] == ["conv1", "conv1_relu"]


def test_a_million_nodes_are_refused(tmp_path: Path) -> None:
    graph = GraphProto(node=[helper.make_node("Abs", ["conv1"], ["x"])] * 1000)
    more = ModelProto(graph=graph).SerializeToString()
    path = tmp_path / "tiny.onnx"
    # Protobuf joins the graphs of messages that follow each other.
    path.write_bytes(tiny().SerializeToString() + 20 * more)
    with pytest.raises(BadRequest, match=rf"20002 nodes.*most {MAX_NODES} nodes"):
        read(path)
    path.write_bytes(tiny().SerializeToString() + 1000 * more)
    with pytest.raises(BadRequest, match="more than 1000000 fields"):
        read(path)


def test_a_long_chain_is_read(tmp_path: Path) -> None:
    model = tiny()
    last = "conv1"
    for index in range(2000):
        model.graph.node.append(helper.make_node("Neg", [last], [f"t{index}"]))
        last = f"t{index}"
    model.graph.output[0].name = last
    network = divide(load_graph(catalogue.load(saved(tmp_path, model)).proto))
    assert sum(len(unit.nodes) for unit in network.units) == 2001


def fuzz(folder: Path, seed: int, count: int, timeout_s: float) -> dict[str, int]:
    """Outcomes of reading damaged models in a process with two gigabytes."""
    limited = ("prlimit", f"--data={2 * GIGABYTE}", sys.executable)
    done = subprocess.run(
        [*limited, "-m", "tests.models.fuzz_models", folder, str(seed), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    outcomes = fuzz(tmp_path, seed=0, count=200, timeout_s=240)
    assert set(outcomes) == {"read", "bad_request"}
    assert min(outcomes.values()) >= 5


def test_an_attribute_that_its_operator_does_not_have_is_refused(tmp_path: Path) -> None:
    model = fuzz_models.seed_model()
    (add,) = (node for node in model.graph.node if node.name == "sum")
    add.attribute.append(helper.make_attribute("group", b"SAME_UPPER"))
    assert fuzz_models.read(saved(tmp_path, model)) == "bad_request"


@pytest.mark.slow
def test_many_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    assert sum(fuzz(tmp_path, seed=10_000, count=20_000, timeout_s=1800).values()) == 20_000
