"""Plans for devices that compute several tasks at once: legal, faster, and the same answer."""

from dataclasses import replace

import pytest

from coordinator.costs.cluster import Cluster, Link
from coordinator.planning.legal import IllegalPlan, check_plan
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.spread import planned
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Plan
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.importer import load_graph
from tests.planning.run_plan import difference
from tests.planning.support import CLUSTERS, cluster, device, small, small_model


def at_once(some: Cluster, *concurrency: int) -> Cluster:
    devices = zip(some.devices, concurrency, strict=True)
    return replace(some, devices=tuple(replace(each, concurrency=count) for each, count in devices))


# So slow that any division pays.
SLOW = at_once(cluster(2e-4, 4e-4, 8e-4, host=False), 2, 3, 1)
MOST = {device.id: device.concurrency for device in SLOW.devices}


def most_tiles(plan: Plan) -> dict[str, int]:
    return {
        device: max(sum(t.device == device for t in block.tiles) for block in plan.blocks)
        for device in plan.devices
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_spread_plans_are_legal_and_equal_to_the_whole(name: str) -> None:
    plan = propose(STRATEGIES[name], small(), SLOW)
    check_plan(plan, small(), SLOW)
    assert any(count > 1 for count in most_tiles(plan).values()), "nothing was divided"
    assert plan.predicted_latency_s == pytest.approx(simulate(plan, small(), SLOW).latency_s)
    assert difference(small_model(), plan, small()).max_rel_error <= 1e-5


def test_tiles_are_those_of_the_plan_divided() -> None:
    plan = propose(strategy("ofl"), small(), SLOW)
    for name, count in most_tiles(plan).items():
        assert count <= MOST[name]


def test_a_device_alone_computes_nearly_as_fast_as_its_cores_together() -> None:
    one, quarter = cluster(4e-3, host=False), at_once(cluster(1e-3, host=False), 4)
    apart = propose(strategy("single"), small(), quarter)
    together = propose(strategy("single"), small(), one)
    assert apart.predicted_latency_s < 1.1 * together.predicted_latency_s
    undivided = strategy("single")(small(), quarter)
    assert apart.predicted_latency_s < 0.5 * simulate(undivided, small(), quarter).latency_s


def test_spread_divides_less_where_memory_is_short() -> None:
    roomy = at_once(cluster(1e-3, host=False), 4)
    tight = replace(roomy, devices=(replace(roomy.devices[0], memory_bytes=200_000_000),))
    plans = [propose(strategy("single"), small(), each) for each in (roomy, tight)]
    tiles = [sum(len(block.tiles) for block in plan.blocks) for plan in plans]
    assert 4 < tiles[1] < tiles[0]
    with pytest.raises(IllegalPlan, match=r"needs .* MB"):
        check_plan(plans[0], small(), tight)


def test_devices_that_compute_one_at_a_time_are_planned_as_ever() -> None:
    plan = planned(strategy("aofl"), small(), CLUSTERS["unlike"])
    assert plan == strategy("aofl")(small(), CLUSTERS["unlike"])


def test_blocks_that_would_gain_nothing_stay_as_they_were() -> None:
    quick = at_once(cluster(5e3, 5e3, host=False), 2, 2)
    plan = propose(strategy("ofl"), small(), quick)
    assert max(most_tiles(plan).values()) == 1


def test_an_illegal_plan_is_told_as_one() -> None:
    def broken(network: Network, some: Cluster) -> Plan:
        plan = strategy("ofl")(network, some)
        return replace(plan, blocks=plan.blocks[:-1])

    with pytest.raises(IllegalPlan, match="it ends at unit"):
        planned(broken, small(), SLOW)


def test_unsplit_layer_goes_to_the_device_fastest_with_one_task() -> None:
    net = Builder("connected", 1)
    x = net.input("x", (1, 4096))
    for number in range(3):
        x = x.gemm(f"g{number}", 4096).relu()
    network, link = divide(load_graph(net.model(x), "connected")), Link(1e6, 0.05)
    many = replace(device("many", 0.02, link), concurrency=4)
    fast = device("fast", 0.05, link)
    both, alone = (
        propose(STRATEGIES["auto"], network, Cluster(devices)).predicted_latency_s
        for devices in ((many, fast), (fast,))
    )
    assert both <= alone * 1.0001
