"""A list of members that is older than one that a worker knows lets nobody in: real workers and
coordinators, one of them a copy of the other.
"""

import asyncio
import shutil

import pytest
import structlog

from coordinator.devices import connection
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.roster import Roster
from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration
from protos.trust.identity import keep_identity
from tests.cli.run_cli import imbrex
from tests.devices.support import worker_process
from tests.trust.support import (
    HALL,
    KITCHEN,
    OFFICE,
    admit,
    give_identity,
    host,
    identity,
    make_trust,
    neighbour,
)
from tests.waiting import until
from tests.whole.cluster import coordinator
from tests.worker.support import in_process
from worker.trust.certificate import IDENTITY_FILE

OF_THE_CLUSTER = {"mdns": False, "enrol_host": "127.0.0.1", "enrol_port": 0}


@pytest.fixture
def original(tmp_path, monkeypatch):
    """The state of a coordinator whose members are the kitchen and the hall."""
    monkeypatch.setattr(connection, "FACTS_INTERVAL_S", 0.1)
    trust = make_trust(tmp_path / "original")
    give_identity(trust.certified, tmp_path / "kitchen", KITCHEN)
    for device in (KITCHEN, HALL):
        admit(trust.certified, device)
    return tmp_path / "original"


async def gets_in(trust, worker, folder):
    """Whether the hall may speak with the kitchen."""
    async with neighbour(trust, worker, HALL, folder) as client:
        try:
            await client.hello("1")
        except BadConfiguration:
            return False
    return True


async def test_a_copy_lets_nobody_in_whom_the_original_removed(original, tmp_path):
    copied, state = tmp_path / "copy", tmp_path / "kitchen"
    shutil.copytree(original, copied)
    trust = Trust.load(original)
    async with (
        worker_process(state) as worker,
        coordinator(original, [worker.address], **OF_THE_CLUSTER),
    ):
        assert await gets_in(trust, worker, tmp_path)
        Roster(ClusterState(original)).remove(HALL)
        while await gets_in(trust, worker, tmp_path):
            pass
    async with worker_process(state) as worker:  # it keeps what it knows
        with structlog.testing.capture_logs() as logged:
            async with coordinator(copied, [worker.address], **OF_THE_CLUSTER) as copy:
                await until(
                    lambda: any("newer list" in each.reason for each in copy.device_statuses())
                )
                (found,) = [
                    f for f in (await copy.doctor.examine()).findings if f.code == "stale_members"
                ]
                assert "imbrex cluster confirm" in found.cure
                assert not await gets_in(trust, worker, tmp_path)

                # Whoever restored it says which list is right.
                assert HALL in Roster(ClusterState(copied)).ids()
                said = imbrex("cluster", "confirm", "--state-dir", copied, "--json").json()
                assert said == {
                    "generation": Roster(ClusterState(original)).generation + 1,
                    "changed": True,
                }
                await until(
                    lambda: not any("newer" in each.reason for each in copy.device_statuses())
                )
                # The worker hears of it a moment later.
                async with asyncio.timeout(60):
                    while not await gets_in(trust, worker, tmp_path):
                        pass
        assert any("newer list of members" in each["event"] for each in logged)
    assert not imbrex("cluster", "confirm", "--state-dir", copied, "--json").json()["changed"]


def test_every_change_of_who_belongs_counts_and_a_renewal_does_not(original):
    certified, roster = Trust.load(original).certified, Roster(ClusterState(original))
    before = roster.generation
    admit(certified, HALL)
    assert roster.generation == before
    admit(certified, OFFICE)
    roster.remove(HALL)
    assert roster.generation == before + 2
    assert Roster(ClusterState(original)).generation == before + 2
    roster.note_newer(before)
    assert not roster.confirm()
    roster.note_newer(before + 7)
    assert roster.confirm()
    assert (roster.generation, roster.confirm()) == (before + 8, False)


async def test_greeting_without_a_generation_is_taken_as_before(original, tmp_path):
    trust = Trust.load(original)
    async with in_process(tmp_path / "kitchen") as worker, host(trust, worker) as us:
        assert (await us.hello("1", members=[KITCHEN], generation=5)).generation == 5
        assert (await us.hello("1", members=[KITCHEN, HALL], generation=4)).generation == 5
        assert not await gets_in(trust, worker, tmp_path)
        await us.hello("1", members=[KITCHEN, HALL])
        assert await gets_in(trust, worker, tmp_path)


async def test_the_generations_of_another_authority_are_its_own(original, tmp_path):
    state = tmp_path / "kitchen"
    for made in (Trust.load(original), make_trust(tmp_path / "anew")):
        keep_identity(state / IDENTITY_FILE, identity(made.certified, KITCHEN))
        async with in_process(state) as worker, host(made, worker) as us:
            assert (await us.hello("1", members=[KITCHEN], generation=1)).generation == 1
            assert (await us.hello("1", members=[KITCHEN], generation=5)).generation == 5
