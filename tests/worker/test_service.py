import asyncio

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from models.cut.program import Program
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import BadRequest, ImbrexError, LostWorker, PeerViolation, WorkerStopped
from protos.rpc.channels import Caller, make_channel
from protos.rpc.serving import EXCHANGE, SERVICE
from protos.rpc.worker_client import WorkerClient
from protos.wire.convert import box_message
from tests.worker.support import (
    conv_model,
    conv_program,
    in_process,
    install,
    joined,
    message_of,
    picture,
    ready,
    send,
    task_item,
    tensor_item,
    until_done,
    whole,
)

IN = OUT = Box.whole((1, 16, 12, 10))


Y = {"tensor": "y", "box": OUT, "yields": OUT}


def same(got, expected):
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


async def test_hello_tells_the_facts(client, worker):
    reply = await client.hello("1.0")
    assert reply.facts.id == worker.id
    assert reply.facts.cores >= 1
    assert reply.facts.memory_bytes > 1 << 20
    assert reply.facts.boot_id
    assert reply.resident_bytes > 1 << 20
    assert reply.counters["tasks_run"] == 0


async def test_weights_are_fetched_once_and_resumed(client):
    program, blobs = conv_program()
    reply = await client.prepare([message_of(program)])
    assert list(reply.missing) == [ref.sha256 for ref in program.weights]
    large = reply.missing[0]
    data = blobs.bytes_of(large)
    with pytest.raises(BadRequest, match="ended after 100 of"):
        await put_raw(
            client, pb.BlobChunk(sha256=large, total_bytes=len(data), data=data[:100].tobytes())
        )
    assert (await client.missing(reply.missing))[large] == 100
    await client.put(large, [data[100:]], len(data), 100)
    assert large not in await client.missing(reply.missing)
    await client.put(large, [data], len(data))  # again: nothing happens
    await install(client, program, blobs)


async def put_raw(client, *chunks):
    async def stream():
        for chunk in chunks:
            yield chunk

    return await client._call("Put", stream(), None)


async def test_corrupted_weights_are_refused_and_can_be_sent_again(client):
    program, blobs = conv_program()
    sha256 = program.weights[0].sha256
    data = bytearray(blobs.bytes_of(sha256))
    data[7] ^= 1
    with pytest.raises(BadRequest, match="corrupted"):
        await client.put(sha256, [bytes(data)], len(data))
    assert await client.missing([sha256]) == {sha256: 0}
    await install(client, program, blobs)


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([], "without a name"),
        ([pb.BlobChunk(data=b"x")], "without a name"),
        ([pb.BlobChunk(sha256="../x", total_bytes=1, data=b"x")], "not a SHA-256"),
        ([pb.BlobChunk(sha256="0" * 64, total_bytes=2**40)], "MB"),
    ],
)
async def test_puts_that_make_no_sense(client, chunks, says):
    with pytest.raises(BadRequest, match=says):
        await put_raw(client, *chunks)


async def test_bad_program_does_not_keep_the_others_from_being_prepared(client):
    program, blobs = conv_program()
    await install(client, program, blobs)
    bad = conv_model(opset=6)[0]
    wrong = message_of(Program(bad.SerializeToString(), ()))
    changed = message_of(program)
    changed.graph += b"\0"
    reply = await client.prepare([wrong, changed, message_of(program)])
    errors = [entry.error for entry in reply.programs]
    assert "opset 6" in errors[0]
    assert "does not match its hash" in errors[1]
    assert errors[2] == ""


async def test_a_program_that_onnxruntime_refuses(client):
    model = conv_model()[0]
    model.graph.node[0].op_type = "NoSuchOperator"
    reply = await client.prepare([message_of(Program(model.SerializeToString(), ()))])
    assert "NoSuchOperator" in reply.programs[0].error


async def test_a_task_from_the_first_frame_to_the_last(client):
    program = await ready(client)
    stream = client.exchange()
    x = picture()
    await stream.write([task_item(program, {"x": IN}, [Y])])
    await send(stream, "x", IN, x)
    pieces, (done,) = await until_done(stream)
    same(joined(pieces, OUT), whole(x))
    assert done.ready_s <= done.start_s <= done.stop_s
    assert (await client.hello("1")).counters["tasks_run"] == 1


async def test_a_task_by_pieces_from_two_senders_and_only_a_box_of_its_output(worker, client):
    program = await ready(client)
    x = picture()
    want = Box.of((0, 1), (3, 9), (2, 7), (0, 10))
    stream = client.exchange()
    top, bottom = (
        Box.of((0, 1), (0, 16), (0, 5), (0, 10)),
        Box.of((0, 1), (0, 16), (5, 12), (0, 10)),
    )
    async with WorkerClient(worker.address, Caller("another-device")) as peer:
        peers = peer.exchange()
        await send(peers, "x", bottom, x[bottom.slices()])
        await stream.write([task_item(program, {"x": IN}, [Y | {"box": want}])])
        await send(stream, "x", top, x[top.slices()])
        pieces, _ = await until_done(stream)
    same(joined(pieces, want), whole(x)[want.slices()])


async def test_outputs_above_four_megabytes_come_in_pieces(client):
    program = await ready(client)
    x = picture(300, 300)
    box = Box.whole(x.shape)
    stream = client.exchange()
    await stream.write(
        [task_item(program, {"x": box}, [{"tensor": "y", "box": box, "yields": box}])]
    )
    await send(stream, "x", box, x)
    pieces, _ = await until_done(stream)
    assert len(pieces) == 2
    same(joined(pieces, box), whole(x))


