"""Networks of every kind, cut into tiles: the same answer, and nearly all of the work is split."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from benchmarks import light
from benchmarks.zoo import GRIDS, LEAST_SHARE
from imbrex.library import planned_blocks
from models.catalogue import catalogue
from models.check.check import CheckReport, check
from models.cut.units import divide
from models.onnx_file.importer import load_graph

# One of each kind, the small ones: every network is checked by `make test-slow`.
FAST = ("squeezenet", "yolov3-tiny", "espcn")
FAST_LIGHT = ("light_squeezenet",)
# Of the networks whose fully connected layers are more of their work than a tenth.
SHARES = {"lenet5": 0.8}


def checked(model: ModelProto, name: str, grid: str) -> CheckReport:
    rows, cols = map(int, grid.split("x"))
    network = divide(load_graph(model, name))
    return check(model, network, (rows, cols), planned_blocks(network, rows * cols))


def require(report: CheckReport) -> None:
    assert report.ok, report
    assert report.partitioned_flop_share >= SHARES.get(report.model, LEAST_SHARE), report


@pytest.mark.parametrize("name", FAST)
def test_a_network_of_each_kind(name: str) -> None:
    require(checked(catalogue.load(name).proto, name, "2x2"))


@pytest.mark.parametrize("name", FAST_LIGHT)
def test_a_network_of_the_onnx_package(name: str) -> None:
    require(checked(light.light_network(name), name, "1x3"))


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", [name for name in catalogue.names() if name != "digits"])
def test_networks_of_the_catalogue_are_split(name: str, grid: str) -> None:
    require(checked(catalogue.load(name).proto, name, grid))


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", light.NAMES)
def test_networks_of_the_onnx_package_are_split(name: str, grid: str) -> None:
    require(checked(light.light_network(name), name, grid))


def test_light_networks_have_weights_that_differ() -> None:
    assert len(light.NAMES) == 9
    model = light.light_network("light_squeezenet", seed=1)
    again = light.light_network("light_squeezenet", seed=1)
    other = light.light_network("light_squeezenet", seed=2)
    assert model == again
    assert model != other
    assert [value.name for value in model.graph.input] == ["data_0"]
    assert all(node.op_type not in ("ConstantOfShape", "Softmax") for node in model.graph.node)
    weights = [numpy_helper.to_array(each) for each in model.graph.initializer]
    assert all(np.ptp(weight) > 0 for weight in weights if weight.dtype == np.float32)


def test_light_variances_are_positive() -> None:
    model = light.light_network("light_shufflenet")
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert norms
    assert all(arrays[node.input[4]].min() > 0 for node in norms)
