"""Rows that leave the form of a map - tokens, heads, windows, lists of boxes - are still split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.exports.__main__ import split_share
from models.check.check import CheckReport, check, fused
from models.cut.units import divide
from models.graph.graph import ROWS
from models.onnx_file.importer import load_graph
from models.rewrite import fold
from models.rewrite.rows import reshaped_axis
from models.run.reference import answer
from tests.models.attention import NETWORKS, Net, detector, gated, windows, yolo_attention
from tests.models.faults import misread


def checked(model: onnx.ModelProto, shape: tuple[int, int] = (3, 1)) -> CheckReport:
    network = divide(load_graph(model))
    return check(model, network, shape, fused(network))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(3, 1), (2, 2), (7, 1)])
def test_split_answers_agree(name: str, shape: tuple[int, int]) -> None:
    report = checked(NETWORKS[name](), shape)
    assert report.ok, report


@pytest.mark.parametrize("name", NETWORKS)
def test_nearly_all_is_split(name: str) -> None:
    """No device computes more than 60 % of a unit, of those that hold 99 % of the FLOPs."""
    assert split_share(divide(load_graph(NETWORKS[name]()))) >= 0.99


def test_axis_of_rows_is_found_in_every_tensor() -> None:
    graph = load_graph(yolo_attention())
    softmax = next(node for node in graph.nodes if node.op == "Softmax")
    places = [node.inputs[0] for node in graph.nodes if node.op == "Reshape"]
    assert graph.axis(softmax.outputs[0], ROWS) == 2
    assert {graph.axis(name, ROWS) for name in places} == {2, 3}
    assert {graph.shape(name)[3] for name in graph.rows} == {48}
    assert graph.axis(graph.outputs[0], ROWS) == 2


def test_sampled_values_are_divided_by_heads() -> None:
    graph = load_graph(NETWORKS["deformable"]())
    values = [node.inputs[0] for node in graph.nodes if node.op == "GridSample"]
    assert [graph.axis(name, ROWS) for name in values] == [0, 0]
    first, second = (
        k
        for k, node in enumerate(graph.nodes)
        if graph.axis(node.outputs[0], ROWS) == 2 and node.op == "MatMul"
    )
    tokens = graph.nodes[first].inputs[0]
    assert graph.nodes[second].inputs[0] == tokens
    made = {tokens, *graph.constants}
    for node in graph.nodes[first : graph.producer[values[1]] + 1]:
        assert made.issuperset(node.inputs)
        made.update(node.outputs)


def test_layer_that_needs_all_rows_begins_a_unit() -> None:
    network = divide(load_graph(NETWORKS["deformable"]()))
    starts = {network.graph.nodes[unit.start].name for unit in network.units}
    heads = [node for node in network.graph.nodes if node.op == "GridSample"]
    after = [node for node in network.graph.nodes if node.op == "MatMul"]
    assert starts.issuperset(node.name for node in (*heads, *after))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_damaged_tile_is_found(name: str) -> None:
    model = NETWORKS[name]()
    network = divide(load_graph(model))

    def damaged(parts):  # type: ignore[no-untyped-def]
        return {key: part + np.float32(0.01) for key, part in parts.items()}

    assert not check(model, network, (3, 1), fused(network), fault=damaged).ok


INT64 = onnx.TensorProto.INT64
# Operators, and networks that have them.
MISREAD = {
    "Reshape": "tokens",
    "Transpose": "attention on a map",
    "MatMul": "class token",
    "LayerNormalization": "class token",
    "Concat": "class token",
    "Softmax": "attention on a map",
    "imbrex.Roll": "shifted windows",
    "GridSample": "sampled",
    "Slice": "attention on a map",
    "Gather": "normalised",
    "Flatten": "normalised",
    "RMSNormalization": "normalised",
    "ReduceMean": "normalised",
    "Gemm": "matrices",
    "Squeeze": "matrices",
    "Unsqueeze": "matrices",
    "Add": "tokens",
    "Conv": "shifted windows",
}


@pytest.mark.parametrize("op", MISREAD)
def test_a_misread_row_is_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = NETWORKS[MISREAD[op]]()
    assert op in {node.op for node in load_graph(model).nodes}
    misread(op, monkeypatch)
    assert not checked(model).ok


def test_an_output_is_joined_last() -> None:
    graph = load_graph(detector())
    (output,) = graph.outputs
    assert graph.joined[output].axis == 2
    assert [graph.shape(part)[2] for part in graph.results] == [256, 64, 16]
    assert not any(node.op == "Concat" and node.outputs[0] == output for node in graph.nodes)
    arrays = {part: np.full(graph.shape(part), k) for k, part in enumerate(graph.results)}
    assert answer(graph.outputs, graph.joined, arrays)[output].shape == graph.shape(output)


def test_an_output_that_is_also_read_is_computed() -> None:
    net = Net(1, 3, 8, 8)
    flat = [net.reshape(net.conv("x", 3, 4), 1, 4, 64) for _ in range(2)]
    joined = net.add("Concat", *flat, axis=2)
    model = net.model(joined, net.add("Softmax", joined, axis=2))
    assert not load_graph(model).joined
    assert checked(model).ok


def test_small_units_without_rows_are_computed_by_every_device() -> None:
    network = divide(load_graph(gated()))
    gates = [unit for unit in network.units if not unit.splits]
    assert gates
    assert all(unit.is_replicable for unit in gates)
    assert len(fused(network)) == 1


def test_rolled_rows_are_one_node() -> None:
    nodes = load_graph(windows(shift=2)).nodes
    assert sum(node.op == "imbrex.Roll" for node in nodes) == 2
    assert not any(node.op == "Slice" for node in nodes)


@pytest.mark.parametrize(
    ("shape", "axis", "out", "found"),
    [
        ((1, 8, 6, 4), 2, (1, 8, 24), 2),  # a map's rows as tokens
        ((1, 24, 8), 1, (1, 24, 2, 4), 1),  # heads
        ((1, 8, 6, 4), 2, (1, 2, 4, 24), 3),  # heads of tokens that come last
        ((1, 12, 12, 3), 1, (1, 4, 3, 4, 3, 3), 1),  # windows
        ((1, 8, 6, 4), 2, (1, 192), None),  # a classifier's input
        ((1, 8, 6, 4), 2, (1, 16, 3, 4), None),  # rows that wrap around
        ((1, 8, 7, 4), 2, (1, 8, 28), 2),
    ],
)
def test_the_axis_of_reshaped_rows(
    shape: tuple[int, ...], axis: int, out: tuple[int, ...], found: int | None
) -> None:
    assert reshaped_axis(shape, axis, out) == found


def test_a_large_product_of_constants_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding takes bounded time, whatever a file holds."""
    monkeypatch.setattr(fold, "_MULTIPLIED", 100)
    net = Net(1, 3, 8, 8)
    product = net.add("MatMul", net.floats(8, 20), net.floats(20, 8))
    model = net.model(net.add("Add", net.conv("x", 3, 4), product))
    assert {node.op for node in load_graph(model).nodes} == {"Conv", "Gemm", "Add"}
    assert checked(model).ok
    monkeypatch.setattr(fold, "_MULTIPLIED", 10_000)
    assert {node.op for node in load_graph(model).nodes} == {"Conv", "Add"}


