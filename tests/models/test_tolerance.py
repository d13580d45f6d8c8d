"""How exact an answer must be, for models of every precision, and that a fault still shows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from models.catalogue import catalogue
from models.check.check import check, fused
from models.check.tolerance import AVERAGED, HALF, PLAIN, SIGNED, STATISTICS, told, tolerance
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from tests.models.model_files import halved, opened


def blank_a_row(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    damaged = {name: array.copy() for name, array in feeds.items()}
    for array in damaged.values():
        if array.ndim == 4 and array.shape[2] > 1:
            array[:, :, 0] = 0
    return damaged


def two_inputs_two_outputs(kind: int) -> ModelProto:
    model = opened((1, 3, 9, 7), (1, 3, 1, 1))
    model.graph.output.append(helper.make_tensor_value_info("conv1", TensorProto.FLOAT, None))
    return halved(model) if kind == TensorProto.FLOAT16 else model


@pytest.mark.parametrize(
    ("kind", "limit"), [(TensorProto.FLOAT, PLAIN), (TensorProto.FLOAT16, HALF)]
)
def test_several_inputs_and_outputs(kind: int, limit: float) -> None:
    model = two_inputs_two_outputs(kind)
    network = divide(load_graph(model))
    report = check(model, network, (2, 3), fused(network))
    assert report.ok, report
    assert report.tolerance == limit
    assert report.partitioned_flop_share == 1.0
    assert network.marks[0] == 0
    broken = check(model, network, (2, 3), fused(network), fault=blank_a_row)
    assert broken.comparison.max_rel_error > 10 * limit


def test_a_network_in_half_precision() -> None:
    model = halved(catalogue.load("squeezenet").proto)
    network = divide(load_graph(model))
    report = check(model, network, (2, 2), fused(network))
    assert report.ok, report
    assert report.partitioned_flop_share > 0.99


def test_statistics_over_the_map_may_differ_more() -> None:
    assert tolerance(load_graph(catalogue.load("style-transfer").proto)) == STATISTICS
    assert tolerance(load_graph(catalogue.load("lenet5").proto)) == PLAIN


@pytest.mark.parametrize("limit", [HALF, STATISTICS, SIGNED, AVERAGED])
def test_a_wide_limit_says_why(limit: float) -> None:
    assert told(PLAIN) == "limit 1e-05"
    assert told(limit).startswith(f"limit {limit:g}: ")
