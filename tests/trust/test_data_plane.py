"""The data plane under mutual TLS: who may send, and when that ends."""

import asyncio
import ssl
import threading
import time

import numpy as np
import pytest

from models.tensors.boxes import Box
from protos.errors import LostWorker
from protos.rpc.channels import Caller, make_channel
from protos.rpc.direct import accept_offer
from protos.rpc.serving import EXCHANGE
from protos.trust.identity import device_name
from protos.wire.endpoint import Endpoint
from tests.trust.support import BORDER as IN
from tests.trust.support import (
    HALL,
    KITCHEN,
    OFFICE,
    admit,
    at,
    caller,
    host,
    make_trust,
    member,
    pieces_of,
)
from tests.waiting import until
from tests.worker.support import (
    conv_program,
    install,
    joined,
    picture,
    send,
    task_item,
    until_done,
    whole,
)
from worker.peers.data_stream import DataStream, connect
from worker.peers.listener import DataListener
from worker.peers.offers import Offers
from worker.tasks.actions import SendToPeer, TaskKey, TensorPiece


async def told(trust, running, *members):
    """The coordinator says who is a member."""
    async with host(trust, running) as client:
        return (await client.hello("test", members=members)).counters


@pytest.fixture
async def cluster(tmp_path):
    """A cluster's trust and two members."""
    trust = make_trust(tmp_path / "host")
    async with (
        member(trust.certified, tmp_path / "kitchen", KITCHEN) as kitchen,
        member(trust.certified, tmp_path / "hall", HALL) as hall,
    ):
        for each in (kitchen, hall):
            await told(trust, each, KITCHEN, HALL)
        yield trust, kitchen, hall


async def test_borders_go_past_grpc_under_tls(cluster):
    trust, kitchen, hall = cluster
    x = picture()
    async with host(trust, kitchen) as to_kitchen, host(trust, hall) as to_hall:
        first, blobs = conv_program()
        second, _ = conv_program(blobs, names=("y", "z"), seed=1)
        await install(to_kitchen, first, blobs)
        await install(to_hall, second, blobs)
        near, far = to_kitchen.exchange(), to_hall.exchange()
        last = {"tensor": "z", "box": IN, "yields": IN}
        there = {"tensor": "y", "box": IN, "yields": IN, "to": hall.id, "address": hall.address}
        await far.write([task_item(second, {"y": IN}, [last], task=1)])
        await near.write([task_item(first, {"x": IN}, [{**there, "to_task": 1}])])
        await send(near, "x", IN, x)
        pieces, _ = await until_done(far)
        want = whole(whole(x), seed=1)
        assert np.abs(joined(pieces, IN) - want).max() <= 1e-5 * np.abs(want).max()
        await until_done(near)
    counters = await told(trust, kitchen, KITCHEN, HALL)
    assert counters["data_messages"] == 1
    assert "grpc_messages" not in counters


async def test_strangers_and_liars_are_not_let_in(cluster, tmp_path):
    trust, kitchen, _ = cluster
    stranger = caller(trust.certified, OFFICE, tmp_path / "office")
    with pytest.raises(LostWorker, match=r"let us in|reset|closed"):
        await asyncio.to_thread(connect, at(kitchen), KITCHEN, stranger)
    for liar in (Caller(HALL), Caller(HALL, "secret")):
        with pytest.raises(LostWorker):
            await asyncio.to_thread(connect, at(kitchen), KITCHEN, liar)
    renamed = caller(trust.certified, HALL, tmp_path / "renamed")
    as_another = Caller(KITCHEN, credentials=renamed.credentials)
    with pytest.raises(LostWorker, match=r"let us in|reset|closed"):
        await asyncio.to_thread(connect, at(kitchen), KITCHEN, as_another)
    other = make_trust(tmp_path / "other")
    foreign = caller(other.certified, HALL, tmp_path / "foreign")
    with pytest.raises(LostWorker):
        await asyncio.to_thread(connect, at(kitchen), KITCHEN, foreign)
    with pytest.raises(LostWorker, match="certificate"):
        await asyncio.to_thread(connect, at(kitchen), OFFICE, renamed)


