"""What a member can do to a worker by streams and calls of its own: waste its own share."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import psutil
import pytest

from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, PeerViolation
from protos.rpc.channels import make_channel
from protos.rpc.gates import MOST_CALLS_OF_A_MEMBER
from protos.rpc.serving import EXCHANGE, SERVICE
from protos.trust.identity import device_name
from protos.wire.convert import box_message
from tests.trust.support import (
    HALL,
    KITCHEN,
    OFFICE,
    caller,
    give_identity,
    host,
    member,
    neighbour,
)
from tests.waiting import until
from tests.worker.support import (
    conv_program,
    install,
    joined,
    picture,
    process,
    task_item,
    tensor_item,
    until_done,
    whole,
)

MB = 1 << 20
IN = Box.whole((1, 16, 12, 10))
TOP = Box.of((0, 1), (0, 16), (0, 6), (0, 10))
Y = {"tensor": "y", "box": IN, "yields": IN}
ONE = Box.of((0, 1))
LARGEST = 60 * MB
# What waits for its task, at most; besides, messages on their way, and their copies.
EARLY = 64 * MB


@pytest.fixture
def worker(trust, tmp_path):
    """The kitchen's worker in a process of its own."""
    give_identity(trust.certified, tmp_path / "kitchen", KITCHEN)
    with process(tmp_path / "kitchen", within=("env",)) as running:
        yield running


@contextlib.asynccontextmanager
async def met(trust, worker, folder):
    """The coordinator, which has said that the hall and the office are members, and the hall."""
    async with host(trust, worker) as us, neighbour(trust, worker, HALL, folder) as hall:
        await us.hello("1", members=[KITCHEN, HALL, OFFICE])
        yield us, hall


def grown(worker, before: int) -> int:
    return psutil.Process(worker.process.pid).memory_info().rss - before


