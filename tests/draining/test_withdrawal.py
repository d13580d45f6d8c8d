"""What setting devices aside does where the list of them cannot be changed at once."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from coordinator.devices.withheld import Withheld
from coordinator.devices.withheld_list import WithheldList
from coordinator.draining import withdrawal
from coordinator.draining.withdrawal import Withdrawal
from coordinator.requests.journal import Journal
from coordinator.trust.cluster_state import ClusterState
from protos.errors import NotFound, Unavailable
from protos.wire.facts import DeviceId
from tests.waiting import until

PI = DeviceId("a1" * 8)


class Unsteady(WithheldList):
    """A list that cannot be changed the first time."""

    refused = 0

    def quarantine(self, device: DeviceId, evidence: str) -> None:
        if not self.refused:
            self.refused += 1
            raise Unavailable(cause="no quorum", cure="wait")
        super().quarantine(device, evidence)


class Slow(WithheldList):
    """A list that can be read before whoever changes it is told that it was changed."""

    def quarantine(self, device: DeviceId, evidence: str) -> None:
        super().quarantine(device, evidence)
        time.sleep(0.1)  # in a thread, while the list is looked at many times


@pytest.fixture
async def made(tmp_path, monkeypatch):
    monkeypatch.setattr(withdrawal, "_AGAIN_S", 0.01)
    monkeypatch.setattr(withdrawal, "_LOOK_S", 0.01)

    def find(name: str) -> None:
        raise NotFound(cause=f"no ready devices are called {name}", cure="")

    devices = SimpleNamespace(
        withheld=Withheld({}),
        withheld_list=Unsteady(ClusterState(tmp_path)),
        usable=lambda *_: [],
        pool=SimpleNamespace(find=find),
    )
    driver = SimpleNamespace(distrust=lambda _: None, devices=lambda _: None)
    plans = SimpleNamespace(devices_changed=lambda *_, **__: None)
    after = SimpleNamespace(settle=lambda: None)
    found = Withdrawal(devices, plans, driver, after, Journal())
    following = asyncio.create_task(found.follow())
    yield found, devices
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await found.close()


async def test_a_quarantine_that_could_not_be_recorded_is_recorded_later(made) -> None:
    found, devices = made
    found.wrong(PI, "task 3 is off", proven=True)
    await until(lambda: devices.withheld_list.refused)
    await until(lambda: devices.withheld_list.quarantined() == {PI: "task 3 is off"})


async def test_own_record_is_not_taken_for_another_coordinators(
    made, monkeypatch, tmp_path
) -> None:
    doubted = []
    monkeypatch.setattr(Journal, "doubt", lambda _, device: doubted.append(device))
    found, devices = made
    devices.withheld_list = Slow(ClusterState(tmp_path))
    found.wrong(PI, "task 3 is off", proven=True)
    await until(devices.withheld_list.quarantined)
    await asyncio.sleep(0.2)  # longer than until the list is looked at, and said to be changed
    assert doubted == [PI]


async def test_device_resumed_meanwhile_is_not_recorded(made, monkeypatch) -> None:
    monkeypatch.setattr(withdrawal, "_AGAIN_S", 0.1)
    found, devices = made
    found.wrong(PI, "task 3 is off", proven=True)
    await until(lambda: devices.withheld_list.refused)
    # By its id, although it is not connected.
    assert await found.resume(PI) == PI
    await asyncio.sleep(0.2)  # longer than until it is recorded again
    assert not devices.withheld_list.quarantined()
    with pytest.raises(NotFound):
        await found.resume(PI)
