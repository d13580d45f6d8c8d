"""Every planner's plans for networks whose rows leave the form of a map."""

from __future__ import annotations

import onnx
import pytest

from coordinator.planning.legal import check_plan
from coordinator.planning.strategies import STRATEGIES
from models.importer import load_graph
from models.units import divide
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


@pytest.mark.parametrize("model", [vit(), gated()], ids=["attention", "gates"])
def test_devices_share_the_work(model: onnx.ModelProto) -> None:
    equal = cluster(SLOW, SLOW, SLOW)
    plan = STRATEGIES["halo"](divide(load_graph(model)), equal)
    assert plan.single_device_latency_s / plan.predicted_latency_s > 2.3
