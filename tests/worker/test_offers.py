"""A host's stream past gRPC: what it carries, when it ends, and what strangers do to it."""

import asyncio
import random
import socket
import struct
from functools import partial

import grpc
import numpy as np
import pytest

from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import LostWorker, WorkerStopped
from protos.rpc.channels import HOST, Caller, make_channel
from protos.rpc.direct import OFFER_KEY, PREFACE, TOKEN_BYTES, accept_offer, offer
from protos.rpc.serving import EXCHANGE
from protos.rpc.worker_client import ExchangeStream, WorkerClient
from tests.worker.support import (
    conv_program,
    in_process,
    install,
    joined,
    picture,
    task_item,
    tensor_item,
    until_done,
    whole,
)
from worker.peers.offers import MOST_STRANGERS

IN = Box.whole((1, 16, 12, 10))
Y = {"tensor": "y", "box": IN, "yields": IN}


@pytest.fixture
async def worker(tmp_path):
    async with in_process(tmp_path) as running:
        yield running


@pytest.fixture
async def client(worker):
    async with WorkerClient(worker.address, Caller(HOST), worker.id) as client:
        yield client


@pytest.fixture
async def exchange(worker):
    """Makes calls of Exchange, as gRPC has them."""
    async with make_channel(worker.address) as channel:
        yield partial(channel.stream_stream(EXCHANGE), metadata=Caller(HOST).metadata)


async def direct(client, worker):
    stream = client.exchange()
    await stream.go_direct(worker.id, None)
    assert stream.is_direct
    return stream


async def computes(stream, program, request="r"):
    x = picture()
    await stream.write([task_item(program, {"x": IN}, [Y], request=request)])
    await stream.write([tensor_item("x", IN, x, request=request)], [x])
    pieces, _ = await until_done(stream)
    np.testing.assert_allclose(joined(pieces, IN), whole(x), atol=1e-5)


async def told_to(worker, exchange):
    """(a call that was offered a stream, its token)"""
    call = exchange()
    port, token = dict(await call.initial_metadata())[OFFER_KEY].split()
    assert int(port) == worker.data_port
    return call, token


def connection(worker):
    stream = socket.create_connection(("127.0.0.1", worker.data_port), 5)
    stream.sendall(PREFACE)
    return stream


def token_message(token):
    return struct.pack("<I", len(token)) + token.encode()


async def let_in(worker, token):
    """A connection that the worker has welcomed."""
    stream = connection(worker)
    stream.sendall(token_message(token))
    assert await asyncio.to_thread(stream.recv, 4) == bytes(4)
    return stream


async def hung_up(stream):
    """Returns when the worker has closed the connection."""
    stream.settimeout(10)
    try:
        while await asyncio.to_thread(stream.recv, 1 << 16):
            pass
    except ConnectionError:
        pass
    stream.close()


async def test_a_task_goes_and_its_result_comes_past_grpc(worker, client):
    program, blobs = conv_program()
    await install(client, program, blobs)
    stream = await direct(client, worker)
    for number in range(3):
        await computes(stream, program, f"r{number}")
    by_call = client.exchange()
    assert not by_call.is_direct
    await computes(by_call, program, "by call")
    # Neighbours are offered nothing: what they may send goes to the data plane.
    async with WorkerClient(worker.address, Caller("b" * 16)) as neighbour:
        theirs = neighbour.exchange()
        await theirs.go_direct(worker.id, None)
        assert not theirs.is_direct


async def test_large_tensors_both_ways(worker, client):
    program, blobs = conv_program()
    await install(client, program, blobs)
    stream = await direct(client, worker)
    x = picture(700, 300)
    box = Box.whole(x.shape)
    output = {"tensor": "y", "box": box, "yields": box}
    await stream.write([task_item(program, {"x": box}, [output]), tensor_item("x", box, x)], [x])
    pieces, _ = await until_done(stream)
    assert len(pieces) > 2
    np.testing.assert_allclose(joined(pieces, box), whole(x), atol=1e-5)


async def test_the_stream_ends_with_its_call_and_the_call_with_it(worker, client, exchange):
    stream = await direct(client, worker)
    stream.cancel()
    with pytest.raises(LostWorker):
        await stream.read()
    with pytest.raises(LostWorker):
        await stream.write([pb.Item(release=pb.Release(requests=["r"]))])
    call, token = await told_to(worker, exchange)
    broken = await accept_offer(offer(worker.data_port, token), worker.address, worker.id, None)
    broken.abort()
    assert await call.code() is grpc.StatusCode.OK


async def test_the_stream_ends_with_its_channel(worker):
    async with WorkerClient(worker.address, Caller(HOST), worker.id) as short:
        stream = await direct(short, worker)
    async with asyncio.timeout(60):
        with pytest.raises(LostWorker):
            await stream.read()


