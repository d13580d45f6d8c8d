"""What cannot be planned runs whole, behind a backbone that is split."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from models.check.check import CheckReport, check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from protos.errors import BadRequest
from tests.models.tails import NETWORKS, backbone, suppression

REASONS = {
    "suppression": "from this NonMaxSuppression on shapes depend on values",
    "above": "from this NonZero on shapes depend on values",
    "chosen": "graphs inside this If read tensors from outside of it",
    "repeated": "from this Loop on shapes depend on values",
}


def checked(model: onnx.ModelProto) -> CheckReport:
    network = divide(load_graph(model))
    return check(model, network, (3, 1), fused(network))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_backbone_is_split_and_the_answer_the_same(name: str) -> None:
    report = checked(NETWORKS[name]())
    assert report.ok, report
    assert report.partitioned_flop_share > 0.95
    [reason] = [each.reason for each in report.refusals if each.op == "imbrex.Tail"]
    assert reason.startswith(REASONS[name]), reason


@pytest.mark.parametrize("name", NETWORKS)
def test_a_damaged_tile_is_found(name: str) -> None:
    model = NETWORKS[name]()
    network = divide(load_graph(model))

    def damaged(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {key: array[..., ::-1].copy() for key, array in feeds.items()}

    assert not check(model, network, (3, 1), fused(network), fault=damaged).ok


def test_a_name_that_is_read_inside_is_kept() -> None:
    """The branch reads an Identity, which is folded away elsewhere."""
    net, x = backbone()
    same = net.add("Identity", x)
    mean = net.add("ReduceMean", x, keepdims=0, axes=[0, 1, 2, 3])
    yes = net.add("Greater", mean, net.constant(np.array(0.1, np.float32)))
    output = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    branch = helper.make_graph([helper.make_node("Abs", [same], ["y"])], "b", [], output)
    assert checked(net.model(net.add("If", yes, then_branch=branch, else_branch=branch))).ok


def test_an_output_that_is_no_tensor_of_numbers_is_refused() -> None:
    net, x = backbone()
    parts = net.add("SplitToSequence", x, axis=1)
    model = net.model()
    model.graph.output.append(
        helper.make_tensor_sequence_value_info(parts, onnx.TensorProto.FLOAT, None)
    )
    with pytest.raises(BadRequest, match=r"not a valid ONNX graph|not a tensor of numbers"):
        load_graph(model)


def test_inputs_of_a_tail_are_not_parted() -> None:
    """The Concat of scales before a suppression stays a node: the tail reads it whole."""
    graph = load_graph(suppression())
    assert not graph.joined
    assert [name for name in graph.outputs if graph.tensors[name].is_dynamic]


def test_parts_without_elements_are_no_part_of_a_concat() -> None:
    """Ultralytics' suppression takes columns 84 to the end, of which there are none."""
    net, x = backbone()
    flat = net.reshape(net.conv(x, 16, 6), 1, 6, -1)
    parts = [
        net.add("Slice", flat, net.ints(a), net.ints(b), net.ints(1)) for a, b in ((0, 6), (6, 9))
    ]
    model = net.model(net.add("Sigmoid", net.add("Concat", *parts, axis=1)))
    report = checked(model)
    assert report.ok, report
    assert not report.refusals


def test_small_steps_before_the_tail_are_part_of_it() -> None:
    """SSD selects among the scores of each class: no device waits for each of these."""
    net, x = backbone()
    scores = net.reshape(net.conv(x, 16, 20), 1, 20, -1)
    kept = []
    for number in range(20):
        one = net.add("Slice", scores, net.ints(number), net.ints(number + 1), net.ints(1))
        kept.append(net.add("NonZero", net.add("Relu", one)))
    graph = load_graph(net.model(integers=kept))
    assert [node.op for node in graph.nodes].count("Slice") == 0
    assert checked(net.model(integers=kept)).ok


def values(op: str, *, above: bool = True, shape: list[int] | None = None) -> onnx.ModelProto:
    """Places of values, or a map in a shape that is computed; declared with a fixed shape."""
    net, x = backbone()
    if op == "NonZero":
        made = net.add("NonZero", net.add("Relu", x))
        model = net.model(integers=[made])
    else:
        zero = net.add("Sub", *[net.add("ReduceMax", x, axes=[0, 1, 2, 3], keepdims=0)] * 2)
        sizes = net.add("Add", net.ints(1 if above else 2, -1), net.add("Cast", zero, to=7))
        made = net.add("Reshape", x, sizes)
        model = net.model(made)
    for size in shape or ():
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = size
    return model


@pytest.mark.parametrize(
    ("model", "dynamic"),
    [
        (values("NonZero", shape=[4, 10]), True),
        (values("Reshape", shape=[1, 4096]), False),
        (values("Reshape", above=False, shape=[1, 4096]), True),
    ],
)
def test_a_shape_that_a_file_declares_is_seen_in_a_run(
    model: onnx.ModelProto, dynamic: bool
) -> None:
    graph = load_graph(model)
    assert graph.tensors[graph.outputs[0]].is_dynamic == dynamic
    report = checked(model)
    assert report.ok, report


def test_shapes_that_branches_declare_are_not_believed() -> None:
    net, x = backbone()
    sizes = {"then_branch": 3, "else_branch": 5}
    branches = {
        key: helper.make_graph(
            [
                helper.make_node("ConstantOfShape", [f"{key}_size"], [f"{key}_zeros"]),
            ],
            key,
            [],
            [helper.make_tensor_value_info(f"{key}_zeros", onnx.TensorProto.FLOAT, [4])],
            [onnx.numpy_helper.from_array(np.array([size]), f"{key}_size")],
        )
        for key, size in sizes.items()
    }
    mean = net.add("ReduceMean", x, keepdims=0, axes=[0, 1, 2, 3])
    yes = net.add("Greater", mean, net.constant(np.array(0.1, np.float32)))
    model = net.model(net.add("If", yes, **branches))
    assert load_graph(model).tensors[model.graph.output[0].name].is_dynamic
    assert checked(model).ok
