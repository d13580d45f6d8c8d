"""Event loops as requests show them: averages, and what requests say of waits."""

import random
from dataclasses import replace
from functools import cache

import pytest

from coordinator.costs.affine import LayerRates
from coordinator.costs.cluster import Cluster, EndpointOverhead, Link
from coordinator.costs.endpoints import DEVICE_ENDPOINT, EndpointEstimate
from coordinator.costs.links import LIVE_LOOPBACK, LinkEstimate, divided, prior_link
from coordinator.costs.profile_json import parse_profile, save_profile
from coordinator.costs.regression import DeviceProfile, LayerRegression
from coordinator.devices.loop_waits import message_waits, task_waits
from coordinator.planning.planners.halo import halo
from coordinator.planning.simulate.simulator import simulate
from coordinator.tasks.plan import Block, Plan, Tile
from coordinator.tasks.task_graph import outline_plan
from coordinator.tasks.timeline import TaskTimes
from models.cut.units import Network
from models.tensors.boxes import Box
from protos.errors import BadRequest
from protos.wire.facts import DeviceId
from tests.planning.support import cluster, real

FAR = EndpointOverhead(message_s=0.003, byte_s=2e-9, task_s=0.002)


def after(waits: list[float], messages: list[float], requests: int) -> EndpointEstimate:
    estimate = EndpointEstimate()
    for now in range(requests):
        estimate = estimate.observed(waits, messages, float(now))
    return estimate


def test_estimate_without_observations_is_the_prior() -> None:
    estimate = EndpointEstimate()
    assert estimate.endpoint == DEVICE_ENDPOINT
    assert estimate.observed([], [], 1.0) is estimate


def test_the_first_request_is_believed_more_than_the_prior() -> None:
    once = after([0.01], [0.02], 1).endpoint
    assert once.task_s == pytest.approx(0.01, rel=0.4)
    ten = after([0.01], [0.02], 10).endpoint
    assert (ten.task_s, ten.peer_message_s) == pytest.approx((0.01, 0.02), rel=0.1)
    # What the host's messages cost is not seen by requests: probes tell.
    assert ten.message_s == DEVICE_ENDPOINT.message_s
    assert after([0.01], [0.02], 10).probed(0.004).endpoint.message_s == 0.004
    assert ten.byte_s == DEVICE_ENDPOINT.byte_s


def test_bytes_between_devices_cost_more_than_those_of_the_host() -> None:
    secured = EndpointEstimate().of_peer_bytes(6e-9).endpoint
    assert secured.to_peers.byte_s == pytest.approx(8e-9)
    assert secured.byte_s == DEVICE_ENDPOINT.byte_s
    # No device is faster than the server on which the prior was measured.
    assert EndpointEstimate().of_peer_bytes(0.0).endpoint == DEVICE_ENDPOINT


def test_estimate_is_the_mean_without_hiccups() -> None:
    rng = random.Random(1)
    waits = [rng.choice((0.001, 0.003)) for _ in range(200)]
    assert after(waits, [], 20).endpoint.task_s == pytest.approx(0.002, rel=0.1)
    odd = after([*waits, 60.0], [-1.0], 20).endpoint
    assert odd.task_s == pytest.approx(0.002, rel=0.2)
    assert (odd.peer_message_s or 0) < (DEVICE_ENDPOINT.peer_message_s or 0)


def test_only_waits_for_an_idle_processor_count() -> None:
    def task(number: int, ready: float, start: float, stop: float) -> TaskTimes:
        return TaskTimes(number, 0, "a", ready, start, stop)

    times = [task(0, 1.0, 1.25, 3.0), task(1, 2.0, 3.125, 4.0), task(2, 4.0, 4.5, 5.0)]
    assert task_waits(times) == {"a": [0.25, 0.5]}
    # Where other requests were on the device, it may have computed for these.
    assert task_waits([replace(each, shared=True) for each in times]) == {}


def in_one_piece(plan: Plan) -> Plan:
    """Each device's tiles of a block as one, which then never waits for its processor."""

    def joined(block: Block) -> Block:
        boxes: dict[DeviceId, dict[str, Box]] = {}
        for tile in block.tiles:
            whole = boxes.setdefault(tile.device, dict(tile.boxes))
            whole.update({name: box.hull(whole[name]) for name, box in tile.boxes.items()})
        return replace(block, tiles=tuple(Tile(device, each) for device, each in boxes.items()))

    return replace(plan, blocks=tuple(map(joined, plan.blocks)))


