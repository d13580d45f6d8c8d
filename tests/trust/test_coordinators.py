"""Several coordinators of one cluster: how they join, what they share, how one is removed."""

import asyncio
import time

import pytest
import structlog

from benchmarks.store import free_port, stored
from coordinator.devices import connection
from coordinator.devices.withheld_list import WithheldList
from coordinator.serving.common.keys import Keys, Role
from coordinator.several.joining import join, move
from coordinator.trust.authority import Authority
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.open_state import open_state
from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration, BadRequest, Infeasible, LostWorker, Unavailable
from protos.rpc.channels import Caller
from protos.rpc.enrolment import enrol
from protos.rpc.worker_client import WorkerClient
from protos.trust.credentials import Credentials
from protos.trust.identity import (
    COORDINATOR_NAME,
    coordinator_name,
    coordinator_of,
    keep_identity,
    names_in,
    new_key,
    now_utc,
    signing_request,
)
from protos.trust.invitation import Invitation
from protos.wire.endpoint import Endpoint
from tests.devices.support import worker_process
from tests.several.store import needs_server
from tests.trust.support import (
    HALL,
    KITCHEN,
    OFFICE,
    admit,
    at,
    caller,
    give_identity,
    host,
    make_trust,
    pieces_of,
)
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question, state_of
from tests.worker.support import in_process
from worker.peers.data_stream import DataStream, connect

MODEL = "digits"
SECOND = "b" * 12


def ready(of):
    return {each.id for each in of.device_statuses() if each.state == "ready"}


def settings(port=0):
    return {"enrol_host": "127.0.0.1", "enrol_port": port}


# ---------------------------------------------------------------- certificates


def test_the_authority_decides_which_coordinator_a_certificate_is_for(trust):
    authority = trust.certified.authority
    request = signing_request(new_key(), "whatever it says")
    names = names_in(authority.sign_coordinator(request, SECOND, now_utc()))
    assert names == (COORDINATOR_NAME, coordinator_name(SECOND))
    assert coordinator_of(trust.certified.credentials.identity.names)


def test_coordinator_without_the_authoritys_key_signs_nothing(trust, tmp_path):
    pem = trust.certified.authority.certificate_pem
    Authority.joined(tmp_path / "second", pem, {"signer": {"address": "127.0.0.1:1"}})
    joined = Authority.load(tmp_path / "second")
    assert not joined.signs
    assert joined.fingerprint == trust.certified.authority.fingerprint
    for sign in (
        lambda: joined.sign(signing_request(new_key(), KITCHEN), KITCHEN, now_utc()),
        lambda: joined.sign_coordinator(signing_request(new_key(), SECOND), SECOND, now_utc()),
        lambda: joined.coordinator(now_utc()),
        lambda: joined.for_store(["pi-1"], now_utc()),
    ):
        with pytest.raises(BadConfiguration, match="does not hold its authority's key"):
            sign()


# ---------------------------------------------------------------- workers


async def orders(trust, worker):
    """Whether the coordinator may give a worker orders."""
    async with host(trust, worker) as us:
        try:
            await us.retain([])
        except BadConfiguration:
            return False
    return True


async def test_a_removed_coordinator_is_refused_also_after_a_restart(trust, tmp_path):
    give_identity(trust.certified, tmp_path / "kitchen", KITCHEN)
    own = coordinator_of(trust.certified.credentials.identity.names)
    async with in_process(tmp_path / "kitchen") as worker:
        async with host(trust, worker) as us:
            await us.hello("1", members=[KITCHEN], generation=5, coordinators=[own, SECOND])
        assert await orders(trust, worker)
        second = _another(trust, tmp_path, SECOND)
        async with WorkerClient(worker.address, second, KITCHEN) as them:
            stream = them.exchange()
            reading = asyncio.ensure_future(stream.read())
            await them.hello("1")
            with structlog.testing.capture_logs() as logged:
                async with host(trust, worker) as us:
                    await us.hello("1", members=[KITCHEN], generation=6, coordinators=[own])
                with pytest.raises(BadConfiguration, match="not a member any more"):
                    await reading
            with pytest.raises(BadConfiguration, match="not a member of the cluster"):
                await them.hello("1", members=[KITCHEN], generation=9, coordinators=[SECOND])
        assert any("caller refused" in each["event"] for each in logged)
        assert await orders(trust, worker)
    async with in_process(tmp_path / "kitchen") as worker:
        async with WorkerClient(worker.address, second, KITCHEN) as them:
            with pytest.raises(BadConfiguration, match="not a member of the cluster"):
                await them.hello("1", members=[KITCHEN], generation=9, coordinators=[SECOND])
        assert await orders(trust, worker)