async def test_a_worker_that_stops_ends_the_stream_cleanly(tmp_path):
    async with in_process(tmp_path) as running:
        client = WorkerClient(running.address, Caller(HOST), running.id)
        stream = await direct(client, running)
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
    with pytest.raises(WorkerStopped):
        await reading
    await client.close()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (struct.pack("<I", 65 << 20), "limit 67108864"),
        (struct.pack("<I", 4) + b"\xff\xff\xff\xff", "truncated"),
        (struct.pack("<I", 0), "truncated"),
        (struct.pack("<I", 9) + struct.pack("<I", 5) + b"\xff" * 5, "cannot be read"),
    ],
)
async def test_a_host_that_sends_nonsense_is_told_so(worker, exchange, message, says):
    call, token = await told_to(worker, exchange)
    stream = await let_in(worker, token)
    stream.sendall(message)
    assert says in await call.details()
    await hung_up(stream)


async def test_half_a_frame_ends_the_stream_and_nothing_else(worker, client, exchange):
    program, blobs = conv_program()
    await install(client, program, blobs)
    other = await direct(client, worker)
    call, token = await told_to(worker, exchange)
    stream = await let_in(worker, token)
    stream.sendall(struct.pack("<I", 100) + b"half")
    stream.close()
    assert await call.code() is grpc.StatusCode.OK
    await computes(other, program)


async def test_a_token_is_good_for_one_stream_of_an_open_call(worker, exchange):
    call, token = await told_to(worker, exchange)
    assert len(token) == TOKEN_BYTES
    address = worker.address
    first = await accept_offer(offer(worker.data_port, token), address, worker.id, None)
    with pytest.raises(LostWorker, match="let us in"):
        await accept_offer(offer(worker.data_port, token), address, worker.id, None)
    call.cancel()
    assert await first.read() is None
    late, token = await told_to(worker, exchange)
    late.cancel()
    await late.code()
    # The worker hears of it a little later than we.
    async with asyncio.timeout(60):
        while stream := await _accepted(worker, token):
            stream.abort()


async def _accepted(worker, token):
    try:
        return await accept_offer(offer(worker.data_port, token), worker.address, worker.id, None)
    except LostWorker:
        return None


async def test_strangers_are_hung_up_on(worker, client, exchange):
    rng = random.Random(0)
    _, token = await told_to(worker, exchange)
    wrong = [
        token_message("x" * TOKEN_BYTES),
        token_message(token[:-1]),
        token_message(token.upper() + " "),
        struct.pack("<I", TOKEN_BYTES + 1) + token.encode() + b"x",
        struct.pack("<I", 2**32 - 1),
        struct.pack("<I", 0),
        b"\xff\xfe\0\0" + b"\xff" * 8,
        b"imbrex\x01" + bytes(20),
        *(struct.pack("<I", size) + rng.randbytes(size) for size in (1, 7, 31, 32)),
    ]
    for data in wrong:
        stream = connection(worker)
        stream.sendall(data)
        await hung_up(stream)
    # Who says nothing is not waited for, whoever comes in large numbers neither.
    silent = [connection(worker) for _ in range(3 * MOST_STRANGERS)]
    program, blobs = conv_program()
    await install(client, program, blobs)
    await computes(await direct(client, worker), program)
    for stream in silent:
        await hung_up(stream)


async def test_mangled_greetings_and_messages_harm_nobody(worker, client, exchange):
    program, blobs = conv_program()
    await install(client, program, blobs)
    good = await direct(client, worker)
    rng = random.Random(1)
    for number in range(200):
        call, token = await told_to(worker, exchange)
        data = bytearray(token_message(token) + struct.pack("<I", 20) + rng.randbytes(20))
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        stream = connection(worker)
        stream.sendall(data[: rng.randrange(1, len(data) + 1)])
        stream.close()
        call.cancel()
        if number % 50 == 0:
            await computes(good, program, f"r{number}")
    await computes(good, program, "last")


async def test_frames_go_over_the_call_where_the_port_cannot_be_reached(worker, client, exchange):
    program, blobs = conv_program()
    await install(client, program, blobs)
    call = exchange()
    with socket.create_server(("127.0.0.1", 0)) as server:
        nowhere = server.getsockname()[1]
    metadata = call.initial_metadata

    async def elsewhere():
        assert await metadata()
        return offer(nowhere, "t")

    call.initial_metadata = elsewhere
    stream = ExchangeStream(call, worker.address, Caller(HOST).endpoint)
    with pytest.raises(LostWorker, match="refused"):
        await stream.go_direct(worker.id, None)
    assert not stream.is_direct
    await computes(stream, program)
