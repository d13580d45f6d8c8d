"""The simulator against arithmetic by hand, and its general properties."""

from dataclasses import replace

import pytest

from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.rates import RateCosts
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Block, Plan, Tile, TrafficBytes, tile_works
from models.catalogue.catalogue import load
from models.cut.tiles import grid, tile_boxes
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from protos.wire.facts import DeviceId
from tests.models.networks import Sketch

MESSAGE_S, LATENCY_S, BYTES_PER_S, GFLOPS = 0.25, 0.125, 1000.0, 1e-3
LINK = Link(BYTES_PER_S, MESSAGE_S, LATENCY_S)
# x is (1, 1, 8, 5): one of two strips of a 1x1 convolution reads and yields 4 rows of 20 bytes.
STRIP_BYTES = 4 * 5 * 4
WIRE_S = MESSAGE_S + STRIP_BYTES / BYTES_PER_S


@pytest.fixture(scope="module")
def network() -> Network:
    sketch = Sketch((8, 5))
    sketch.channels["x"] = 1
    return divide(load_graph(sketch.model([sketch.conv("x", 1, (1, 1))])))


def cluster(medium: str, uplink: Link | None) -> Cluster:
    names = ("a", "b")
    devices = [Device(DeviceId(n), n, RateCosts(GFLOPS), LINK, 1.0, 1 << 30) for n in names]
    return Cluster(tuple(devices), medium, uplink)


def halves(network: Network) -> Plan:
    tiles = grid(network, 0, 1, 2, 1)
    block = Block(
        0,
        1,
        tuple(
            Tile(DeviceId(name), tile_boxes(network, 0, 1, tile))
            for name, tile in zip("ab", tiles, strict=True)
        ),
    )
    return Plan("sketch", "by hand", (block,), 0, 0, DeviceId("a"), 0, 0, TrafficBytes())


def compute_s(network: Network) -> float:
    plan = halves(network)
    works = tile_works(network, plan.blocks[0], plan.blocks[0].tiles[0])
    return sum(work.flop for work in works) / (GFLOPS * 1e9)


def test_a_switch_serves_both_devices_at_once(network: Network) -> None:
    found = simulate(halves(network), network, cluster("switch", None))
    assert found.latency_s == pytest.approx(2 * (WIRE_S + LATENCY_S) + compute_s(network))
    assert found.traffic == TrafficBytes(2 * STRIP_BYTES, 2 * STRIP_BYTES)
    assert found.busy_s(DeviceId("a")) == pytest.approx(compute_s(network))


def test_a_star_sends_one_message_after_the_other(network: Network) -> None:
    found = simulate(halves(network), network, cluster("star", LINK))
    expected = 2 * WIRE_S + LATENCY_S + compute_s(network) + WIRE_S + LATENCY_S
    assert found.latency_s == pytest.approx(expected)


def test_the_air_is_shared_by_both_directions(network: Network) -> None:
    found = simulate(halves(network), network, cluster("air", LINK))
    # The first result wants the medium while the second input may still be on it.
    first = WIRE_S + LATENCY_S + compute_s(network)
    second = 2 * WIRE_S + LATENCY_S + compute_s(network)
    back = max(first, 2 * WIRE_S) + WIRE_S
    assert found.latency_s == pytest.approx(max(back, second) + WIRE_S + LATENCY_S)


def test_without_a_barrier_no_plan_is_slower() -> None:
    network = divide(load_graph(load("vgg16-conv").proto, "vgg16-conv"))
    devices = [
        Device(DeviceId(n), n, RateCosts(g), Link(1e7, 0.001, 0.002), g, 1 << 30)
        for n, g in (("a", 2.0), ("b", 1.5), ("c", 1.0))
    ]
    three = Cluster(tuple(devices), "star", Link(1e7, 0.001))
    plan = strategy("aofl")(network, three)
    barrier = simulate(plan, network, three)
    loose = replace(plan, blocks=tuple(replace(b, barrier=False) for b in plan.blocks))
    free = simulate(loose, network, three)
    assert free.latency_s <= barrier.latency_s * (1 + 1e-9)
    assert barrier.traffic == plan.traffic
    assert barrier.latency_s <= plan.predicted_latency_s * (1 + 1e-9)  # Eq. 3 adds up transfers


def test_a_faster_device_or_link_never_hurts(network: Network) -> None:
    plan = halves(network)
    base = cluster("star", LINK)
    before = simulate(plan, network, base).latency_s
    wider = replace(base, uplink=Link(2 * BYTES_PER_S, MESSAGE_S, LATENCY_S))
    assert simulate(plan, network, wider).latency_s <= before
    first, second = base.devices
    faster = replace(base, devices=(replace(first, costs=RateCosts(2 * GFLOPS)), second))
    assert simulate(plan, network, faster).latency_s <= before
