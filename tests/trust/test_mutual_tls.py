"""Who gets in over the network, and who does not: real workers, real TLS."""

import asyncio
import os

import grpc
import pytest
from structlog.testing import capture_logs

from coordinator.devices.handshake import clock_problem
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, ImbrexError, LostWorker
from protos.rpc.channels import Caller, make_channel, pinned_channel
from protos.rpc.serving import SERVICE
from protos.rpc.worker_client import WorkerClient
from protos.trust.credentials import on_change
from protos.trust.identity import device_name, read_identity
from tests.devices.support import watched_pool
from tests.trust.support import (
    DAY,
    HALL,
    KITCHEN,
    OFFICE,
    admit,
    caller,
    give_identity,
    host,
    make_trust,
    member,
    neighbour,
)
from tests.waiting import until
from tests.worker.support import (
    conv_program,
    in_process,
    install,
    joined,
    picture,
    process,
    send,
    task_item,
    until_done,
    whole,
)
from worker.trust.certificate import IDENTITY_FILE

IN = Box.whole((1, 16, 12, 10))


@pytest.fixture
async def worker(trust, tmp_path):
    """The kitchen's worker, which knows the hall as a member."""
    async with member(trust.certified, tmp_path / "kitchen", KITCHEN) as running:
        admit(trust.certified, HALL)
        async with host(trust, running) as client:
            await client.hello("1", members=[KITCHEN, HALL])
            yield running


# ---------------------------------------------------------------- on the wire


