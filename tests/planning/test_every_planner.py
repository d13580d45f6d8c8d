"""Whatever a planner makes of a random network on a random cluster, the checker accepts."""

from hypothesis import HealthCheck, given, settings

from coordinator.planning.legal import check_plan
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from tests.examples import examples
from tests.models.networks import networks
from tests.planning.support import clusters


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(networks(), clusters(3))
def test_every_plan_is_legal_and_ends(model, some) -> None:
    network = divide(load_graph(model))
    latency_s = {}
    for name, planner in STRATEGIES.items():
        plan = planner(network, some)
        check_plan(plan, network, some)
        latency_s[name] = simulate(plan, network, some).latency_s
    for name in {"single", "lw", "efl", "ofl", "aofl", "fused"} & latency_s.keys():
        assert latency_s["auto"] <= latency_s[name] * (1 + 1e-9), name
