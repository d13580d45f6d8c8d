"""What a probe says of a link is divided between the wire and the machines at its ends; what tasks
say of a device, between the device and their plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from coordinator.costs.cluster import Device
from coordinator.costs.corrections import CorrectedCosts
from coordinator.costs.endpoints import DEVICE_ENDPOINT, HOST_ENDPOINT
from coordinator.costs.links import Transfer
from coordinator.costs.regression import DeviceProfile
from coordinator.costs.sketch import ProgramBuilder
from coordinator.devices import measured as module
from coordinator.devices.measured import TYPICAL_BYTES, DeviceMeasurements
from coordinator.devices.pings import Probe
from coordinator.plans.switching import HEARD_S, Switching
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes
from protos.wire.facts import DeviceId
from tests.planning.clusters import device
from tests.requests.sketches import A, chain

PI = DeviceId("pi")
WIRE_BYTE_S = 85e-9
FAR_BYTE_S = 17e-9


@dataclass
class Probed:
    """A connection that was probed."""

    seen: Probe
    is_loopback: bool = False

    async def probe(self) -> Probe:
        return self.seen


def probe(stream_byte_s: float) -> Probe:
    byte_s = HOST_ENDPOINT.byte_s + WIRE_BYTE_S + FAR_BYTE_S
    sizes = (0, 0, 1 << 14, 1 << 14, 1 << 16, 1 << 16, 1 << 18, 1 << 18)
    seen = tuple(Transfer(size, 0.006 + size * byte_s) for size in sizes)
    return Probe(seen, handling_s=0.004, stream_byte_s=stream_byte_s)


async def test_a_train_tells_the_wire_from_what_the_device_needs_for_each_byte() -> None:
    measured = DeviceMeasurements()
    await measured.probe(PI, Probed(probe(WIRE_BYTE_S)))  # type: ignore[arg-type]
    link = measured.link(PI)
    assert 1 / link.bytes_per_s == pytest.approx(WIRE_BYTE_S)
    assert link.far.byte_s == pytest.approx(FAR_BYTE_S)
    assert link.far.message_s == pytest.approx(0.004)


async def test_a_train_that_was_slower_than_one_message_says_nothing_of_the_device() -> None:
    measured = DeviceMeasurements()
    await measured.probe(PI, Probed(probe(3 * WIRE_BYTE_S)))  # type: ignore[arg-type]
    link = measured.link(PI)
    assert link.far.byte_s == 0
    assert 1 / link.bytes_per_s == pytest.approx(WIRE_BYTE_S + FAR_BYTE_S)


async def test_on_loopback_no_wire_is_told_from_the_machine() -> None:
    measured = DeviceMeasurements()
    await measured.probe(PI, Probed(probe(0.0), is_loopback=True))  # type: ignore[arg-type]
    far = measured.link(PI).far
    assert far.byte_s == DEVICE_ENDPOINT.byte_s
    # It is the host's own machine.
    assert far.to_peers.byte_s == pytest.approx(4 / 3 * HOST_ENDPOINT.byte_s)


def one_task() -> TaskGraph:
    """A plan of one convolution on A."""
    sketch = ProgramBuilder(1, 8, 32, 32)
    sketch.conv(16, 3)
    return replace(chain([[(0, 12)]], "a"), works=(sketch.measurable().works,))


PLAIN = device("a", gflops=0.01)


def known_by(measured: DeviceMeasurements) -> Callable[[DeviceId], Device]:
    costs = CorrectedCosts(PLAIN.costs, measured.correction(A))
    return lambda _: replace(PLAIN, costs=costs)


def ran(measured: DeviceMeasurements, graph: TaskGraph, slowness: float, now: float) -> None:
    seconds = PLAIN.costs.block_s(graph.works[0]) * slowness
    task = TaskTimes(0, 0, A, 1.0, 1.0, 1.0 + seconds)
    measured.observe(graph, [task], known_by(measured), now)


def test_a_plan_is_predicted_by_how_its_own_tasks_ran() -> None:
    measured, suited, unsuited, new = DeviceMeasurements(), one_task(), one_task(), one_task()
    for turn in range(8):
        ran(measured, suited, 0.8, now=20.0 * turn)
        ran(measured, unsuited, 1.25, now=20.0 * turn + 10)
    assert 0.8 < measured.correction(A) < 1.25
    assert measured.correction(A, new) == measured.correction(A)
    assert measured.correction(A, suited) == pytest.approx(0.8, rel=0.05)
    assert measured.correction(A, unsuited) == pytest.approx(1.25, rel=0.05)


def test_correction_of_one_plan_reaches_the_others_of_a_device() -> None:
    measured, one, other = DeviceMeasurements(), one_task(), one_task()
    ran(measured, other, 1.0, now=0.0)
    seen = []
    for turn in range(1, 60):
        ran(measured, one, 2.0, now=20.0 * turn)
        seen.append(measured.correction(A, other))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(2.0, rel=0.05)


def test_a_network_that_was_measured_whole_is_corrected_by_later_tasks_alone() -> None:
    measured, tile, whole = DeviceMeasurements(), one_task(), one_task()
    name = whole.plan.model
    for turn in range(20):
        ran(measured, tile, 2.0, now=20.0 * turn)
    alone_s = 1.5 * PLAIN.costs.block_s(whole.works[0])
    measured.measured_unsplit(name, A, alone_s)
    assert measured.unsplit_s(name, A) == pytest.approx(alone_s)
    # One task is the whole network, so it is as was measured and corrects nothing.
    for turn in range(20, 40):
        ran(measured, whole, 1.5, now=20.0 * turn)
    assert measured.correction(A) == pytest.approx(2.0, rel=0.01)
    for turn in range(40, 80):
        ran(measured, whole, 3.0, now=20.0 * turn)
    assert measured.unsplit_s(name, A) == pytest.approx(2 * alone_s, rel=0.01)


@pytest.mark.parametrize(
    "forget",
    [
        lambda measured: measured.profiled(A),
        lambda measured: measured.forget(A),
        lambda measured: measured.forget_model(one_task().plan.model),
    ],
)
def test_unsplit_times_are_forgotten_with_their_device_or_model(
    forget: Callable[[DeviceMeasurements], None],
) -> None:
    measured, name = DeviceMeasurements(), one_task().plan.model
    measured.measured_unsplit(name, A, 1.0)
    measured.profiled(DeviceId("another"))
    measured.forget_model("another")
    assert measured.unsplit_s(name, A) == 1.0
    forget(measured)
    assert measured.unsplit_s(name, A) is None


async def test_forgetting_a_device_leaves_its_probe() -> None:
    measured, graph = DeviceMeasurements(), one_task()
    await measured.probe(A, Probed(probe(WIRE_BYTE_S)))  # type: ignore[arg-type]
    fresh_s = measured.link(A).transfer_s(TYPICAL_BYTES)
    ran(measured, graph, 5.0, now=0.0)
    ran(measured, graph, 5.0, now=1.0)
    assert measured.correction(A, graph) > 2
    measured.forget(A)
    assert measured.correction(A) == measured.correction(A, graph) == 1
    assert measured.link(A).transfer_s(TYPICAL_BYTES) == pytest.approx(fresh_s)


async def test_messages_between_devices_that_turn_out_slow_are_worth_another_plan() -> None:
    """The first plan is made from a guess, which is a server's."""
    measured, switching = DeviceMeasurements(), Switching()
    await measured.probe(PI, Probed(probe(WIRE_BYTE_S)))  # type: ignore[arg-type]
    assert not switching.is_due("m", measured.observed([PI], 0.0), 0.0)
    seen = DeviceProfile({}, endpoint=replace(DEVICE_ENDPOINT, peer_message_s=6e-4))
    slow = DeviceMeasurements()
    slow.remember(PI, seen)
    await slow.probe(PI, Probed(probe(WIRE_BYTE_S)))  # type: ignore[arg-type]
    assert not switching.is_due("m", slow.observed([PI], 1.0), 1.0)
    assert switching.is_due("m", slow.observed([PI], 1.0 + HEARD_S), 1.0 + HEARD_S)


def test_messages_are_replayed_for_some_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = []

    def waits(*_: object) -> dict[DeviceId, list[float]]:
        replayed.append(None)
        return {A: [0.001]}

    monkeypatch.setattr(module, "message_waits", waits)
    measured, graph = DeviceMeasurements(), one_task()
    for request in range(100):
        ran(measured, graph, 1.0, now=0.01 * request)
    assert len(replayed) == 4


async def test_a_device_that_comes_back_over_another_network_is_judged_by_its_new_link() -> None:
    measured, before = DeviceMeasurements(), Probed(probe(WIRE_BYTE_S))
    measured.connected(PI)
    await measured.probe(PI, before)  # type: ignore[arg-type]
    quick = measured._links[PI]
    for number in range(128):
        size = (150_000, 60_000)[number % 2]
        quick = quick.observed(size, 0.0005 + size / 110e6)
    measured._links[PI] = quick
    assert measured.link(PI).bytes_per_s > 50e6
    again = Probed(probe(WIRE_BYTE_S))
    measured.connected(PI)
    await measured.probe(PI, again)  # type: ignore[arg-type]
    assert 1 / measured.link(PI).bytes_per_s == pytest.approx(WIRE_BYTE_S, rel=0.2)
