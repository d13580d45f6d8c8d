"""Inputs that travel as the 8 bits that the network makes of them: the same answer to the bit."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.check.check import check, fused
from models.cut.units import divide
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.quantised_inputs import as_they_travel, is_exact, with_quantised_inputs
from models.run.reference import EQUAL
from models.tensors.wire import Coded, Quantised
from tests.examples import examples
from tests.models.int8 import Int8

SHAPE = (1, 3, 20, 16)
UNSIGNED = Quantised(0.019, 117)


@settings(max_examples=examples(60))
@given(
    st.floats(2.0**-20, 2.0**20, width=32),
    st.sampled_from([(0, TensorProto.UINT8), (-128, TensorProto.INT8)]),
    st.integers(0, 255),
)
def test_onnxruntime_quantises_as_the_host_does(
    scale: float, kind: tuple[int, int], point: int
) -> None:
    least, data_type = kind
    assert is_exact(Quantised(scale, least + point, data_type))


class Truncated(Quantised):
    """Rounds down: the host would send other numbers."""

    def numbers(self, values):
        return super().numbers(values - np.float32(self.scale / 2))


class Shifted(Quantised):
    """Tiles would read every value one step too high."""

    def decode(self, tensor: Coded) -> list[onnx.NodeProto]:
        def shifted(label: str, array: np.ndarray) -> str:
            return tensor.constant(label, array if array.dtype == np.float32 else array - 1)

        return super().decode(replace(tensor, constant=shifted))


@pytest.mark.parametrize("wrong", [Truncated(0.019, 117), Shifted(0.019, 117), Quantised(0.0, 0)])
def test_quantisation_not_equal_to_the_bit_is_noticed(wrong: Quantised) -> None:
    assert not is_exact(wrong)


def network(*, domain: str = "") -> Int8:
    return Int8(np.random.default_rng(5), domain)


def small(net: Int8, first: str) -> onnx.ModelProto:
    """A convolution behind what is quantised."""
    return net.model(SHAPE, [net.conv(first, 4, 3, 2, True)])


def quantised(model: onnx.ModelProto) -> Graph:
    return with_quantised_inputs(load_graph(model))


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("grid", [(1, 1), (3, 2), (7, 1)])
def test_tiles_of_quantised_values_give_the_whole_answer(
    domain: str, grid: tuple[int, int]
) -> None:
    net = network(domain=domain)
    model = small(net, net.quantise("x", SHAPE))
    graph = quantised(model)
    assert graph.tensors["x"].dtype == np.float32
    assert graph.tensors["x"].wire_itemsize == 1
    split = divide(graph)
    assert check(model, split, grid, fused(split)).comparison == EQUAL


def test_only_the_models_own_tensor_is_accepted_for_it() -> None:
    net = network()
    graph = quantised(small(net, net.quantise("x", SHAPE)))
    assert graph.tensors["x"].accepted == (np.float32,)
    values = np.full(SHAPE, 0.5, np.float32)
    sent = as_they_travel(graph, {"x": values})["x"]
    assert sent.dtype == np.uint8
    assert as_they_travel(graph, {"x": sent})["x"] is sent
    assert as_they_travel(load_graph(small(net, "t0")), {"x": values})["x"] is values


def test_signed_numbers_travel_signed() -> None:
    net = network()
    parts = net.constant(np.float32(0.02)), net.constant(np.int8(3))
    model = net.model(SHAPE, [])
    model.graph.node.append(helper.make_node("QuantizeLinear", ["x", *parts], ["q"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("q", TensorProto.INT8, SHAPE))
    graph = quantised(model)
    assert graph.tensors["x"].wire == Quantised(float(np.float32(0.02)), 3, TensorProto.INT8)


def read_otherwise(net: Int8, model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["x"], ["also"]))
    model.graph.output.append(helper.make_tensor_value_info("also", TensorProto.FLOAT, SHAPE))


def quantised_otherwise(net: Int8, model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other"))
    model.graph.node.append(helper.make_node("QuantizeLinear", ["x", "other"], ["also"]))
    model.graph.output.append(helper.make_tensor_value_info("also", TensorProto.UINT8, SHAPE))


def per_channel(net: Int8, model: onnx.ModelProto) -> None:
    scales = np.array([0.1, 0.2, 0.3], np.float32)
    points = np.array([100, 110, 120], np.uint8)
    for name, array in zip(model.graph.node[0].input[1:], (scales, points), strict=True):
        held = next(each for each in model.graph.initializer if each.name == name)
        held.CopyFrom(numpy_helper.from_array(array, name))


@pytest.mark.parametrize("change", [read_otherwise, quantised_otherwise, per_channel])
def test_inputs_that_are_not_quantised_first_travel_as_they_are(change) -> None:
    net = network()
    model = small(net, net.quantise("x", SHAPE))
    change(net, model)
    graph = quantised(model)
    assert graph.tensors["x"].wire is None
    split = divide(graph)
    assert check(model, split, (3, 2), fused(split)).comparison == EQUAL