def _another(trust, folder, own_id):
    """The caller that another coordinator of the cluster is."""
    identity = trust.certified.authority.coordinator(now_utc(), own_id)
    credentials = Credentials(folder / f"{own_id}.pem", identity)
    keep_identity(credentials.path, identity)
    return Caller("host", credentials=credentials, coordinator=f"{own_id} attic")


# ---------------------------------------------------------------- the whole


@pytest.fixture
def first(tmp_path):
    """The state of a coordinator whose members are the kitchen and the hall."""
    trust = make_trust(tmp_path / "first")
    for device, name in ((KITCHEN, "kitchen"), (HALL, "hall")):
        give_identity(trust.certified, tmp_path / name, device)
        admit(trust.certified, device)
    return tmp_path / "first"


async def invited(first, port):
    """A token for another coordinator."""
    certified = Trust.load(first).certified
    made = await asyncio.to_thread(certified.invite, f"127.0.0.1:{port}", coordinator=True)
    certified.state.close()
    return made.token


@needs_server
@pytest.mark.needs_room("coordinator/several")
async def test_coordinators_share_devices_until_one_is_removed(first, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "FACTS_INTERVAL_S", 0.2)
    quarantine, recorded = WithheldList.quarantine, []
    monkeypatch.setattr(
        WithheldList,
        "quarantine",
        lambda listed, *what: (recorded.append(what), quarantine(listed, *what)),
    )
    feeds, whole = question(MODEL)
    second, port = tmp_path / "second", free_port()
    with stored(tmp_path) as store:
        await asyncio.to_thread(move, first, store.url, replace=False)
        async with (
            worker_process(tmp_path / "kitchen") as kitchen,
            worker_process(tmp_path / "hall") as hall,
            coordinator(first, [kitchen.address, hall.address], **settings(port)) as one,
        ):
            token = await invited(first, port)
            await join(second, token)
            await join(second, token)  # the settings may still hold it
            async with coordinator(second, [kitchen.address, hall.address]) as two:
                answers = await asyncio.gather(
                    *(each.infer(MODEL, feeds) for each in (one, two) * 4)
                )
                for answer in answers:
                    assert_right(answer, whole)
                assert not any(d.shared_with for each in (one, two) for d in each.device_statuses())
                ours, theirs = (Trust.load(each).certified for each in (first, second))
                assert set(ours.roster.coordinators()) == set(theirs.roster.coordinators())
                assert len(ours.roster.coordinators()) == 2

                await one.drain(HALL)
                await until(lambda: state_of(two, HALL) == "drained")
                assert_right(await two.infer(MODEL, feeds), whole)
                await two.resume(HALL)
                await until(lambda: state_of(one, HALL) == "ready")

                one.withdrawal.wrong(KITCHEN, "task 4 is off", proven=True)
                await until(lambda: state_of(two, KITCHEN) == "quarantined")
                await two.resume(KITCHEN)
                await until(lambda: state_of(one, KITCHEN) == "ready")
                # Whoever learns of it from the list does not put it there again.
                assert recorded == [(KITCHEN, "task 4 is off")]

                key = await asyncio.to_thread(Keys(two.state).add, "camera", Role.INFER)
                await until(lambda: Keys(one.state).holder(key) is not None)

                # What it says where devices join is the address of the one with the key.
                made = await asyncio.to_thread(theirs.invite, "192.0.2.7:1")
                assert made.address == f"127.0.0.1:{port}"
                await enrol(made, OFFICE, "office")
                await until(lambda: OFFICE in theirs.roster.ids())

                as_hall = caller(ours, HALL, tmp_path / "as-hall")
                opened = await asyncio.to_thread(connect, at(kitchen), KITCHEN, as_hall)
                link = DataStream(opened, Endpoint())
                assert link.send(pieces_of("r1"))
                began_s = time.monotonic()
                await asyncio.to_thread(theirs.roster.remove, HALL)
                await until(lambda: ready(one) == {KITCHEN} == ready(two))
                await until(lambda: not link.send(pieces_of("r2")))
                assert time.monotonic() - began_s < 4.0
                link.close()
                with pytest.raises(LostWorker):
                    await asyncio.to_thread(connect, at(kitchen), KITCHEN, as_hall)

                (gone,) = set(ours.roster.coordinators()) - {_id(first)}
                await asyncio.to_thread(ours.roster.remove, gone)
                await until(lambda: not ready(two))
                await until(
                    lambda: any("not a member of" in each.reason for each in two.device_statuses())
                )
                assert_right(await one.infer(MODEL, feeds), whole)
                assert two.devices.trust.is_revoked
                for each in (ours, theirs):
                    each.state.close()


