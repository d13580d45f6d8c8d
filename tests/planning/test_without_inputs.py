"""Networks with layers that compute from constants alone: their tasks wait for nothing."""

from dataclasses import replace

import pytest

from coordinator.planning.legal import check_plan
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.tables import tables_of
from coordinator.planning.simulate.simulator import simulate
from coordinator.tasks.task_graph import outline_plan
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from tests.models.networks import with_prior
from tests.planning.run_plan import difference
from tests.planning.support import cluster

SOME = cluster(0.1, 0.2, 0.15)


@pytest.mark.parametrize("joined", ["channels", "rows", "means"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_plan_ends_with_the_right_answer(name: str, first: bool, joined: str) -> None:
    model = with_prior(first=first, joined=joined)
    network = divide(load_graph(model))
    plan = STRATEGIES[name](network, SOME)
    check_plan(plan, network, SOME)
    assert difference(model, plan, network).max_rel_error <= 1e-5
    stages = Stages(network, SOME, tables_of(network, SOME))
    for barrier in (True, False):
        blocks = tuple(
            replace(each, barrier=barrier and each.exchange != "peer") for each in plan.blocks
        )
        changed = replace(plan, blocks=blocks)
        latency_s = simulate(changed, network, SOME).latency_s
        assert stages.latency_s(stages.of_plan(changed)) == pytest.approx(latency_s)


def test_such_tasks_are_there() -> None:
    network = divide(load_graph(with_prior()))
    for name in ("lw", "halo"):
        tasks = outline_plan(STRATEGIES[name](network, SOME), network).tasks
        assert any(not task.inputs for task in tasks), name