def test_lists_of_many_maps_stay_joined() -> None:
    """What follows a list is written once for each of its maps: not a thousand times."""
    net = Net(1, 3, 8, 8)
    flat = [net.reshape(net.conv("x", 3, 4), 1, 4, 64) for _ in range(9)]
    model = net.model(net.add("Sigmoid", net.add("Concat", *flat, axis=2)))
    assert not load_graph(model).joined
    assert checked(model).ok


def test_a_roll_by_computed_rows_is_none() -> None:
    net = Net(1, 3, 8, 8)
    x = net.conv("x", 3, 4, 3)
    axes = net.add("Cast", net.add("ReduceMax", net.add("Relu", "x"), keepdims=0), to=INT64)
    axes = net.add("Reshape", net.add("Min", axes, net.ints(0)), net.ints(1))
    parts = [
        net.add("Slice", x, net.ints(start), net.ints(stop), net.add("Add", axes, net.ints(2)))
        for start, stop in ((3, 8), (0, 3))
    ]
    assert checked(net.model(net.add("Concat", *parts, axis=2))).ok


def channels_last(model: onnx.ModelProto, steps: Sequence[str]) -> onnx.ModelProto:
    """The network of a picture of bytes (1, rows, columns, channels), converted in these steps."""
    found, x = onnx.ModelProto(), model.graph.input[0]
    found.CopyFrom(model)
    shape = [size.dim_value for size in x.type.tensor_type.shape.dim]
    mean = np.full((1, 1, 1, shape[1]), 0.1, np.float32)
    given = {"Mul": np.array(1 / 255, np.float32), "Sub": mean}
    nodes, last = [], "picture"
    for step in steps:
        made = x.name if step == steps[-1] else f"picture_{step}"
        more = {"Cast": {"to": 1}, "Transpose": {"perm": [0, 3, 1, 2]}}.get(step, {})
        names = [f"picture_by_{step}"] if step in given else []
        nodes.append(helper.make_node(step, [last, *names], [made], name=made, **more))
        last = made
    found.graph.initializer.extend(
        numpy_helper.from_array(given[step], f"picture_by_{step}")
        for step in steps
        if step in given
    )
    rest = list(found.graph.node)
    del found.graph.node[:], found.graph.input[:]
    found.graph.node.extend([*nodes, *rest])
    last_channels = [shape[0], *shape[2:], shape[1]]
    found.graph.input.append(
        helper.make_tensor_value_info("picture", onnx.TensorProto.UINT8, last_channels)
    )
    return found


STEPS = [("Cast", "Mul", "Sub", "Transpose"), ("Transpose", "Cast", "Mul")]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_picture_whose_channels_come_last_costs_nothing(
    name: str, steps: tuple[str, ...]
) -> None:
    plain = divide(load_graph(NETWORKS[name]()))
    if len(plain.graph.shape(plain.graph.inputs[0])) != 4:
        pytest.skip("it takes no picture")
    model = channels_last(NETWORKS[name](), steps)
    network = divide(load_graph(model))
    assert [len(unit.nodes) for unit in network.units[1:]] == [
        len(unit.nodes) for unit in plain.units[1:]
    ]
    assert len(network.graph.joined) == len(plain.graph.joined)
    assert check(model, network, (3, 1), fused(network)).ok
