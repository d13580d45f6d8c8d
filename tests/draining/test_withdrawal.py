"""What setting devices aside does where the list of them cannot be changed at once."""

from __future__ import annotations

import asyncio
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
    assert not devices.withheld_list.quarantined()
    await until(lambda: devices.withheld_list.quarantined() == {PI: "task 3 is off"})


async def test_who_was_resumed_meanwhile_is_not_recorded(made, monkeypatch) -> None:
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
