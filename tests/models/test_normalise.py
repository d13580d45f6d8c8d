"""Normalisations over the map: one exchange each, exact also where the mean is large."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.check.check import check, fused
from models.check.tolerance import STATISTICS
from models.cut.program import BlobSource
from models.cut.tiles import grid
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.rewrite import normalise
from models.run.reference import random_inputs
from models.run.run_tiles import TileRun
from tests.models.attention import Net

SHAPE = (1, 8, 20, 16)
KINDS = {
    "InstanceNormalization": ({}, (8,)),
    "GroupNormalization": ({"num_groups": 2}, (8,)),
    "LayerNormalization": ({"axis": 1}, SHAPE[1:]),
}


def normalised(op: str, about: float) -> onnx.ModelProto:
    """The operator over a map that deviates by 1 from a mean."""
    attributes, shape = KINDS[op]
    rng = np.random.default_rng(4)
    parts = {key: rng.uniform(0.5, 1.0, shape).astype(np.float32) for key in ("scale", "bias")}
    weights = {"about": np.float32(about), **parts}
    nodes = [
        helper.make_node("Add", ["x", "about"], ["moved"], name="move"),
        helper.make_node(op, ["moved", "scale", "bias"], ["n"], name="norm", **attributes),
        helper.make_node("Relu", ["n"], ["y"], name="relu"),
    ]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "normalised",
        [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)


@pytest.mark.parametrize("op", KINDS)
def test_only_statistics_of_rows_leave_the_devices(op: str) -> None:
    network = divide(load_graph(normalised(op, 0.0)))
    assert [unit.splits for unit in network.units] == [True, False, True]
    combining = network.boundaries[1]
    sizes = {name: network.graph.tensors[name].nbytes for name in combining.live}
    assert sizes.pop("moved") == 4 * 8 * 20 * 16
    [of_rows] = sizes.values()
    assert of_rows <= 4 * 2 * 8 * 20


@pytest.mark.parametrize("op", KINDS)
@pytest.mark.parametrize("about", [0.0, 1000.0])
def test_split_answers_are_right(op: str, about: float) -> None:
    model = normalised(op, about)
    network = divide(load_graph(model))
    x = random_inputs(network.graph)["x"]
    exact = _in_double(op, model, x, about)
    if not about:
        assert check(model, network, (3, 2), fused(network), feeds={"x": x}).ok
    assert np.abs(_split(network, x) - exact).max() <= STATISTICS * np.abs(exact).max()


def in_groups(groups: int, about: float) -> onnx.ModelProto:
    """GroupNorm as PyTorch's exporters wrote it before opset 18, here of eight channels."""
    net = Net(*SHAPE)
    moved = net.add("Add", "x", net.constant(np.float32(about)))
    apart = net.reshape(moved, 0, groups, -1)
    ones, zeros = (net.constant(np.full(groups, each, np.float32)) for each in (1.0, 0.0))
    back = net.reshape(net.add("InstanceNormalization", apart, ones, zeros), *SHAPE)
    scale, bias = net.floats(8, 1, 1), net.floats(8, 1, 1)
    return net.model(net.add("Relu", net.add("Add", net.add("Mul", back, scale), bias)))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_groups_may_be_normalised_in_another_shape(groups: int) -> None:
    model = in_groups(groups, 3.0)
    network = divide(load_graph(model))
    assert [unit.splits for unit in network.units] == [True, False, True]
    assert not {node.op for node in network.graph.nodes} & {"InstanceNormalization"}
    assert check(model, network, (3, 2), fused(network)).ok
    wrong = in_groups(4, 3.0)
    assert not check(wrong, network, (3, 2), fused(network)).ok


def test_statistics_of_wrong_groups_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = normalise._group_average
    monkeypatch.setattr(normalise, "_group_average", lambda draft, c, g: right(draft, c, 2 * g))
    model = normalised("GroupNormalization", 0.0)
    network = divide(load_graph(model))
    assert not check(model, network, (3, 2), fused(network)).ok


def _split(network: Network, x: np.ndarray) -> np.ndarray:
    run = TileRun(network, BlobSource(), {"x": x})
    for start, stop in fused(network):
        run.block(start, stop, grid(network, start, stop, 3, 2))
    return run.tensors["y"]


def _in_double(op: str, model: onnx.ModelProto, x: np.ndarray, about: float) -> np.ndarray:
    """The definition, in numbers of 64 bits of what float32 left of the input."""
    found = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    moved = (x + np.float32(about)).astype(np.float64)
    groups = {"InstanceNormalization": 8, "GroupNormalization": 2, "LayerNormalization": 1}[op]
    parts = moved.reshape(groups, -1)
    mean, variance = parts.mean(axis=1, keepdims=True), parts.var(axis=1, keepdims=True)
    standard = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(SHAPE)
    shape = (1, -1, 1, 1) if found["scale"].ndim == 1 else SHAPE
    scale, bias = (found[key].reshape(shape) for key in ("scale", "bias"))
    return np.maximum(standard * scale + bias, 0.0)


@pytest.mark.parametrize("opset", [9, 13, 21, 23])
@pytest.mark.parametrize("axes", [None, [0, 2, 3], [0, 1, 2, 3]])
def test_mean_variance_normalisation_in_every_opset(opset: int, axes: list[int] | None) -> None:
    """ONNX's inference refuses it from 13 on where its axes are left out; onnxruntime runs it."""
    attributes = {} if axes is None else {"axes": axes}
    op = "MeanVarianceNormalization"
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node(op, ["r"], ["y"], **attributes)],
        "normalised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    network = divide(load_graph(model))
    report = check(model, network, (3, 1), fused(network))
    assert report.comparison.max_rel_error <= STATISTICS
    # Over the channels too, it is not written in simpler operators.
    opaque = [each.op for each in report.refusals if each.op == op]
    assert opaque == ([op] if axes == [0, 1, 2, 3] else [])
    assert not model.graph.node[1].attribute or axes
