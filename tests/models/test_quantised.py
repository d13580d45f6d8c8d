"""Quantised networks: cut between Quantize and Dequantize, equal to the last bit."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from coordinator.planning.geometry.blocks import geometry_of
from coordinator.planning.geometry.marks import Mark
from models.catalogue import catalogue
from models.check.check import check, fused
from models.check.tolerance import AVERAGED, PLAIN, tolerance
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from tests.examples import examples
from tests.models.attention import Net, vit
from tests.models.int8 import Int8, int8_networks
from tests.models.precisions import quantised
from tests.models.test_random_graphs import split_error


def check_int8(count: int, opset: int = 17):
    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(int8_networks(opset), st.data())
    def check(model: onnx.ModelProto, data: st.DataObject) -> None:
        assert split_error(data, model) == 0.0

    return check


test_equal_to_the_last_bit = check_int8(examples(40))
test_many_equal_to_the_last_bit = pytest.mark.slow(check_int8(1000))


# Before, scales were one for all.
@pytest.mark.parametrize("opset", [13, 19, 21, 23])
def test_equal_in_each_definition_of_quantising(opset: int) -> None:
    check_int8(5, opset)()


@pytest.mark.parametrize("opset", [10, 11])
def test_equal_with_a_scale_for_all(opset: int) -> None:
    net = Int8(np.random.default_rng(6), opset=opset)
    start = net.quantise("x", (1, 4, 13, 11))
    branch = net.linear_conv(start, 4, 3, 1)
    total = net.node("Add", [net.dequantise(branch), net.dequantise(start)])
    model = net.model((1, 4, 13, 11), [net.quantise(total, (1, 4, 13, 11))])
    network = divide(load_graph(model))
    assert all(unit.splits for unit in network.units)
    assert check(model, network, (3, 2), fused(network)).comparison.max_abs_error == 0.0


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_softmax_of_an_old_opset_is_equal(axis: int) -> None:
    """Without convolutions beside it: onnxruntime's pass that puts channels last then leaves the
    axis where it was, and the whole model's answer is wrong.
    """
    net, shape = Int8(np.random.default_rng(7)), (1, 4, 12, 10)
    start = net.runtime("QLinearLeakyRelu", [net.quantise("x", shape)], shape, alpha=0.2)
    model = net.model(shape, [net.runtime("QLinearSoftmax", [start], shape, axis=axis, opset=12)])
    network = divide(load_graph(model))
    tiles = (1, 1) if axis < 3 else (3, 1)
    assert check(model, network, tiles, fused(network)).comparison.max_abs_error == 0.0


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(int8_networks())
def test_only_eight_bits_live_between_layers(model: onnx.ModelProto) -> None:
    network = divide(load_graph(model))
    for boundary in network.boundaries[1:-1]:
        kinds = {network.graph.tensors[name].dtype for name in boundary.live}
        assert kinds == {np.dtype(np.uint8)}, boundary


def test_a_dequantised_residual_is_eight_bits_on_both_ways() -> None:
    net = Int8(np.random.default_rng(5))
    start = net.quantise("x", (1, 4, 16, 16))
    branch = net.conv(start, 4, 3, 1, True)
    shared = net.dequantise(start)
    tail = net.node("Add", [net.dequantise(branch), shared])
    done = net.quantise(tail, (1, 4, 16, 16))
    again = net.node("Add", [net.dequantise(done), shared])
    network = divide(load_graph(net.model((1, 4, 16, 16), [net.quantise(again, (1, 4, 16, 16))])))
    reading = [node for node in network.graph.nodes if start in node.inputs]
    assert [node.op for node in reading] == ["DequantizeLinear"] * 3
    assert list(fused(network)) == [(0, len(network.units))]


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**16), st.integers(3, 17), st.integers(3, 17), st.data())
def test_dynamic_quantisation_is_split_to_equal_answers(
    seed: int, rows: int, cols: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    net = Int8(rng)
    weights = net.constant(rng.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8))
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "point"], name="dynamic"),
        helper.make_node("ConvInteger", ["q", weights, "point"], ["y"], name="conv", pads=[1] * 4),
        helper.make_node("Cast", ["y"], ["f"], name="cast", to=1),
        helper.make_node("Mul", ["f", "scale"], ["z"], name="scaled"),
    ]
    model = net.model((1, 2, rows, cols), [])
    model.graph.node.extend(nodes)
    shape = [1, 3, rows, cols]
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, shape))
    network = divide(load_graph(model))
    assert all(not node.refusal for node in network.graph.nodes)
    assert split_error(data, model) <= 1e-6


def test_a_mean_of_floats_in_a_quantised_network_is_taken_whole() -> None:
    """In two steps its last bit would differ, and what is quantised of it by a whole step."""
    net = Int8(np.random.default_rng(8))
    shape = (1, 64, 21, 17)
    map_ = net.dequantise(net.quantise("x", shape))
    factors = net.constant(net.rng.uniform(0.1, 0.2, (64, 1, 1)).astype(np.float32))
    scaled = net.node("Mul", [map_, factors])
    mean = net.quantise(net.node("GlobalAveragePool", [scaled]), (1, 64, 1, 1))
    model = net.model(shape, [mean])
    network = divide(load_graph(model))
    assert [node.op for node in network.graph.nodes if "ool" in node.op] == ["GlobalAveragePool"]
    assert not any(node.op.startswith("Reduce") for node in network.graph.nodes)
    assert check(model, network, (4, 1), fused(network)).comparison.max_abs_error == 0.0


@pytest.mark.parametrize(("op", "limit"), [("GlobalAveragePool", PLAIN), ("ReduceMean", AVERAGED)])
def test_means_that_onnxruntime_sums_in_floats_have_a_wider_limit(op: str, limit: float) -> None:
    net, shape = Int8(np.random.default_rng(8)), (1, 16, 21, 17)
    attributes = {"axes": [2, 3]} if op == "ReduceMean" else {}
    mean = net.node(op, [net.dequantise(net.quantise("x", shape))], **attributes)
    model = net.model(shape, [net.quantise(mean, (1, 16, 1, 1))])
    network = divide(load_graph(model))
    report = check(model, network, (2, 2), fused(network))
    assert (report.ok, report.tolerance) == (True, limit)
    broken = check(model, network, (2, 2), fused(network), fault=blanked)
    assert not broken.ok


def blanked(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(array) for name, array in feeds.items()}


def test_a_mean_that_is_quantised_dynamically_has_a_wider_limit() -> None:
    model = quantised(catalogue.load("squeezenet").proto, "dynamic")
    assert tolerance(load_graph(model)) == AVERAGED


def product_of_integers(b: np.ndarray, *points: np.ndarray, opset: int = 17) -> onnx.ModelProto:
    """Eight bits (1, 2, 12, 6), times a matrix for all or one for each channel."""
    net = Int8(np.random.default_rng(9), opset=opset)
    names = [net.quantise("x", (1, 2, 12, 6)), net.constant(b), *map(net.constant, points)]
    made = net.node("Cast", [net.node("MatMulInteger", names)], to=onnx.TensorProto.FLOAT)
    model = net.model((1, 2, 12, 6), [])
    model.graph.output.append(helper.make_tensor_value_info(made, onnx.TensorProto.FLOAT, None))
    return model


WEIGHTS = np.random.default_rng(10).integers(-127, 128, (2, 6, 5)).astype(np.int8)
A_POINT, COLUMNS = np.array(128, np.uint8), np.arange(5, dtype=np.int8)


@pytest.mark.parametrize("opset", [10, 17, 23])
@pytest.mark.parametrize(
    ("b", "points"),
    [
        (WEIGHTS[0], []),
        (WEIGHTS[0], [A_POINT]),
        (WEIGHTS[0], [A_POINT.reshape(1), COLUMNS]),
        (WEIGHTS, [A_POINT, COLUMNS[:1]]),
        (WEIGHTS, [A_POINT, np.stack([COLUMNS, -COLUMNS]).reshape(2, 1, 5)]),
    ],
)
def test_products_of_integers(b: np.ndarray, points: list[np.ndarray], opset: int) -> None:
    model = product_of_integers(b, *points, opset=opset)
    network = divide(load_graph(model))
    assert all(unit.splits for unit in network.units)
    for grid in ((3, 1), (2, 2)):
        assert check(model, network, grid, fused(network)).comparison.max_abs_error == 0.0


def test_a_zero_point_for_each_row_is_refused() -> None:
    graph = load_graph(product_of_integers(WEIGHTS[0], np.zeros((1, 2, 12, 1), np.uint8)))
    (refused,) = (node.refusal for node in graph.nodes if node.op == "MatMulInteger")
    assert refused == "MatMulInteger has a scale or zero point for each row"


def pyramid() -> onnx.ModelProto:
    """A U-Net of six levels' convolutions."""
    net, x, skips = Net(1, 3, 64, 64), "x", []
    channels = 3
    for width in (8, 16, 32):
        x = net.add("Relu", net.conv(x, channels, width, 3))
        skips.append((x, width))
        x, channels = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width
    twice = net.constant(np.array([1, 1, 2, 2], np.float32))
    for skip, width in reversed(skips):
        x = net.add("Resize", x, "", twice, mode="nearest")
        x = net.add("Concat", x, skip, axis=1)
        x = net.add("Relu", net.conv(x, channels + width, width, 3))
        channels = width
    return net.model(net.conv(x, channels, 1))


