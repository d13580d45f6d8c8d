"""When a link counts as measured: whatever disturbs a probe, two in a row have to agree. And
devices that do not reach each other are asked again.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.costs.cluster import Link
from coordinator.devices import peer_reachability
from coordinator.devices.announcements import Announcements, DevicesChanged
from coordinator.devices.peer_reachability import Reach
from coordinator.measuring.measuring import Probing
from coordinator.measuring.queues import PROBES_AT_MOST
from coordinator.requests.admission import Admission
from protos.errors import LostWorker
from protos.wire.facts import DeviceId
from tests.waiting import until

PI = DeviceId("pi")
NOWHERE = Path("/dev/null")


@dataclass
class Rates:
    """A device whose link looks like this, probe after probe."""

    rates: Iterator[float]
    seen: list[float] = field(default_factory=list)

    transfers = 0
    links: dict[DeviceId, Link] = field(default_factory=dict)

    def connection(self, device: DeviceId) -> None:
        """As the pool: its only device."""

    async def probe(self, device: DeviceId, connection: object) -> None:
        rate = next(self.rates)
        if not rate:
            raise LostWorker(cause="it is gone", cure="none")
        self.seen.append(rate)

    def link(self, device: DeviceId) -> Link:
        return Link(self.seen[-1])


def probing_of(pool: object, rates: Rates, reach: Reach | None) -> tuple[Probing, list[str]]:
    """And what it announces."""
    devices = SimpleNamespace(pool=pool, measured=rates, reach=reach)
    announcements, news = Announcements(), []
    announcements.on(DevicesChanged, lambda changed: news.append(changed.cause))
    return Probing(devices, Admission(1, 1, 1.0), announcements, NOWHERE), news


async def measured(*rates: float) -> list[float]:
    found = Rates(iter(rates))
    probing, news = probing_of(found, found, None)
    probing.links("measured", [PI])
    assert probing.unprobed == {PI}
    while probing.busy:
        await asyncio.sleep(0)
    assert news == ["measured"]
    assert not probing.unprobed
    return found.seen


@pytest.mark.parametrize(
    ("rates", "probes"),
    [
        ((40, 41, 99), 2),
        ((5, 14, 40, 41, 99), 4),
        ((41, 5, 40, 41, 99), 4),
        ((1, 2, 4, 8, 16, 32, 64), PROBES_AT_MOST),
        ((40, 0, 99), 1),
    ],
)
async def test_probes_until_two_in_a_row_agree(rates: tuple[float, ...], probes: int) -> None:
    assert len(await measured(*rates)) == probes


async def test_probe_disturbed_by_a_transfer_is_worthless() -> None:
    found = Rates(iter((40, 40, 40, 40, 99)))

    async def disturbed(device: DeviceId, connection: object) -> None:
        await Rates.probe(found, device, connection)
        if len(found.seen) == 2:
            found.transfers += 1

    found.probe = disturbed  # type: ignore[method-assign]
    probing, _ = probing_of(found, found, None)
    probing.links("measured", [PI])
    while probing.busy:
        await asyncio.sleep(0)
    assert len(found.seen) == 4


class Enrolled:
    """A device that others refuse until they have the new list of members."""

    address = "at-home"
    refusals = 2

    async def unreachable(self, devices: dict[DeviceId, str]) -> frozenset[DeviceId]:
        self.refusals -= 1
        return frozenset(devices) if self.refusals >= 0 else frozenset()


async def test_a_refusal_of_a_moment_keeps_no_devices_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_reachability, "DOUBT_S", 0.01)
    asking = Reach()
    devices = {PI: Enrolled(), DeviceId("hall"): Enrolled()}
    pool = SimpleNamespace(ready=lambda: devices)
    probing, news = probing_of(pool, Rates(iter(())), asking)
    probing.ask_when_due()
    # They are apart, and then they are not.
    await until(lambda: len(news) == 2)
    assert not asking.apart
    await probing.stop()
