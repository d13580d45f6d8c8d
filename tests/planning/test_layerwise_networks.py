"""Plans of `elimination` and `kcut` for whole networks give the whole model's answer."""

import pytest

from coordinator.planning.legal import check_plan
from coordinator.planning.papers.elimination import elimination
from coordinator.planning.papers.kcut import kcut
from coordinator.planning.simulate.simulator import simulate
from models.catalogue import catalogue
from models.check.check import TOLERANCE
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from tests.planning.clusters import cluster
from tests.planning.run_plan import run_plan


@pytest.mark.parametrize(
    "name",
    [
        "digits",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("vgg16-conv", "resnet50")),
    ],
)
def test_plans_give_the_whole_models_answer(name: str) -> None:
    model = catalogue.load(name).proto
    network = divide(load_graph(model))
    devices = cluster(1.85, 1.85, 1.0, mbps=1000.0)
    feeds = random_inputs(network.graph)
    whole = WholeModel(model, threads=1).run(feeds)
    for planner in (elimination, kcut):
        plan = planner(network, devices)
        check_plan(plan, network, devices)
        assert len(plan.devices) == 3
        assert plan.predicted_latency_s < plan.single_device_latency_s
        assert plan.traffic == simulate(plan, network, devices).traffic
        difference = compare(run_plan(plan, network, feeds), whole)
        assert difference.max_rel_error <= TOLERANCE, planner.__name__
