"""Files as exporters write them: sizes computed in the graph, in chains, with empty tensors."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.check.check import check, fused
from models.cut.units import divide
from models.onnx_file import importer
from models.onnx_file.importer import load_graph
from models.rewrite import fold
from protos.errors import BadRequest

INT64 = TensorProto.INT64


def model(nodes: list, values: dict[str, np.ndarray], shape: tuple = (1, 3, 12, 10)) -> ModelProto:
    """A convolution `x -> conv`, then `nodes`, which make `y`."""
    values = {"w": np.random.default_rng(0).random((4, 3, 3, 3), np.float32) - 0.5, **values}
    conv = helper.make_node("Conv", ["x", "w"], ["conv"], name="conv", pads=[1] * 4)
    graph = helper.make_graph(
        [conv, *nodes],
        "exported",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def require_split(made: ModelProto) -> None:
    network = divide(load_graph(made))
    report = check(made, network, (3, 1), fused(network))
    assert report.ok, report


def sizes(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_an_empty_region_of_interest_may_be_a_nodes() -> None:
    """As PaddlePaddle's exporter writes Resize."""
    empty = helper.make_tensor("empty", TensorProto.FLOAT, [0], [])
    nodes = [
        helper.make_node("Constant", [], ["roi"], value=empty),
        helper.make_node("Resize", ["conv", "roi", "scales"], ["y"], mode="nearest"),
    ]
    require_split(model(nodes, {"scales": np.array([1, 1, 2, 2], np.float32)}))


def test_arithmetic_on_shapes_may_have_empty_tensors() -> None:
    """As TorchScript's exporter writes `expand`: what comes before the last dimensions, if any."""
    nodes = [
        helper.make_node("Shape", ["conv"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "zero"], ["before"]),
        helper.make_node("Slice", ["shape", "two", "four"], ["last"]),
        helper.make_node("Concat", ["before", "last"], ["target"], axis=0),
        helper.make_node("Resize", ["conv", "", "", "all"], ["grown"], mode="nearest"),
        helper.make_node("Concat", ["before", "front", "target"], ["form"], axis=0),
        helper.make_node("Reshape", ["grown", "same"], ["flat"]),
        helper.make_node("Expand", ["flat", "form"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["y"]),
    ]
    values = {"zero": sizes(0), "two": sizes(2), "four": sizes(4), "front": sizes(1, 4)}
    require_split(model(nodes, {**values, "all": sizes(1, 4, 12, 10), "same": sizes(1, 4, 12, 10)}))


def test_a_shape_may_be_of_some_dimensions() -> None:
    """As PyTorch's newer exporter writes the size to resize to."""
    nodes = [
        helper.make_node("Shape", ["conv"], ["rows"], start=2, end=3),
        helper.make_node("Shape", ["conv"], ["columns"], start=-1),
        helper.make_node("Shape", ["conv"], ["front"], end=2),
        helper.make_node("Concat", ["front", "rows", "columns"], ["target"], axis=0),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Resize", ["relu", "", "", "target"], ["y"], mode="nearest"),
    ]
    require_split(model(nodes, {}))


def shrinking(steps: int) -> ModelProto:
    """Each slice's end is computed from the shape of what was sliced before."""
    nodes, values = [], {"one": sizes(1), "zero": sizes(0), "axis": sizes(1)}
    last = "conv"
    for step in range(steps):
        nodes += [
            helper.make_node("Shape", [last], [f"shape{step}"]),
            helper.make_node("Gather", [f"shape{step}", "axis"], [f"size{step}"], axis=0),
            helper.make_node("Sub", [f"size{step}", "one"], [f"end{step}"]),
            helper.make_node("Slice", [last, "zero", f"end{step}", "axis"], [f"part{step}"]),
            helper.make_node("Relu", [f"part{step}"], [f"relu{step}"]),
        ]
        last = f"relu{step}"
    nodes[-1].output[0] = "y"
    values["w"] = np.random.default_rng(0).random((40, 3, 3, 3), np.float32) - 0.5
    return model(nodes, values)


def test_sizes_may_be_computed_in_long_chains() -> None:
    require_split(shrinking(30))


def test_a_chain_is_followed_in_a_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_graph = Mock(side_effect=importer.infer)
    monkeypatch.setattr(importer, "infer", whole_graph)
    load_graph(shrinking(30))
    assert whole_graph.call_count <= 4


@pytest.mark.parametrize(("dtype", "stays"), [(np.int8, False), (np.int32, True)])
def test_folded_constants_have_a_limit_in_bytes(dtype: type, stays: bool) -> None:
    filled = numpy_helper.from_array(np.array([2], dtype))
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["many"], value=filled),
        helper.make_node("ReduceMax", ["many"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["conv", "factor"], ["y"]),
    ]
    graph = load_graph(model(nodes, {"size": sizes(3 << 20)}))
    assert any(node.op == "ConstantOfShape" for node in graph.nodes) == stays