async def test_strangers_and_duplicates_do_no_harm_and_are_counted(client):
    program = await ready(client)
    stream = client.exchange()
    x = picture()
    await stream.write([task_item(program, {"x": IN}, [Y])])
    await send(stream, "q", IN, x)
    await send(stream, "x", IN, x.astype(np.float64))
    small = Box.of((0, 1), (0, 16), (0, 2), (0, 10))
    await send(stream, "x", small, x[small.slices()])
    await send(stream, "x", small, x[small.slices()])
    await send(stream, "x", IN, x, task=99)
    await send(stream, "x", IN, x)
    pieces, _ = await until_done(stream)
    same(joined(pieces, OUT), whole(x))
    counters = (await client.hello("1")).counters
    assert (counters["stranger"], counters["wrong_size"], counters["duplicate"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"program": "0" * 64}, "no_program"),
        ({"outputs": [Y | {"yields": Box.whole((1, 16, 12, 11))}]}, "bad_input"),
        ({"outputs": [Y | {"tensor": "q"}]}, "bad_input"),
    ],
)
async def test_a_task_that_fails_says_why_and_the_worker_goes_on(client, change, code):
    program = await ready(client)
    stream = client.exchange()
    x = picture()
    item = task_item(program, {"x": IN}, change.get("outputs", [Y]))
    item.task.program = change.get("program", program.sha256)
    await stream.write([item])
    await send(stream, "x", IN, x)
    _, (failed,) = await until_done(stream)
    assert (failed.code, failed.request) == (code, "r")
    assert failed.message
    await stream.write([task_item(program, {"x": IN}, [Y], request="s")])
    await send(stream, "x", IN, x, request="s")
    pieces, _ = await until_done(stream)
    same(joined(pieces, OUT), whole(x))


async def test_tasks_that_were_set_up_before_they_were_full(client):
    program = await ready(client)
    stream = client.exchange()
    tasks = [task_item(program, {"x": IN}, [Y], task=number) for number in range(4)]
    tasks[3].task.program = "0" * 64
    await stream.write(tasks)
    await send(stream, "x", IN, picture())
    await until_done(stream)
    for number in (2, 1):
        x = picture(seed=number)
        for rows in ((0, 5), (5, 12)):
            part = Box.of((0, 1), (0, 16), rows, (0, 10))
            await send(stream, "x", part, x[part.slices()], task=number)
        pieces, (done,) = await until_done(stream)
        assert done.task == number
        same(joined(pieces, OUT), whole(x))
    await send(stream, "x", IN, picture(), task=3)
    _, (failed,) = await until_done(stream)
    assert (failed.task, failed.code) == (3, "no_program")


async def test_outputs_can_be_asked_for_again_until_the_request_is_released(client):
    program = await ready(client)
    stream = client.exchange()
    x = picture()
    await stream.write([task_item(program, {"x": IN}, [Y])])
    await send(stream, "x", IN, x)
    await until_done(stream)
    part = Box.of((0, 1), (0, 16), (2, 4), (0, 10))
    output = pb.Task.Output(tensor="y", box=box_message(part), yields=box_message(OUT), to="host")
    again = pb.Resend(request="r", plan_version=1, outputs=[output])
    await stream.write([pb.Item(resend=again)])
    ((item, payload),) = await stream.read()
    same(joined([(item.tensor, payload)], part), whole(x)[part.slices()])
    await stream.write([pb.Item(release=pb.Release(requests=["r"])), pb.Item(resend=again)])
    _, (failed,) = await until_done(stream)
    assert failed.code == "no_output"


async def test_tasks_of_a_host_that_left_are_forgotten(client):
    program = await ready(client)
    stream = client.exchange()
    await stream.write([task_item(program, {"x": IN}, [Y])])
    stream.cancel()
    again = client.exchange()
    await again.write([task_item(program, {"x": IN}, [Y], request="s")])
    await send(again, "x", IN, picture(), request="s")
    await until_done(again)


async def test_pings_measure_latency_and_bandwidth(client):
    stream = client.exchange()
    ping = pb.Ping(number=5, sent_s=1.5, reply_bytes=1000)
    await stream.write([pb.Item(ping=ping)], [bytes(500)])
    ((item, payload),) = await stream.read()
    assert (item.pong.number, item.pong.sent_s, len(payload)) == (5, 1.5, 1000)
    assert item.pong.received_s > 0


@pytest.mark.parametrize("message", [b"", b"\xff\xff\xff\xff", b"\x08\0\0\0truncat"])
async def test_a_malformed_frame_ends_the_stream_but_not_the_worker(worker, client, message):
    async with make_channel(worker.address) as channel:
        call = channel.stream_stream(EXCHANGE)(metadata=Caller("host").metadata)
        await call.write(message)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await client.hello("1")).facts.id == worker.id


async def test_only_a_host_may_give_orders(worker):
    program, _ = conv_program()
    async with WorkerClient(worker.address, Caller("some-device")) as peer:
        stream = peer.exchange()
        await stream.write([task_item(program, {"x": IN}, [Y])])
        with pytest.raises(PeerViolation, match="only a host"):
            await stream.read()


async def test_health_is_told(worker):
    async with make_channel(worker.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_worker_that_stops_ends_its_streams(tmp_path):
    async with in_process(tmp_path / "state") as running:
        client = WorkerClient(running.address, Caller("host"))
        stream = client.exchange()
        await stream.write([tensor_item("x", IN, picture())], [picture()])
        reading = asyncio.create_task(stream.read())
        await client.hello("1")
    with pytest.raises(WorkerStopped):
        await reading
    with pytest.raises(ImbrexError):
        await stream.write([])
    with pytest.raises(LostWorker):
        await client.hello("1")
    await client.close()
