"""While the coordinator is down, and when it is back."""

import pytest

from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration
from protos.rpc.worker_client import WorkerClient
from tests.devices.support import watched_pool
from tests.trust.support import HALL, KITCHEN, caller, make_trust, member
from tests.waiting import until


@pytest.fixture
async def orphans(tmp_path):
    """(the kitchen's worker, the hall's, the hall's way to call): their coordinator was there."""
    trust = make_trust(tmp_path / "coordinator")
    ours = trust.certified
    async with (
        member(ours, tmp_path / "kitchen", KITCHEN) as kitchen,
        member(ours, tmp_path / "hall", HALL) as hall,
    ):
        async with watched_pool(kitchen.address, hall.address, trust=trust) as watched:
            await watched.joined(kitchen, hall)
        yield kitchen, hall, caller(ours, HALL, tmp_path / "calls")


async def test_workers_outlive_the_coordinator_and_obey_nobody_else(orphans):
    kitchen, _, neighbour = orphans
    async with WorkerClient(kitchen.address, neighbour, KITCHEN) as client:
        assert (await client.hello("1")).facts.id == KITCHEN
        with pytest.raises(BadConfiguration, match="may not give orders"):
            await client.prepare([])


async def test_device_removed_meanwhile_is_refused_by_the_coordinator(orphans, tmp_path):
    kitchen, hall, neighbour = orphans
    Trust.load(tmp_path / "coordinator").certified.roster.remove(HALL)
    back = Trust.load(tmp_path / "coordinator")
    async with watched_pool(kitchen.address, hall.address, trust=back) as watched:
        await watched.joined(kitchen)
        await until(lambda: "not a member" in watched.peer(hall.address).reason)
        assert not watched.has(hall)
        async with WorkerClient(kitchen.address, neighbour, KITCHEN) as client:
            with pytest.raises(BadConfiguration, match="not a member"):
                await client.hello("1")
