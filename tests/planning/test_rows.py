"""Every planner's plans for networks whose rows leave the form of a map."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from coordinator.planning.legal import check_plan
from coordinator.planning.planners.strategies import STRATEGIES
from models.catalogue.loading import ranges_of
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.run.reference import random_inputs
from models.tensors.precision import Wire
from tests.models.attention import NETWORKS, gated, vit
from tests.planning.clusters import SLOW, cluster
from tests.planning.run_plan import difference

SOME = cluster(SLOW, SLOW, 2 * SLOW)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_plan_gives_the_right_answer(name: str, strategy: str) -> None:
    model = NETWORKS[name]()
    network = divide(load_graph(model))
    plan = STRATEGIES[strategy](network, SOME)
    check_plan(plan, network, SOME)
    assert difference(model, plan, network).max_rel_error <= 1e-5


@pytest.mark.parametrize("wire", ["fp16", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_encoded_rows(name: str, wire: Wire) -> None:
    model = NETWORKS[name]()
    graph = load_graph(model)
    network = divide(graph, lambda: ranges_of(graph, [random_inputs(graph, k) for k in range(4)]))
    plan = replace(STRATEGIES["halo"](network.wired(wire), SOME), wire=wire)
    assert difference(model, plan, network).max_rel_error <= (0.01 if wire == "fp16" else 0.1)


@pytest.mark.parametrize("model", [vit(), gated()], ids=["attention", "gates"])
def test_devices_share_the_work(model: onnx.ModelProto) -> None:
    equal = cluster(SLOW, SLOW, SLOW)
    plan = STRATEGIES["halo"](divide(load_graph(model)), equal)
    assert plan.single_device_latency_s / plan.predicted_latency_s > 2.3
