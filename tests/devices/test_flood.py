"""In a flood of announcements devices that are here stay, and new ones are found."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest
from zeroconf import IPVersion
from zeroconf.asyncio import AsyncZeroconf

from benchmarks.hostile.announcements import forged
from coordinator.devices import membership
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from tests.devices.support import LOOPBACK, advertised, unique_cluster, worker_process
from tests.waiting import until
from tests.whole.cluster import state_of

FOUND_WITHIN_S = 10.0


class Flood:
    """Announces as fast as it can, until it is told to stop."""

    def __init__(self, cluster: str) -> None:
        self.sent = 0
        self._cluster = cluster
        self._zeroconf = AsyncZeroconf(interfaces=[LOOPBACK], ip_version=IPVersion.V4Only)

    async def send(self, count: int) -> None:
        for number in itertools.islice(itertools.count(self.sent), count):
            self._zeroconf.zeroconf.async_send(forged(self._cluster, number))
            self.sent += 1
            if number % 50 == 0:
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self._zeroconf.async_close()


@pytest.mark.parametrize(
    "slots", [pytest.param(membership.MAX_STRANGERS, marks=pytest.mark.slow), 64]
)
async def test_devices_are_found_during_a_flood_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    caps = (membership.MAX_DEVICES, membership.MAX_ADDRESSES, slots)
    monkeypatch.setattr(membership.DeviceTable.__init__, "__defaults__", caps)
    cluster = unique_cluster()
    host = Coordinator(
        CoordinatorSettings(
            state_dir=tmp_path / "host",
            cluster=cluster,
            interfaces=(LOOPBACK,),
            models=(),
            host_computes=False,
            profile=False,
        )
    )
    await host.start()
    flood = Flood(cluster)
    try:
        async with worker_process(tmp_path / "old", **advertised(cluster)) as old:
            await until(lambda: state_of(host, old.id) == "ready")
            sending = asyncio.create_task(flood.send(1000))
            async with worker_process(tmp_path / "new", **advertised(cluster)) as new:
                await sending
                ended_s = time.monotonic()
                await until(lambda: state_of(host, new.id) == "ready")
                assert time.monotonic() - ended_s < FOUND_WITHIN_S
                assert state_of(host, old.id) == "ready"
                assert len(host.device_statuses()) < 40
                found = {each.code: each for each in (await host.doctor.examine()).findings}
                assert "announcement_flood" in found
                assert "may be forged" in found["announcement_flood"].cause
                assert sum(code == "unreachable" for code in found) <= 16
    finally:
        await flood.close()
        await host.stop()