def test_messages_of_peers_are_found_in_their_tasks() -> None:
    """The simulator plays the request: what it charged each message comes back."""
    link = Link(1e7, message_s=1e-4, latency_s=3e-4, far=FAR)
    some = cluster(*[1.85] * 3, link=link, host=False)
    some = replace(some, medium="switch")
    network = real("vgg16-conv")
    plan = in_one_piece(halo(network, some))
    graph = outline_plan(plan, network)
    times = [
        TaskTimes(each.task, 0, each.device, each.start_s - FAR.task_s, each.start_s, each.stop_s)
        for each in simulate(plan, network, some).activities
        if each.kind == "compute"
    ]
    seen = message_waits(graph, times, {device.id: device.link for device in some.devices})
    assert seen.keys() == {device.id for device in some.devices}
    for waits in seen.values():
        # Messages wait for tasks and for each other in an event loop; none is faster than it is.
        assert FAR.message_s - 1e-9 <= min(waits) < FAR.message_s + FAR.task_s
    assert message_waits(graph, times, {}) == {}
    relayed = [replace(each, relayed=True) for each in times]
    assert message_waits(graph, relayed, {each.id: each.link for each in some.devices}) == {}
    links = {device.id: device.link for device in some.devices}
    late = [replace(each, described_last=True) for each in times]
    assert message_waits(graph, late, links) == {}
    crowded = [replace(each, shared=each.device == some.devices[0].id) for each in times]
    assert some.devices[0].id not in message_waits(graph, crowded, links)


@cache
def halo_plan(network: Network, some: Cluster) -> Plan:
    return in_one_piece(halo(network, some))


@pytest.mark.parametrize("believed_s", [0.0, FAR.message_s / 5, 4 * FAR.message_s])
def test_messages_that_wait_for_each_other_are_charged_to_none_of_them(believed_s: float) -> None:
    """DeepLab reads all rows in four places, so that every device sends to every other at once."""
    far = replace(FAR, message_s=0.0, peer_message_s=FAR.message_s, task_s=0.0)
    link = Link(1e8, message_s=1e-4, latency_s=3e-4, far=far)
    some = replace(cluster(*[1.85] * 4, link=link, host=False), medium="switch")
    network = real("deeplabv3")
    plan = halo_plan(network, some)
    graph = outline_plan(plan, network)
    computed = [each for each in simulate(plan, network, some).activities if each.kind == "compute"]
    ends = {(each.device, round(each.stop_s, 9)) for each in computed}
    # What starts as the task before it ends was ready at some time before that.
    times = [
        TaskTimes(
            *(each.task, 0, each.device, each.start_s, each.start_s, each.stop_s),
            described_last=(each.device, round(each.start_s, 9)) in ends,
        )
        for each in computed
    ]
    far = replace(far, peer_message_s=believed_s)
    seen = {device.id: EndpointEstimate(far) for device in some.devices}
    for now in range(30):
        links = {each: replace(link, far=estimate.endpoint) for each, estimate in seen.items()}
        for device, waits in message_waits(graph, times, links).items():
            seen[device] = seen[device].observed([], waits, float(now))
    for estimate in seen.values():
        assert estimate.endpoint.peer_message_s == pytest.approx(FAR.message_s, rel=0.25)


def test_ends_take_their_part_of_what_was_measured_as_a_whole() -> None:
    near, far = EndpointOverhead(2e-4, 1e-9, 1e-5), EndpointOverhead(4e-4, 3e-9, 5e-4)
    prior = replace(prior_link(93.7), near=near, far=far)
    wide = divided(prior, 3.6e-3, 1e-7)
    assert (wide.near, wide.far) == (near, far)
    assert (wide.message_s, wide.latency_s) == (pytest.approx(1e-3), pytest.approx(2e-3))
    assert wide.fixed_s == pytest.approx(3.6e-3)
    assert wide.byte_s == pytest.approx(1e-7)
    short = divided(prior, 3e-4, 2e-9)
    assert (short.message_s, short.latency_s) == (0.0, 0.0)
    assert (short.near.message_s, short.far.message_s) == pytest.approx((1e-4, 2e-4))
    assert (short.near.byte_s, short.far.byte_s) == pytest.approx((5e-10, 1.5e-9))
    assert (short.near.task_s, short.far.task_s) == (near.task_s, far.task_s)


def test_a_loopback_is_its_ends() -> None:
    prior = replace(
        LIVE_LOOPBACK, near=EndpointOverhead(4e-4, 1e-9), far=EndpointOverhead(4e-4, 1e-9)
    )
    estimate = LinkEstimate(prior)
    for size in [1000, 100_000, 400_000, 900_000] * 8:
        estimate = estimate.observed(size, 5e-4 + size * 3e-9)
    link = estimate.link
    assert (link.message_s, link.latency_s) == (pytest.approx(0.0), pytest.approx(0.0))
    assert link.near.message_s == pytest.approx(2.5e-4)
    assert link.byte_s == pytest.approx(3e-9)


def test_a_profile_keeps_what_requests_showed() -> None:
    rates = LayerRates(1e-5, 1e-10)
    profile = DeviceProfile(
        {"convolution": LayerRegression(rates, 9, 0.1, 0.0)},
        fingerprint={"cpu": "x"},
        endpoint=FAR,
    )
    assert parse_profile(save_profile(profile)) == profile
    assert "set_up_s" not in save_profile(profile)
    told = replace(profile, endpoint=replace(FAR, set_up_s=0.5))
    assert parse_profile(save_profile(told)) == told
    plain = replace(profile, endpoint=None)
    assert parse_profile(save_profile(plain)) == plain
    with pytest.raises(BadRequest, match=r"endpoint\.task_s"):
        parse_profile(save_profile(replace(profile, endpoint=replace(FAR, task_s=-1.0))))
