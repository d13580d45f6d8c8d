"""Weights and programs on their way to a real worker."""

import asyncio
import hashlib
import os

import numpy as np
import pytest

from models.cut.program import BlobSource, Program
from protos import imbrex_pb2 as pb
from protos.errors import BadRequest, ImbrexError, Infeasible, LostWorker
from protos.rpc.channels import HOST, Caller
from protos.rpc.worker_client import CHUNK_BYTES, WorkerClient
from tests.devices.support import connected, watched_pool, worker_process
from tests.waiting import until
from tests.worker.support import conv_program, in_process, message_of


@pytest.fixture
async def connection(tmp_path):
    async with (
        in_process(tmp_path / "state") as running,
        connected(running.address) as (opened,),
    ):
        yield opened


class Puts:
    """Watches which blobs are sent, and from which byte."""

    def __init__(self, monkeypatch):
        self.sent = []
        real = WorkerClient.put

        async def put(client, sha256, parts, total_bytes, offset=0):
            self.sent.append((sha256, offset))
            await real(client, sha256, parts, total_bytes, offset)

        monkeypatch.setattr(WorkerClient, "put", put)


def big_program(megabytes):
    """A program with one large weight: adds a constant to `x`."""
    from onnx import TensorProto, helper

    blobs = BlobSource()
    values = np.frombuffer(os.urandom(megabytes << 20), np.uint8)
    graph = helper.make_graph(
        [helper.make_node("Max", ["x", "w"], ["y"])],
        "big",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [len(values)])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [len(values)])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    from models.cut.program import WeightRef

    ref = WeightRef("w", blobs.add(values), TensorProto.UINT8, (len(values),))
    return Program(model.SerializeToString(), (ref,)), blobs


async def test_weights_are_sent_once_and_progress_is_told(connection, monkeypatch):
    puts = Puts(monkeypatch)
    program, blobs = conv_program()
    other, _ = conv_program(blobs, pads=(0, 0, 0, 0))
    told = []
    await connection.ensure([program], blobs, lambda *_: told.append(connection.programs.arriving))
    assert connection.programs.arriving is None
    assert len(puts.sent) == 2
    assert program.sha256 in connection.programs.ready
    total = sum(len(blobs.bytes_of(ref.sha256)) for ref in program.weights)
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    await connection.ensure([program], blobs)
    await connection.ensure([program, other], blobs)
    assert len(puts.sent) == 2


async def test_concurrent_callers_share_one_transfer(connection, monkeypatch):
    puts = Puts(monkeypatch)
    program, blobs = big_program(4)
    await asyncio.gather(*(connection.ensure([program], blobs) for _ in range(5)))
    assert len(puts.sent) == 1


async def test_a_cancelled_caller_does_not_stop_the_next(connection):
    program, blobs = big_program(16)
    began = asyncio.Event()
    first = asyncio.create_task(connection.ensure([program], blobs, lambda *_: began.set()))
    second = asyncio.create_task(connection.ensure([program], blobs))
    await began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert program.sha256 in connection.programs.ready


async def test_a_broken_transfer_resumes_where_it_stopped(connection, monkeypatch):
    program, blobs = big_program(3)
    (ref,) = program.weights
    data = bytes(blobs.bytes_of(ref.sha256))
    async with WorkerClient(connection.address, Caller(HOST)) as client:
        with pytest.raises(BadRequest, match="ended after"):
            await client.put(ref.sha256, [data[:CHUNK_BYTES]], len(data))
    puts = Puts(monkeypatch)
    told = []
    await connection.ensure([program], blobs, lambda *each: told.append(each))
    assert puts.sent == [(ref.sha256, CHUNK_BYTES)]
    assert told[0] == (CHUNK_BYTES, len(data))


async def test_bytes_that_differ_from_their_hash_are_refused(connection):
    program, blobs = big_program(1)

    class Corrupted(BlobSource):
        size_of = blobs.size_of

        def chunks(self, sha256, offset, most_bytes):
            first, *rest = blobs.chunks(sha256, offset, most_bytes)
            data = bytearray(first)
            data[1000] ^= 1
            return [memoryview(data), *rest]

    with pytest.raises(ImbrexError, match="corrupted on the way"):
        await connection.ensure([program], Corrupted())
    assert program.sha256 not in connection.programs.ready
    await connection.ensure([program], blobs)
    assert program.sha256 in connection.programs.ready


async def test_a_program_that_cannot_run_is_named_and_the_others_are_ready(connection):
    good, blobs = conv_program()
    bad = Program(b"not a graph", ())
    with pytest.raises(Infeasible, match="cannot prepare a program") as told:
        await connection.ensure([good, bad], blobs)
    assert connection.address in told.value.cause
    assert bad.sha256 not in connection.programs.ready
    await connection.ensure([good], blobs)


async def test_a_worker_that_forgot_is_supplied_again(connection):
    program, blobs = conv_program()
    await connection.ensure([program], blobs)
    assert await connection.programs.retain([]) > 0
    assert program.sha256 not in connection.programs.ready
    await connection.ensure([program], blobs)
    connection.programs.forget(program.sha256)
    assert program.sha256 not in connection.programs.ready


async def test_measure_times_a_program(connection):
    program, blobs = conv_program()
    await connection.ensure([program], blobs)
    message = message_of(program)
    spec = pb.TensorSpec(tensor="x", data_type=1, dims=[1, 16, 32, 32])
    reply = await connection.measure(
        pb.MeasureRequest(program=message, inputs=[spec], repeats=3, at_most_s=5), 20
    )
    assert len(reply.seconds) == 3
    assert all(seconds > 0 for seconds in reply.seconds)


async def test_a_loss_in_a_transfer_is_told_at_once_and_the_rest_follows_later(tmp_path):
    program, blobs = big_program(64)
    sha256 = program.weights[0].sha256
    assert hashlib.sha256(blobs.bytes_of(sha256)).hexdigest() == sha256
    partial = tmp_path / "partial" / sha256
    async with worker_process(tmp_path) as first:
        port = first.address.rpartition(":")[2]
        async with watched_pool(first.address) as watched:
            await watched.joined(first)
            ensuring = asyncio.create_task(watched.connection(first).ensure([program], blobs))
            await until(lambda: partial.exists() and partial.stat().st_size >= CHUNK_BYTES)
            first.process.kill()
            with pytest.raises(LostWorker):
                await ensuring
            arrived = partial.stat().st_size
            async with worker_process(tmp_path, PORT=port) as second:
                await watched.joined(second)
                told = []
                connection = watched.connection(second)
                await connection.ensure([program], blobs, lambda *each: told.append(each))
                assert told[0] == (arrived, 64 << 20)


async def test_two_coordinators_send_the_same_weights_at_a_time(tmp_path):
    program, blobs = big_program(8)
    async with (
        in_process(tmp_path / "state") as running,
        connected(running.address, running.address) as both,
    ):
        await asyncio.gather(*(each.ensure([program], blobs) for each in both))
        assert all(program.sha256 in each.programs.ready for each in both)