def test_constants_no_longer_read_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many large tensors one after the other, as ConViT's positions are computed."""
    monkeypatch.setattr(fold, "_GROWN_BYTES_IN_ALL", 50_000)
    filled = numpy_helper.from_array(np.array([1], np.float32))
    nodes = [helper.make_node("ConstantOfShape", ["size"], ["many0"], value=filled)]
    nodes += [
        helper.make_node("Add", [f"many{step}", "one"], [f"many{step + 1}"]) for step in range(20)
    ]
    nodes += [
        helper.make_node("Slice", ["many20", "zero", "end"], ["few"]),
        helper.make_node("Mul", ["conv", "few"], ["y"]),
    ]
    values = {"size": sizes(5_000), "zero": sizes(0), "end": sizes(1)}
    made = model(nodes, {**values, "one": np.ones(1, np.float32)})
    graph = load_graph(made)
    assert {node.op for node in graph.nodes} == {"Conv", "Mul"}
    assert sum(array.nbytes for array in graph.constants.values()) < 1000
    require_split(made)


def test_a_constant_node_is_folded_whatever_its_size() -> None:
    large = numpy_helper.from_array(np.full((1, 4, 730, 730), 0.5, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["large"], value=large),
        helper.make_node("Add", ["conv", "large"], ["y"]),
    ]
    made = model(nodes, {}, (1, 3, 730, 730))
    assert [node.op for node in load_graph(made).nodes] == ["Conv", "Add"]
    require_split(made)


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_large_tables_of_positions_are_folded(op: str) -> None:
    """As PyTorch's exporters write relative positions, element by element."""
    side = 80
    places = np.stack(np.indices((side, side)), axis=-1).reshape(-1, 2)
    inputs = ["table", "places"] if op == "GatherND" else ["blank", "places", "list"]
    nodes = [
        helper.make_node(op, inputs, ["found"]),
        helper.make_node("Reshape", ["found", "map"], ["bias"]),
        helper.make_node("Add", ["conv", "bias"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    values = {"places": places, "map": sizes(1, 1, side, side)}
    values["table"] = rng.random((side, side), np.float32)
    values |= {"list": values["table"].ravel(), "blank": np.zeros((side, side), np.float32)}
    made = model(nodes, values, (1, 3, side, side))
    assert [node.op for node in load_graph(made).nodes] == ["Conv", "Add"]
    require_split(made)


def normalised(source: str, channels: int) -> tuple[list, dict[str, np.ndarray]]:
    """A BatchNormalization by the statistics of its own input, `source -> normal`."""
    node = helper.make_node(
        "BatchNormalization",
        [source, "gain", "shift", "mean", "variance"],
        ["normal", "mean_after", "variance_after"],
        training_mode=1,
    )
    vectors = ("gain", "shift", "mean", "variance")
    rng = np.random.default_rng(1)
    return [node], {name: rng.random(channels, np.float32) + 0.5 for name in vectors}


def test_weights_may_be_standardised_in_the_file() -> None:
    """As timm writes NFNets. These 9 MB are more than may be added, but they replace others."""
    nodes, values = normalised("weights", 16)
    values["weights"] = np.random.default_rng(2).random((1, 16, 36 << 12), np.float32)
    nodes += [
        helper.make_node("Reshape", ["normal", "shape"], ["standard"]),
        helper.make_node("Conv", ["conv", "standard"], ["y"], pads=[1] * 4),
    ]
    values["shape"] = sizes(16 << 12, 4, 3, 3)
    made = model(nodes, values, (1, 3, 4, 2))
    assert [node.op for node in load_graph(made).nodes] == ["Conv", "Conv"]


def test_statistics_of_a_map_are_taken_whole() -> None:
    nodes, values = normalised("conv", 4)
    nodes.append(helper.make_node("Conv", ["normal", "again"], ["y"], pads=[1] * 4))
    values["again"] = np.random.default_rng(3).random((4, 4, 3, 3), np.float32) - 0.5
    made = model(nodes, values)
    graph = load_graph(made)
    assert [len(node.outputs) for node in graph.nodes] == [1, 3, 1]
    require_split(made)


def test_a_tensor_without_elements_is_refused() -> None:
    nodes = [
        helper.make_node("Slice", ["conv", "twelve", "twelve", "two"], ["nothing"]),
        helper.make_node("Relu", ["nothing"], ["y"]),
    ]
    with pytest.raises(BadRequest, match="has no elements"):
        load_graph(model(nodes, {"twelve": sizes(12), "two": sizes(2)}))


def test_a_small_network_of_positions_is_folded_and_no_large_one() -> None:
    """As Swin V2 makes its biases; a convolution may have only so many multiplications."""
    nodes = [
        helper.make_node("MatMul", ["places", "first"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["narrow"]),
        helper.make_node("Reshape", ["narrow", "map"], ["bias"]),
        helper.make_node("Conv", ["blank", "heavy"], ["convolved"], pads=[7] * 4),
        helper.make_node("Mul", ["conv", "bias"], ["scaled"]),
        helper.make_node("Add", ["scaled", "convolved"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    values = {
        "places": rng.random((80 * 80, 2), np.float32),
        "first": rng.random((2, 64), np.float32),
        "second": rng.random((64, 1), np.float32),
        "map": sizes(1, 1, 80, 80),
        "blank": rng.random((1, 8, 80, 80), np.float32),
        "heavy": rng.random((4, 8, 15, 15), np.float32),
    }
    graph = load_graph(model(nodes, values, (1, 3, 80, 80)))
    assert [node.op for node in graph.nodes] == ["Conv", "Conv", "Mul", "Add"]
