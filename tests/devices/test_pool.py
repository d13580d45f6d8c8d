"""Pools around real workers, over real gRPC and real mDNS on loopback."""

import asyncio
import os
import signal
import socket
import time
from types import SimpleNamespace

import pytest

from coordinator.devices.addresses import PeerState
from coordinator.devices.connection import LOST_AFTER_S, PING_INTERVAL_S
from coordinator.devices.outbox import QUEUE_MESSAGES
from coordinator.trust.trust import Trust
from imbrex.demo.emulation.settings import command
from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, LostWorker, PeerViolation
from protos.rpc.channels import Caller
from protos.rpc.direct import offer
from protos.rpc.worker_client import WorkerClient
from protos.wire.versions import PROTOCOL, Spoken
from tests.devices.support import advertised, unique_cluster, watched_pool, worker_process
from tests.waiting import until
from tests.worker.support import in_process

# From the signal to the loss: what the design promises, and what a busy machine adds.
DEADLINE_S = LOST_AFTER_S + 2.0


async def test_a_worker_is_found_over_mdns_and_its_facts_are_known(tmp_path):
    cluster = unique_cluster()
    async with (
        watched_pool(cluster=cluster) as watched,
        worker_process(tmp_path / "ours", NAME="kitchen", **advertised(cluster)) as ours,
        worker_process(tmp_path / "theirs", **advertised(unique_cluster())) as theirs,
    ):
        await watched.joined(ours)
        facts = watched.connection(ours).facts
        assert (facts.id, facts.name) == (ours.id, "kitchen")
        assert facts.memory_bytes > 0
        peer = watched.peer(ours.address)
        assert (peer.source, peer.state) == ("mdns", PeerState.READY)
        assert watched.changes == [f"{ours.id} joined"]
        assert not watched.pool.is_host(facts.id)
        assert theirs.id not in watched.pool.ready()
        assert len(watched.pool.peers) == 1


async def test_a_listed_worker_needs_no_mdns_and_may_come_later(tmp_path):
    async with worker_process(tmp_path / "a") as first:
        address = first.address
    port = address.rpartition(":")[2]
    async with watched_pool(address) as watched:
        await until(lambda: watched.peer(address).state is PeerState.WAITING)
        assert "no answer" in watched.peer(address).reason
        async with worker_process(tmp_path / "a", PORT=port) as again:
            await watched.joined(again)
            assert again.id == first.id
            assert watched.peer(address).source == "static"


async def test_a_killed_worker_is_lost_at_once_and_comes_back(tmp_path):
    cluster = unique_cluster()
    async with watched_pool(cluster=cluster) as watched:
        async with worker_process(tmp_path, **advertised(cluster)) as first:
            await watched.joined(first)
            connection = watched.connection(first)
            os.kill(first.process.pid, signal.SIGKILL)
            assert await until(lambda: not watched.has(first)) < 1.0
            with pytest.raises(LostWorker):
                watched.connection(first)
            with pytest.raises(LostWorker):
                await connection.send([])
            with pytest.raises(LostWorker):
                await connection.measure(pb.MeasureRequest())
        async with worker_process(tmp_path, **advertised(cluster)) as second:
            assert second.id == first.id
            await watched.joined(second)
        assert [change.split()[1] for change in watched.changes[:3]] == ["joined", "left", "joined"]
        assert watched.pool.losses["lost_worker"] >= 1