def interleaved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same in the order of quantisers: what can be computed at the same time, side by side."""
    depth: dict[str, int] = {}
    for node in model.graph.node:
        level = 1 + max((depth.get(name, 0) for name in node.input), default=0)
        depth.update(dict.fromkeys(node.output, level))
    nodes = sorted(model.graph.node, key=lambda node: depth[node.output[0]])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize("network", [pyramid, vit])
@pytest.mark.parametrize("order", [lambda model: model, interleaved])
def test_a_dynamic_quantisation_is_one_unit_more(network, order) -> None:
    plain = divide(load_graph(network()))
    model = order(quantised(network(), "dynamic"))
    count = sum(node.op_type == "DynamicQuantizeLinear" for node in model.graph.node)
    units = divide(load_graph(model)).units
    # The extremes of what the network itself reads are units, too.
    assert len(units) <= len(plain.units) + count + 2
    assert check(model, divide(load_graph(model)), (3, 1), [(0, len(units))]).ok


def test_no_block_extends_beyond_a_quantisation_of_all_rows() -> None:
    """Every tile would compute everything before it."""
    network = divide(load_graph(quantised(pyramid(), "dynamic")))
    gates = [k for k in range(len(network.units)) if network.gathers(k)]
    assert gates
    geometry = geometry_of(network, fine=True)
    for gate in gates:
        splits = geometry.splits[Mark(gate + 2)]
        assert splits is not None
        assert splits.lowest == gate