def floods() -> Iterator[tuple[str, list[tuple[list[pb.Item], list[Any]]]]]:
    """Tensors for tasks that don't exist, by what is large about them."""
    number, tiny = np.zeros(1, np.float32), np.zeros(0, np.float32)
    many = [tensor_item("x", Box.of((0, 0)), tiny, request=f"r{n}") for n in range(1000)]
    yield "empty ones", [(many, [tiny] * 1000)] * 60
    huge = np.zeros(LARGEST // 4, np.float32)
    padded = [
        (
            [
                tensor_item("x", ONE, number, request=f"r{n}"),
                tensor_item("x", Box.whole(huge.shape), huge, request="other"),
            ],
            [number, huge],
        )
        for n in range(20)
    ]
    yield "small ones in huge messages", padded
    named = [
        ([tensor_item("x", ONE, number, request=f"{n:04}" * 25_000)], [number]) for n in range(2000)
    ]
    yield "long names", named
    part = np.zeros(4 * MB // 4, np.float32)
    box = Box.whole(part.shape)
    yield (
        "of full size",
        [([tensor_item("x", box, part, request=f"{n}")], [part]) for n in range(60)],
    )


FLOODS = dict(floods())


async def answers(us, program, request: str) -> None:
    """A task is computed, and is right."""
    stream, x = us.exchange(), picture()
    await stream.write(
        [
            task_item(program, {"x": IN}, [Y], request=request),
            tensor_item("x", IN, x, request=request),
        ],
        [x],
    )
    pieces, _ = await until_done(stream)
    np.testing.assert_allclose(joined(pieces, IN), whole(x), atol=1e-5)
    stream.cancel()


@pytest.mark.parametrize("kind", list(FLOODS))
async def test_a_members_flood_takes_bounded_memory_and_others_are_served(
    trust, worker, tmp_path, kind
):
    program, blobs = conv_program()
    async with met(trust, worker, tmp_path) as (us, hall), asyncio.timeout(200):
        await install(us, program, blobs)
        await answers(us, program, "before")
        before = psutil.Process(worker.process.pid).memory_info().rss
        stream = hall.exchange()
        for number, (items, payloads) in enumerate(FLOODS[kind]):
            await stream.write(items, payloads)
            if number % 20 == 0:
                await answers(us, program, f"meanwhile {number}")
        await answers(us, program, "after")
        while (await us.hello("1")).counters.get("early_overflow", 0) == 0:
            await asyncio.sleep(0.05)  # what it sent is still being read
    await until(lambda: grown(worker, before) < EARLY + 6 * LARGEST)  # copies are freed


async def test_a_member_cannot_put_its_numbers_into_tasks_of_others(trust, worker, tmp_path):
    """It knows the request, the task, everything; but the host has named the office."""
    program, blobs = conv_program()
    x, lie = picture(), np.full(IN.shape, 7, np.float32)
    task = task_item(program, {"x": IN}, [Y])
    task.task.sources_named = True
    task.task.inputs[0].sources.add(device=OFFICE, box=box_message(IN))
    async with (
        met(trust, worker, tmp_path) as (us, hall),
        neighbour(trust, worker, OFFICE, tmp_path) as office,
        asyncio.timeout(60),
    ):
        await install(us, program, blobs)
        liar, honest, stream = hall.exchange(), office.exchange(), us.exchange()
        await liar.write([tensor_item("x", IN, lie)], [lie])
        await stream.write([task])
        await liar.write([tensor_item("x", TOP, lie[:, :, :6])], [lie[:, :, :6]])
        while (await us.hello("1")).counters.get("wrong_sender", 0) < 2:
            pass
        await honest.write([tensor_item("x", IN, x)], [x])
        pieces, _ = await until_done(stream)
    np.testing.assert_allclose(joined(pieces, IN), whole(x), atol=1e-5)


@pytest.mark.parametrize("kind", ["ping", "release", "task"])
async def test_a_member_may_send_tensors_alone(trust, tmp_path, kind):
    items = {
        "ping": pb.Item(ping=pb.Ping(reply_bytes=16 << 20)),
        "release": pb.Item(release=pb.Release(requests=["r"])),
        "task": task_item(conv_program()[0], {"x": IN}, [Y]),
    }
    async with (
        member(trust.certified, tmp_path / "office", OFFICE) as running,
        host(trust, running) as us,
        neighbour(trust, running, HALL, tmp_path) as hall,
    ):
        await us.hello("1", members=[OFFICE, HALL])
        stream = hall.exchange()
        await stream.write([items[kind]], [b""] if kind == "ping" else [])
        with pytest.raises(PeerViolation, match=f"a peer sent '{kind}', which only a host may"):
            await stream.read()


async def test_a_header_that_would_hold_the_loop_is_not_read(trust, worker, tmp_path):
    number = np.zeros(0, np.float32)
    items = [tensor_item("x", Box.of((0, 0)), number) for _ in range(20_000)]
    async with met(trust, worker, tmp_path) as (_, hall):
        stream = hall.exchange()
        await stream.write(items, [number] * len(items))
        with pytest.raises(PeerViolation, match="a frame whose header has"):
            await stream.read()


async def test_a_member_has_few_calls_open_and_the_host_gets_in(trust, worker, tmp_path):
    program, blobs = conv_program()
    async with contextlib.AsyncExitStack() as stack:
        us, _ = await stack.enter_async_context(met(trust, worker, tmp_path))
        await install(us, program, blobs)
        client = await stack.enter_async_context(neighbour(trust, worker, HALL, tmp_path))
        reading = {asyncio.create_task(client.exchange().read()) for _ in range(200)}
        while len(reading) > MOST_CALLS_OF_A_MEMBER:
            done, reading = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                with pytest.raises(BadConfiguration, match=rf"{MOST_CALLS_OF_A_MEMBER} calls open"):
                    each.result()
        await answers(us, program, "r")
        for each in reading:
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


@pytest.mark.parametrize("method", ["Hello", "Prepare", "Exchange"])
@pytest.mark.parametrize("who", [HALL, "d" * 16])
async def test_refused_messages_leave_nothing_behind(trust, worker, tmp_path, method, who):
    """Of a member, and of a device with a certificate that is none: 60 MB each, many times."""
    known = caller(trust.certified, who, tmp_path / "who")
    path = EXCHANGE if method == "Exchange" else f"/{SERVICE}/{method}"
    message, codes = bytes(LARGEST), set()
    async with met(trust, worker, tmp_path) as (us, _), asyncio.timeout(100):
        before = psutil.Process(worker.process.pid).memory_info().rss
        for _ in range(10):
            async with make_channel(
                worker.address, known.credentials, device_name(KITCHEN)
            ) as channel:
                if method == "Exchange":
                    stream = channel.stream_stream(path)(metadata=known.metadata)
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await stream.write(message)
                        while await stream.read() is not grpc.aio.EOF:
                            pass
                    codes.add(await stream.code())
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(path)(message, metadata=known.metadata)
                codes.add(caught.value.code())
        await us.hello("1")
    code = grpc.StatusCode
    # INTERNAL: gRPC's word for a stream that ended while its message was still being sent.
    assert codes <= {code.UNAUTHENTICATED, code.INVALID_ARGUMENT, code.INTERNAL}
    # What gRPC has of the last message goes when it has noticed its end: late on a busy machine.
    await until(lambda: grown(worker, before) < 3 * LARGEST, within_s=120)
