"""The search's model of a plan against the event simulator and the exact memory of plans."""

import random
from dataclasses import replace

import pytest

from coordinator.costs.cluster import Cluster, EndpointOverhead, Link
from coordinator.planning.finish import finished
from coordinator.planning.geometry.tile_shapes import shapes_of
from coordinator.planning.legal import check_plan
from coordinator.planning.plan_memory import needs
from coordinator.planning.search.block_costs import PlanDraft, Stages
from coordinator.planning.search.tables import tables_of
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Plan
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from tests.models.networks import with_prior
from tests.planning.support import MEMORY, cluster, device, real, small

UPLINK = Link(1.1e7, message_s=1e-3, latency_s=2e-3)
NEAR = EndpointOverhead(message_s=4.1e-4, byte_s=1.3e-9, task_s=3.1e-5)


def far(i: int) -> EndpointOverhead:
    return EndpointOverhead(message_s=2.3e-4 * i, byte_s=1e-9 * i, task_s=5.3e-4 * i)


UNLIKE = Cluster(
    (
        device("host", 4.0, MEMORY, host=True),
        *(
            device(f"d{i}", 1.3 + 0.37 * i, Link(8e6 + 7e5 * i, 1e-3, 2e-3, NEAR, far(i)))
            for i in range(5)
        ),
    ),
    "star",
    UPLINK,
)
MEDIA = {
    "star": UNLIKE,
    "switch": replace(UNLIKE, medium="switch", uplink=None),
    "air": replace(UNLIKE, medium="air", uplink=None),
    "two links": replace(UNLIKE, uplink=None),
}


def random_draft(stages: Stages, rng: random.Random, *, peers: bool = False) -> PlanDraft:
    """Blocks of up to five units, each in a random shape on random devices; with `peers` most of
    them get what others made from them, and none waits at a barrier.
    """
    tables, count = stages.tables, len(stages.cluster.devices)
    draft, start = [], 0
    while start < tables.last:
        end = min(tables.last, start + rng.randint(1, 5))
        splits = tables.geometry.splits[end]
        who = rng.sample(range(count), rng.randint(1, count))
        shares = ((who[0], stages.loads.whole(start, end)),)
        if splits is not None and start >= splits.lowest_cols and rng.random() < 0.85:
            weights = [rng.uniform(0.5, 2.0) for _ in who]
            tiles = rng.choice(shapes_of(len(who))).tiles(splits.height, splits.width, weights)
            shares = tuple((d, t) for d, t in zip(who, tiles, strict=True) if not t.is_empty)
        direct = peers and start > 0 and rng.random() < 0.8
        barrier = not peers and rng.random() < 0.3
        draft.append(stages.stage(start, end, shares, barrier=barrier, direct=direct))
        start = end
    return tuple(draft)


def plan_of(stages: Stages, draft: PlanDraft) -> Plan:
    return finished("random", stages.blocks(draft), stages.network, stages.cluster)


def named(name: str) -> Network:
    if name == "prior":
        return divide(load_graph(with_prior()))
    return small() if name == "small" else real(name)


def setting(network: Network, some: Cluster) -> Stages:
    return Stages(network, some, tables_of(network, some))


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("name", ["small", "prior", "vgg16", "yolov2", "resnet50"])
def test_a_draft_costs_what_the_simulator_says(name: str, medium: str) -> None:
    network = named(name)
    stages, rng = setting(network, MEDIA[medium]), random.Random(f"{name} {medium}")
    for _ in range(6):
        draft = random_draft(stages, rng)
        plan = plan_of(stages, draft)
        check_plan(plan, network, MEDIA[medium])
        expected = simulate(plan, network, MEDIA[medium]).latency_s
        assert stages.latency_s(draft) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("name", ["small", "prior", "vgg16", "yolov2", "yolov3-tiny"])
def test_model_of_a_peer_plan_agrees_with_the_simulator(name: str, medium: str) -> None:
    network = named(name)
    stages, rng = setting(network, MEDIA[medium]), random.Random(f"{name} {medium}")
    for _ in range(6):
        draft = random_draft(stages, rng, peers=True)
        plan = plan_of(stages, draft)
        check_plan(plan, network, MEDIA[medium])
        expected = simulate(plan, network, MEDIA[medium]).latency_s
        assert stages.latency_s(draft) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["single", "lw", "efl", "aofl", "elimination", "kcut", "halo"])
def test_model_of_every_plan_agrees_with_and_without_barriers(name: str) -> None:
    stages = setting(small(), UNLIKE)
    plan = strategy(name)(small(), UNLIKE)
    draft = stages.of_plan(plan)
    assert stages.latency_s(draft) == pytest.approx(simulate(plan, small(), UNLIKE).latency_s)
    free = replace(plan, blocks=tuple(replace(block, barrier=False) for block in plan.blocks))
    expected = simulate(free, small(), UNLIKE).latency_s
    assert stages.latency_s(stages.without_barriers(draft)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["small", "vgg16", "yolov2"])
def test_a_draft_needs_the_memory_that_its_plan_needs(name: str) -> None:
    network, rng = small() if name == "small" else real(name), random.Random(name)
    capped = Cluster(tuple(replace(each, memory_bytes=1) for each in UNLIKE.devices))
    stages = setting(network, capped)
    for _ in range(6):
        draft = random_draft(stages, rng)
        over = stages.overflows(draft)
        exact = needs(network, plan_of(stages, draft))
        for d, each in enumerate(capped.devices):
            if each.id in exact:
                assert over[d] + 1 == pytest.approx(exact[each.id].total_bytes(), rel=1e-9)
        assert stages.overflow_bytes(draft) == sum(over.values())


def test_equal_devices_differ_by_ties_only() -> None:
    """Where two messages are ready at the same instant, either may go first."""
    network, some = real("vgg16-conv"), replace(cluster(*[2.0] * 6), uplink=UPLINK)
    stages, rng = setting(network, some), random.Random(3)
    for _ in range(4):
        draft = random_draft(stages, rng)
        expected = simulate(plan_of(stages, draft), network, some).latency_s
        assert stages.latency_s(draft) == pytest.approx(expected, rel=0.05)