@pytest.mark.parametrize(
    ("who", "logged"),
    [
        ("plain text", "WRONG_VERSION_NUMBER"),
        ("no certificate", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("another cluster's", "CERTIFICATE_VERIFY_FAILED"),
        ("expired", "certificate has expired"),
    ],
)
def test_caller_without_proof_is_refused_with_a_log_line(trust, tmp_path, who, logged):
    strangers = make_trust(tmp_path / "strangers").certified
    give_identity(trust.certified, tmp_path / "kitchen", KITCHEN)
    ours = trust.certified
    with process(tmp_path / "kitchen") as running:
        asyncio.run(attempt(running.address, who, ours, strangers, tmp_path))
        running.process.terminate()
        said = running.process.stderr.read().decode()
    assert logged in said


async def attempt(address, who, ours, strangers, folder):
    name = device_name(KITCHEN)
    authority = ours.authority.certificate_pem
    match who:
        case "plain text":
            async with WorkerClient(address, Caller("host")) as client:
                with pytest.raises(LostWorker):
                    await client.hello("1")
            return
        case "no certificate":
            credentials = grpc.ssl_channel_credentials(authority)
        case "another cluster's":
            other = caller(strangers, HALL, folder / "x").credentials.identity
            credentials = grpc.ssl_channel_credentials(
                authority, other.key_pem, other.certificate_pem
            )
        case "expired":
            credentials = caller(ours, HALL, folder / "x", valid_for=-DAY).credentials.of_channel()
    async with pinned_channel(address, credentials, name) as channel:
        hello = channel.unary_unary(f"/{SERVICE}/Hello")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hello(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_member_may_pass_tensors_and_nothing_else(trust, worker, tmp_path):
    async with neighbour(trust, worker, HALL, tmp_path) as client:
        assert (await client.hello("1")).facts.id == KITCHEN
        stream = client.exchange()
        await stream.write([])
        with capture_logs() as logs, pytest.raises(BadConfiguration, match="may not give orders"):
            await client.prepare([])
    assert [(each["event"], each["call"]) for each in logs] == [
        ("caller refused", "/imbrex.v1.Worker/Prepare")
    ]


async def test_caller_that_was_never_a_member_is_refused(trust, worker, tmp_path):
    office = caller(trust.certified, OFFICE, tmp_path / "office")
    async with WorkerClient(worker.address, office, KITCHEN) as client:
        with capture_logs() as logs, pytest.raises(BadConfiguration, match="not a member"):
            await client.exchange().read()
        assert logs[0]["event"] == "caller refused"
        with pytest.raises(BadConfiguration, match="not a member"):
            await client.hello("1")
    async with make_channel(worker.address, office.credentials, device_name(KITCHEN)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.aio.AioRpcError, match="not a member"):
            await check(b"", metadata=office.metadata)


@pytest.mark.parametrize("claimed", ["host", OFFICE])
async def test_claim_to_be_another_device_is_not_believed(trust, worker, tmp_path, claimed):
    hall = caller(trust.certified, HALL, tmp_path / "hall")
    liar = Caller(claimed, credentials=hall.credentials)
    async with WorkerClient(worker.address, liar, KITCHEN) as client:
        with pytest.raises(BadConfiguration, match=f"for '{HALL}', it says that it is '{claimed}'"):
            await client.exchange().read()


async def test_a_member_cannot_change_the_list_of_members(trust, worker, tmp_path):
    hall = caller(trust.certified, HALL, tmp_path / "hall")
    async with WorkerClient(worker.address, hall, KITCHEN) as client:
        await client.hello("1", members=[HALL, OFFICE])
    async with neighbour(trust, worker, OFFICE, tmp_path) as client:
        with pytest.raises(BadConfiguration, match="not a member"):
            await client.hello("1")


async def test_a_removed_members_open_stream_ends_at_once(trust, worker, tmp_path):
    async with neighbour(trust, worker, HALL, tmp_path) as hall, host(trust, worker) as us:
        stream = hall.exchange()
        await stream.write([])
        reading = asyncio.create_task(stream.read())
        await hall.hello("1")
        assert not reading.done()
        with capture_logs() as logs:
            await us.hello("1", members=[KITCHEN])
            with pytest.raises(BadConfiguration, match="not a member any more"):
                await asyncio.wait_for(reading, 5)
        assert any(each["event"] == "caller refused" for each in logs)
        with pytest.raises(BadConfiguration, match="not a member"):
            await hall.exchange().read()
        # The coordinator's own streams are untouched.
        await us.hello("1")


async def test_worker_has_no_members_before_the_coordinator_has_spoken(trust, tmp_path):
    async with (
        member(trust.certified, tmp_path / "kitchen", KITCHEN) as running,
        neighbour(trust, running, HALL, tmp_path) as client,
    ):
        with pytest.raises(BadConfiguration, match="not a member"):
            await client.hello("1")


async def test_device_at_the_address_of_another_is_not_taken_for_it(trust, worker):
    async with WorkerClient(worker.address, trust.caller, HALL) as client:
        with pytest.raises(BadConfiguration, match="another device answers"):
            await client.hello("1")


async def test_a_worker_whose_certificate_has_expired_is_named_with_the_clock(trust, tmp_path):
    give_identity(trust.certified, tmp_path / "old", KITCHEN, valid_for=-DAY)
    async with in_process(tmp_path / "old") as running, host(trust, running) as client:
        with pytest.raises(BadConfiguration, match=r"has expired.*timedatectl"):
            await client.hello("1")


async def test_a_worker_outlives_many_handshakes_at_once(trust, tmp_path):
    give_identity(trust.certified, tmp_path / "kitchen", KITCHEN)
    with process(tmp_path / "kitchen") as running:
        for _ in range(100):
            at_once = (clock_problem(running.address, trust.caller.credentials) for _ in range(20))
            assert not any(await asyncio.gather(*at_once))
        assert running.process.poll() is None
        async with host(trust, running) as client:
            await client.hello("1")


def test_grpc_is_given_a_certificate_only_when_it_has_changed():
    held = ["first"]
    fetched = on_change(lambda: held[0], str.upper)
    assert fetched() is None
    held[0] = "second"
    assert [fetched(), fetched()] == ["SECOND", None]


async def test_a_worker_of_another_cluster_is_named(trust, tmp_path):
    strangers = make_trust(tmp_path / "strangers")
    async with (
        member(strangers.certified, tmp_path / "theirs", KITCHEN) as running,
        host(trust, running) as client,
    ):
        with pytest.raises(BadConfiguration, match="certificate is of another cluster"):
            await client.hello("1")


async def test_a_worker_that_speaks_plain_text_is_not_spoken_to(trust, tmp_path):
    async with in_process(tmp_path / "plain") as running, host(trust, running) as client:
        with pytest.raises(ImbrexError):
            await client.hello("1")


async def test_the_secret_stays_at_home_where_there_are_certificates(trust):
    own = trust.caller
    assert Caller("host", "sesame", credentials=own.credentials).metadata == (
        ("imbrex-sender", "host"),
    )


# ---------------------------------------------------------------- workers among themselves


async def test_two_workers_hand_over_halos_under_tls(trust, tmp_path):
    ours = trust.certified
    async with (
        member(ours, tmp_path / "a", KITCHEN) as a,
        member(ours, tmp_path / "b", HALL) as b,
        host(trust, a) as to_a,
        host(trust, b) as to_b,
    ):
        first, blobs = conv_program()
        second, _ = conv_program(blobs, names=("y", "z"), seed=1)
        for client in (to_a, to_b):
            await client.hello("1", members=[KITCHEN, HALL])
            await install(client, first, blobs)
            await install(client, second, blobs)
        there = {"tensor": "y", "box": IN, "yields": IN, "to": b.id, "address": b.address}
        last = {"tensor": "z", "box": IN, "yields": IN}
        x, stream_a, stream_b = picture(), to_a.exchange(), to_b.exchange()
        await stream_b.write([task_item(second, {"y": IN}, [last], task=1)])
        await stream_a.write([task_item(first, {"x": IN}, [there | {"to_task": 1}])])
        await send(stream_a, "x", IN, x)
        pieces, _ = await until_done(stream_b)
        expected = whole(whole(x), seed=1)
        assert abs(joined(pieces, IN) - expected).max() <= 1e-5 * abs(expected).max()
        await until_done(stream_a)
        # The hall is removed: the kitchen does not speak with it any more.
        await to_a.hello("1", members=[KITCHEN])
        await stream_a.write([task_item(first, {"x": IN}, [there | {"to_task": 2}], task=5)])
        await send(stream_a, "x", IN, x, task=5)
        await to_b.hello("1", members=[HALL])
        _, ends = await until_done(stream_a, tasks=2)
        failed = [end for end in ends if isinstance(end, pb.TaskFailed)]
        assert [each.code for each in failed] == ["send"]


# ---------------------------------------------------------------- the coordinator's pool


async def test_a_removed_device_is_let_go_at_once_and_not_taken_again(trust, tmp_path):
    ours = trust.certified
    async with (
        member(ours, tmp_path / "a", KITCHEN) as a,
        member(ours, tmp_path / "b", HALL) as b,
        watched_pool(a.address, b.address, trust=trust) as watched,
    ):
        await watched.joined(a, b)
        ours.roster.remove(HALL)
        assert await until(lambda: not watched.has(b)) < 5.0
        await until(lambda: "not a member" in watched.peer(b.address).reason)
        assert watched.has(a)


async def test_a_certificate_is_renewed_before_it_ends(trust, tmp_path, monkeypatch):
    monkeypatch.setattr("coordinator.devices.connection.FACTS_INTERVAL_S", 0.05)
    ours = trust.certified
    give_identity(ours, tmp_path / "a", KITCHEN, valid_for=20 * DAY)
    file = tmp_path / "a" / IDENTITY_FILE
    before = read_identity(file)
    admit(ours, KITCHEN, expires=before.expires)
    async with in_process(tmp_path / "a") as a, watched_pool(a.address, trust=trust) as watched:
        await watched.joined(a)
        await until(lambda: read_identity(file).certificate_pem != before.certificate_pem)
        after = read_identity(file)
        assert after.expires > before.expires + 300 * DAY
        assert after.key_pem != before.key_pem
        await until(lambda: ours.roster.members()[KITCHEN].expires == after.expires)
        assert os.stat(file).st_mode & 0o777 == 0o600
        # New connections see the new certificate; the old connection never broke.
        async with host(trust, a) as client:
            await client.hello("1")
        assert watched.changes == [f"{KITCHEN} joined"]
