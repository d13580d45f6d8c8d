"""ResNet-50 quantised by onnxruntime: a quarter of the bytes, and the whole int8 model's answer to
one step of its quantised output.
"""

import logging
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from coordinator.planning.legal import check_plan
from coordinator.planning.strategies import strategy as planner_of
from models.catalogue import load
from models.graph import load_graph
from models.reference import random_inputs
from models.units import Network, divide
from tests.planning.clusters import SLOW, cluster
from tests.planning.run_plan import difference

MOST_OF_THE_BYTES = 0.3


class OneInput(CalibrationDataReader):
    """A seeded random input, once."""

    def __init__(self, network: Network) -> None:
        self._left = [random_inputs(network.graph, seed=3)]

    def get_next(self):
        return self._left.pop() if self._left else None


def output_step(model: onnx.ModelProto) -> float:
    """What one step of the last quantised tensor is worth."""
    last = next(node for node in model.graph.node if node.output[0] == model.graph.output[0].name)
    scale = next(each for each in model.graph.initializer if each.name == last.input[1])
    return 1.001 * float(onnx.numpy_helper.to_array(scale))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["lw", "aofl"])
def test_a_quarter_of_the_bytes(strategy: str, tmp_path: Path) -> None:
    proto = load("resnet50").proto
    network = divide(load_graph(proto, "resnet50"))
    onnx.save(proto, tmp_path / "float.onnx")
    logging.getLogger().setLevel(logging.ERROR)
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "int8.onnx",
        OneInput(network),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
    )
    model = onnx.load(tmp_path / "int8.onnx")
    quantised = divide(load_graph(model, "resnet50"))
    some = cluster(*[SLOW] * 4)
    moved = []
    for each in (network, quantised):
        plan = planner_of(strategy)(each, some)
        check_plan(plan, each, some)
        assert len(plan.devices) == 4
        moved.append(plan.traffic.scatter + plan.traffic.gather + plan.traffic.halo)
    assert moved[1] <= MOST_OF_THE_BYTES * moved[0]
    assert difference(model, plan, quantised).max_abs_error <= output_step(model)