async def test_the_streams_of_a_revoked_device_end_at_once(cluster, tmp_path):
    trust, kitchen, _ = cluster
    admit(trust.certified, OFFICE)
    await told(trust, kitchen, KITCHEN, HALL, OFFICE)
    own = caller(trust.certified, OFFICE, tmp_path / "office")
    opened = await asyncio.to_thread(connect, at(kitchen), KITCHEN, own)
    broken = []
    link = DataStream(opened, Endpoint())
    link.broken = lambda *what: broken.append(what)
    assert link.send(pieces_of("r1"))
    began_s = time.monotonic()
    await told(trust, kitchen, KITCHEN, HALL)
    await until(lambda: not link.send(pieces_of("r2")))
    assert time.monotonic() - began_s < 2.0
    assert broken
    link.close()
    with pytest.raises(LostWorker):
        await asyncio.to_thread(connect, at(kitchen), KITCHEN, own)


async def test_large_messages_follow_piece_by_piece_under_tls(tmp_path):
    trust = make_trust(tmp_path / "host")
    own, other = (caller(trust.certified, each, tmp_path / each) for each in (KITCHEN, HALL))
    heard = []
    listener = DataListener("127.0.0.1", 0, own, heard.append, Offers())
    listener.keep({HALL})
    opened = await asyncio.to_thread(connect, f"127.0.0.1:{listener.port}", KITCHEN, other)
    link = DataStream(opened, Endpoint())
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 64, rows, 100), np.float32) for rows in (1, 150, 3) * 12]
    senders = [
        threading.Thread(target=link.send, args=(SendToPeer("", "", (part,), part.key),))
        for number, array in enumerate(arrays)
        for part in [TensorPiece(TaskKey("r", 1, number, 0), "y", Box.whole(array.shape), array)]
    ]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    await until(lambda: len(heard) == len(arrays))
    assert {piece.sender for piece in heard} == {HALL}
    assert all(np.array_equal(piece.array, arrays[piece.key.task]) for piece in heard)
    link.close()
    listener.close()


async def test_no_session_is_resumed(cluster, tmp_path):
    trust, kitchen, _ = cluster
    own = caller(trust.certified, HALL, tmp_path / "hall-caller")
    opened = await asyncio.to_thread(connect, at(kitchen), KITCHEN, own)
    assert isinstance(opened, ssl.SSLSocket)
    assert opened.version() == "TLSv1.3"
    assert opened.session is None or not opened.session.has_ticket
    opened.close()


async def test_a_hosts_stream_goes_past_grpc_under_tls(cluster):
    trust, kitchen, _ = cluster
    program, blobs = conv_program()
    async with host(trust, kitchen) as client:
        await install(client, program, blobs)
        stream = client.exchange()
        await stream.go_direct(KITCHEN, trust.caller.credentials)
        assert stream.is_direct
        assert device_name(KITCHEN) in stream._direct.names
        x = picture()
        await stream.write(
            [task_item(program, {"x": IN}, [{"tensor": "y", "box": IN, "yields": IN}])]
        )
        await send(stream, "x", IN, x)
        pieces, _ = await until_done(stream)
        want = whole(x)
        assert np.abs(joined(pieces, IN) - want).max() <= 1e-5 * np.abs(want).max()


async def test_a_hosts_token_is_of_no_use_to_others(cluster, tmp_path):
    trust, kitchen, _ = cluster
    hall = caller(trust.certified, HALL, tmp_path / "hall-caller").credentials
    foreign = make_trust(tmp_path / "other").caller.credentials
    ours = trust.caller
    async with make_channel(kitchen.address, ours.credentials, device_name(KITCHEN)) as channel:
        call = channel.stream_stream(EXCHANGE)(metadata=ours.metadata)
        offered = await call.initial_metadata()
        for credentials in (hall, foreign, None):
            with pytest.raises(LostWorker):
                await accept_offer(offered, kitchen.address, KITCHEN, credentials)
        with pytest.raises(LostWorker, match="certificate"):
            await accept_offer(offered, kitchen.address, OFFICE, trust.caller.credentials)
        own = await accept_offer(offered, kitchen.address, KITCHEN, trust.caller.credentials)
        own.abort()