async def test_a_worker_that_stops_cleanly_leaves_at_once(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        running.process.terminate()
        await until(lambda: not watched.has(running), within_s=3.0)
        assert watched.peer(running.address).state is PeerState.WAITING


async def test_a_stalled_worker_is_lost_within_the_deadline(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        connection = watched.connection(running)
        waiting = asyncio.create_task(connection.measure(pb.MeasureRequest()))
        os.kill(running.process.pid, signal.SIGSTOP)
        took_s = await until(lambda: not watched.has(running))
        assert LOST_AFTER_S / 2 < took_s < DEADLINE_S
        # Whoever waits for it is told, and not cancelled.
        with pytest.raises(LostWorker):
            await waiting
        os.kill(running.process.pid, signal.SIGCONT)
        await watched.joined(running)


async def test_an_event_loop_that_stood_still_loses_no_worker(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        os.kill(running.process.pid, signal.SIGSTOP)
        await asyncio.sleep(2 * PING_INTERVAL_S)  # it has been asked, and can't answer yet
        os.kill(running.process.pid, signal.SIGCONT)
        time.sleep(LOST_AFTER_S)  # noqa: ASYNC251 - the answer is there, and nobody reads it
        with pytest.raises(TimeoutError):
            await until(lambda: not watched.has(running), within_s=LOST_AFTER_S)


async def test_a_full_queue_waits_and_a_loss_ends_the_wait(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        connection = watched.connection(running)
        os.kill(running.process.pid, signal.SIGSTOP)
        payload = bytes(4 << 20)
        sent = 0

        async def send_for_ever():
            nonlocal sent
            while True:
                await connection.send([pb.Item(ping=pb.Ping())], [payload])
                sent += 1

        with pytest.raises(LostWorker):
            await send_for_ever()
        assert QUEUE_MESSAGES <= sent < 2 * QUEUE_MESSAGES


async def test_items_of_a_worker_come_with_its_id(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        ping = pb.Ping(number=7, reply_bytes=5)
        await watched.connection(running).send([pb.Item(ping=ping)], [b"abc"])
        await until(lambda: watched.items)
        device, item, payload = watched.items[0]
        assert (device, item.pong.number, bytes(payload)) == (running.id, 7, bytes(5))


async def test_the_clock_offset_and_the_link_are_measured(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        connection = watched.connection(running)
        # Both clocks are this machine's monotonic clock.
        trip = await connection.ping()
        assert abs(connection.clock.offset_s) <= trip.seconds
        began = time.monotonic()
        probe = await connection.probe()
        assert time.monotonic() - began < 2.5
        assert {each.size_bytes for each in probe.messages} > {0, 16 << 10}
        assert all(0 <= each.seconds < 1 for each in probe.messages)


async def probed(tmp_path, charge):
    """What a probe shows of an emulated worker."""
    emulation = tmp_path / "emulation.toml"
    emulation.write_text(charge)
    async with (
        worker_process(tmp_path, within=command(emulation)) as running,
        watched_pool(running.address) as watched,
    ):
        await watched.joined(running)
        return await watched.connection(running).probe()


async def test_a_burst_of_pings_tells_what_a_slow_end_needs_per_message(tmp_path):
    probe = await probed(tmp_path, "message_ms = 12")
    assert 0.0115 < probe.handling_s < 0.03


async def test_a_train_of_pings_tells_how_fast_bytes_get_through(tmp_path):
    probe = await probed(tmp_path, "byte_ns = 500")
    assert 4.9e-7 < probe.stream_byte_s < 1e-6


async def test_pings_at_the_same_time_do_not_disturb_each_other(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        connection = watched.connection(running)
        sizes = [0, 1 << 20, 10, 3 << 20] * 4
        trips = await asyncio.gather(*(connection.ping(size, size // 2) for size in sizes))
        assert [trip.sent_bytes for trip in trips] == sizes
        assert watched.has(running)
        assert not watched.pool.losses


async def test_worker_of_another_protocol_is_refused_with_both_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "worker.exchange.exchange_service.versions", SimpleNamespace(SPOKEN=Spoken(99))
    )
    async with in_process(tmp_path) as running, watched_pool(running.address) as watched:
        await until(lambda: watched.peer(running.address).state is PeerState.REFUSED)
        peer = watched.peer(running.address)
        assert f"speaks protocol {PROTOCOL}" in peer.reason
        assert "98 and 99" in peer.reason
        assert running.address in peer.reason
        assert "same version" in peer.cure
        assert watched.pool.ready() == {}


async def test_a_wrong_secret_is_named(tmp_path):
    async with (
        worker_process(tmp_path, SECRET="right") as running,
        watched_pool(running.address, trust=Trust("wrong")) as watched,
    ):
        await until(lambda: watched.peer(running.address).state is PeerState.REFUSED)
        assert "secret" in watched.peer(running.address).reason
        assert "same secret" in watched.peer(running.address).cure


async def test_a_copied_identity_is_named_and_the_first_kept(tmp_path, monkeypatch):
    async with worker_process(tmp_path / "a") as first, watched_pool(first.address) as watched:
        await watched.joined(first)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "id").write_text(f"{first.id}\n")
        monkeypatch.setattr("worker.machine.device_identity._boot_id", lambda: "another machine")
        async with in_process(tmp_path / "b") as second:
            assert second.id == first.id
            watched.pool.sighted(second.address, "static")
            await until(lambda: watched.peer(second.address).state is PeerState.REFUSED)
            peer = watched.peer(second.address)
            assert first.address in peer.reason
            assert "copied identity" in peer.cure
            assert watched.connection(first).address == first.address


async def test_worker_at_two_names_is_one_device(tmp_path):
    async with worker_process(tmp_path) as running:
        port = running.address.rpartition(":")[2]
        async with watched_pool(running.address, f"localhost:{port}") as watched:
            await watched.joined(running)
            states = {PeerState.READY, PeerState.ALIAS}
            await until(lambda: {peer.state for peer in watched.pool.peers} == states)
            assert len(watched.pool.ready()) == 1


async def test_a_malformed_frame_ends_the_connection_and_is_counted(tmp_path, monkeypatch):
    async def garbage(_service, _outbox, _context, stream):
        await (await stream).write([b"\xff\xff\xff\xffnot a frame"])

    monkeypatch.setattr("worker.exchange.exchange_service.GrpcService._write", garbage)
    async with in_process(tmp_path) as running, watched_pool(running.address) as watched:
        await until(lambda: watched.pool.losses["peer_violation"])
        assert "truncated frame" in watched.peer(running.address).reason


async def test_frames_go_past_grpc_or_over_it_where_the_port_cannot_be_reached(
    tmp_path, monkeypatch
):
    async with in_process(tmp_path / "a") as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        assert watched.connection(running)._stream.is_direct
    with socket.create_server(("127.0.0.1", 0)) as server:
        nowhere = server.getsockname()[1]
    monkeypatch.setattr(
        "worker.exchange.exchange_service.offer", lambda _port, token: offer(nowhere, token)
    )
    async with in_process(tmp_path / "a") as running, watched_pool(running.address) as watched:
        await watched.joined(running)
        assert not watched.connection(running)._stream.is_direct
        await watched.connection(running).send([pb.Item(release=pb.Release(requests=["r"]))])
        assert (await watched.connection(running).ping()).seconds > 0


async def test_an_item_that_its_receiver_refuses_ends_the_connection(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as watched:
        await watched.joined(running)

        def refuse(*_item):
            raise PeerViolation(cause="nobody asked", cure="none")

        watched.received = refuse
        await watched.connection(running).send([pb.Item(ping=pb.Ping())], [b""])
        await until(lambda: watched.pool.losses["peer_violation"] == 1)
        assert watched.peer(running.address).reason == "nobody asked"


async def test_a_stopped_pool_leaves_nothing_behind(tmp_path):
    before = asyncio.all_tasks()
    async with worker_process(tmp_path) as running:
        async with watched_pool(running.address, "127.0.0.1:1") as watched:
            await watched.joined(running)
        left = asyncio.all_tasks() - before
        assert not [task for task in left if "coordinator" in repr(task)]
        async with WorkerClient(running.address, Caller("host")) as client:
            await client.hello("1")


class Removing(Trust):
    """Removes each device while it is being connected to."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def require_member(self, device, address):
        self.asked += 1
        if self.asked > 1:
            raise BadConfiguration(cause=f"{device} was removed", cure="none")


async def test_a_device_that_is_removed_while_it_connects_is_not_used(tmp_path):
    trust = Removing()
    async with in_process(tmp_path) as running, watched_pool(running.address, trust=trust) as it:
        await until(lambda: trust.asked > 1)
        await until(lambda: "was removed" in it.peer(running.address).reason)
        assert it.pool.ready() == {}


async def test_calls_on_a_closing_connection_are_lost_not_cancelled(tmp_path):
    async with worker_process(tmp_path) as running, watched_pool(running.address) as it:
        await it.joined(running)
        connection = it.connection(running)
        os.kill(running.process.pid, signal.SIGSTOP)
        asking = [
            asyncio.create_task(connection.examine({}, 60.0)),
            asyncio.create_task(connection.measure(pb.MeasureRequest(), 60.0)),
        ]
        await asyncio.sleep(0.2)
        await connection.close()
        for each in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(each, LostWorker)
        os.kill(running.process.pid, signal.SIGCONT)
