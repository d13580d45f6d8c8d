"""What a probe says of a link is divided between the wire and the machines at its ends."""

from dataclasses import dataclass

import pytest

from coordinator.cluster.pings import Observation, Probe
from coordinator.costs.endpoints import DEVICE_ENDPOINT, HOST_ENDPOINT
from coordinator.measured import Measured
from coordinator.planning.plan import DeviceId

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
    seen = tuple(Observation(size, 0.006 + size * byte_s) for size in sizes)
    return Probe(seen, handling_s=0.004, stream_byte_s=stream_byte_s)


async def test_a_train_tells_the_wire_from_what_the_device_needs_for_each_byte() -> None:
    measured = Measured()
    await measured.probe(PI, Probed(probe(WIRE_BYTE_S)))  # type: ignore[arg-type]
    link = measured.link(PI)
    assert 1 / link.bytes_per_s == pytest.approx(WIRE_BYTE_S)
    assert link.far.byte_s == pytest.approx(FAR_BYTE_S)
    assert link.far.message_s == pytest.approx(0.004)


async def test_a_train_that_was_slower_than_one_message_says_nothing_of_the_device() -> None:
    measured = Measured()
    await measured.probe(PI, Probed(probe(3 * WIRE_BYTE_S)))  # type: ignore[arg-type]
    link = measured.link(PI)
    assert link.far.byte_s == 0
    assert 1 / link.bytes_per_s == pytest.approx(WIRE_BYTE_S + FAR_BYTE_S)


async def test_on_loopback_no_wire_is_told_from_the_machine() -> None:
    measured = Measured()
    await measured.probe(PI, Probed(probe(0.0), is_loopback=True))  # type: ignore[arg-type]
    assert measured.link(PI).far.byte_s == DEVICE_ENDPOINT.byte_s