def _id(state_dir):
    return (state_dir / "coordinator-id").read_text()


@needs_server
@pytest.mark.needs_room("coordinator/several")
async def test_coordinator_without_the_store_answers_and_refuses_changes(first, tmp_path):
    feeds, whole = question(MODEL)
    with stored(tmp_path, 3) as store:
        await asyncio.to_thread(move, first, store.url, replace=False)
        async with (
            worker_process(tmp_path / "kitchen") as kitchen,
            coordinator(first, [kitchen.address], **settings()) as one,
        ):
            await until(lambda: not one.state.problem)
            for node in store.nodes[:2]:
                node.kill()
            await until(lambda: one.state.problem, 60)
            assert_right(await one.infer(MODEL, feeds), whole)
            with pytest.raises(Unavailable, match="cannot be changed"):
                await one.drain(KITCHEN)
            assert state_of(one, KITCHEN) == "ready"
            (found,) = [
                e for e in (await one.doctor.examine()).findings if e.code == "state_unavailable"
            ]
            assert "what is known here is" in found.cause
            for node in store.nodes[:2]:
                node.start()
            await until(lambda: not one.state.problem, 60)
            # What was sent while there was no quorum may take effect now.
            await asyncio.to_thread(WithheldList(one.state).resume, KITCHEN)
            await until(lambda: state_of(one, KITCHEN) == "ready")
        store.nodes[0].kill()
        store.nodes[1].kill()
        # Whoever starts now has what it knew.
        async with (
            worker_process(tmp_path / "kitchen") as kitchen,
            coordinator(first, [kitchen.address], **settings()) as one,
        ):
            assert_right(await one.infer(MODEL, feeds), whole)
            assert one.state.problem


@needs_server
@pytest.mark.needs_room("coordinator/several")
async def test_tokens_are_good_for_one_kind_and_once(first, tmp_path):
    port = free_port()
    with stored(tmp_path) as store:
        await asyncio.to_thread(move, first, store.url, replace=False)
        async with coordinator(first, [], **settings(port)):
            of_coordinator = await invited(first, port)
            with pytest.raises(Unavailable, match="unknown, has expired, or was used"):
                await enrol(Invitation.parse(of_coordinator), OFFICE, "office")
            certified = Trust.load(first).certified
            made = await asyncio.to_thread(certified.invite, f"127.0.0.1:{port}")
            with pytest.raises(Unavailable, match="unknown, has expired, or was used"):
                await join(tmp_path / "other", made.token)
            await join(tmp_path / "second", of_coordinator)
            with pytest.raises(Unavailable, match="unknown, has expired, or was used"):
                await join(tmp_path / "third", of_coordinator)
            with pytest.raises(BadConfiguration, match="belongs to a cluster already"):
                await join(tmp_path / "second", made.token)
            with pytest.raises(BadRequest, match="not complete"):
                await join(tmp_path / "fourth", "nonsense")
            certified.state.close()


async def test_coordinator_with_state_in_files_invites_no_other(first):
    assert isinstance(open_state(first), ClusterState)
    certified = Trust.load(first).certified
    secret = certified.invite("", coordinator=True).secret
    with pytest.raises(Infeasible, match="in its files"):
        certified.admit_coordinator(secret, signing_request(new_key(), "attic"), SECOND, "attic")
