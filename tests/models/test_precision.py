"""What a model's answers promise reaches its programs, and half precision loses what it must."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from models.catalogue import catalogue
from models.check.check import check, fused
from models.check.effect import Encoded
from models.check.tolerance import PLAIN, SIGNED, between_devices, of_engine
from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from models.tensors.boxes import Box
from models.tensors.precision import read_precision
from tests.models.networks import Sketch


def network(precision: str = "exact") -> Network:
    graph = load_graph(catalogue.load("squeezenet").proto)
    return divide(replace(graph, precision=precision))


def program(precision: str) -> Program:
    net = network(precision)
    demand = {name: Box.whole(net.graph.shape(name)) for name in net.outputs(0, 1)}
    return cut(net.graph, net.nodes(0, 1), demand, BlobSource()).program


@pytest.mark.parametrize("precision", ["exact", "fp16", "int8"])
def test_programs_say_which_precision_they_need(precision: str) -> None:
    made = program(precision)
    assert read_precision(onnx.ModelProto.FromString(made.graph)) == precision
    assert (made.sha256 == program("exact").sha256) == (precision == "exact")


@pytest.mark.parametrize("value", ["", "fp8", "EXACT", "x" * 10_000])
def test_a_precision_that_nobody_knows_allows_nothing(value: str) -> None:
    model = onnx.ModelProto.FromString(program("exact").graph)
    helper.set_model_props(model, {"precision": value})
    assert read_precision(model) == "exact"


def test_devices_may_differ_by_what_a_model_allows() -> None:
    limits = [between_devices(network(each).graph) for each in ("exact", "fp16", "int8")]
    assert limits[0] == PLAIN < limits[1] < limits[2] == SIGNED
    assert of_engine("exact") < PLAIN < of_engine("fp16") < of_engine("int8")


def test_the_check_of_tiles_stays_exact() -> None:
    net = network("fp16")
    report = check(catalogue.load("squeezenet").proto, net, (2, 2), fused(net))
    assert report.ok
    assert report.tolerance == PLAIN


def test_half_precision_loses_something_and_not_more_than_is_allowed() -> None:
    net = network()
    feeds = random_inputs(net.graph)
    whole = WholeModel(catalogue.load("squeezenet").proto).run(feeds)
    blocks = [(unit, unit + 1) for unit in range(len(net.units))]
    plain, in_half = (Encoded(net, blocks, in_half=each).run(feeds) for each in (False, True))
    assert compare(plain, whole).max_rel_error <= PLAIN
    assert 10 * PLAIN < compare(in_half, whole).max_rel_error <= of_engine("fp16")


def test_values_beyond_half_precision_are_infinite() -> None:
    sketch = Sketch((6, 6))
    sketch.channels["x"] = 3
    model = sketch.model([sketch.add("Relu", [sketch.conv("x", 4, (3, 3), pads=[1] * 4)], 4)])
    net = divide(load_graph(model))
    feeds = {"x": np.full((1, 3, 6, 6), 1e6, np.float32)}
    made = Encoded(net, [(0, 1)], in_half=True).run(feeds)
    assert compare(made, WholeModel(model).run(feeds)).max_rel_error == float("inf")
