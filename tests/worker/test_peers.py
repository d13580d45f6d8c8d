import asyncio
import gc
import threading

import numpy as np
import pytest

from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import ImbrexError, LostWorker
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.waiting import until
from tests.worker.support import (
    conv_program,
    in_process,
    install,
    joined,
    picture,
    send,
    task_item,
    until_done,
    whole,
)
from tests.worker.test_service import same
from worker.exchange.exchange_service import GrpcService
from worker.peers.listener import DataListener
from worker.peers.neighbours import Neighbours
from worker.tasks import state
from worker.tasks.actions import SendToPeer, TaskKey, TensorPiece

IN = Box.whole((1, 16, 12, 10))
TOP, BOTTOM = Box.of((0, 1), (0, 16), (0, 6), (0, 10)), Box.of((0, 1), (0, 16), (6, 12), (0, 10))


@pytest.fixture
async def two(tmp_path):
    """Two workers that know the same programs, and a stream to each."""
    async with (
        in_process(tmp_path / "a", secret="s") as a,
        in_process(tmp_path / "b", secret="s") as b,
        WorkerClient(a.address, Caller("host", "s")) as to_a,
        WorkerClient(b.address, Caller("host", "s")) as to_b,
    ):
        first, blobs = conv_program()
        second, _ = conv_program(blobs, names=("y", "z"), seed=1)
        for client in (to_a, to_b):
            await install(client, first, blobs)
            await install(client, second, blobs)
        yield a, b, to_a.exchange(), to_b.exchange(), first, second


def output(box, **fields):
    return {"tensor": "y", "box": box, "yields": IN, **fields}


async def test_a_chain_over_two_workers_with_nothing_through_the_host(two):
    _, b, to_a, to_b, first, second = two
    x = picture()
    halves = [
        output(half, to=b.id, address=b.address, to_task=1, to_attempt=2) for half in (TOP, BOTTOM)
    ]
    last = {"tensor": "z", "box": IN, "yields": IN}
    for request in ("r1", "r2"):
        await to_b.write([task_item(second, {"y": IN}, [last], request=request, task=1, attempt=2)])
        await to_a.write([task_item(first, {"x": IN}, halves, request=request)])
        await send(to_a, "x", IN, x, request=request)
        assert (await until_done(to_a))[0] == []
        pieces, (done,) = await until_done(to_b)
        assert (done.request, done.task, done.attempt) == (request, 1, 2)
        same(joined(pieces, IN), whole(whole(x), seed=1))


async def test_a_worker_that_came_back_at_its_address_is_reached_again(two, tmp_path):
    _, _, to_a, _, first, second = two
    x = picture()
    port = 0
    for request in ("r1", "r2"):
        async with (
            in_process(tmp_path / "c", secret="s", port=port) as c,
            WorkerClient(c.address, Caller("host", "s")) as client,
        ):
            port = int(c.address.rpartition(":")[2])
            await install(client, second, conv_program(names=("y", "z"), seed=1)[1])
            to_c = client.exchange()
            last = {"tensor": "z", "box": IN, "yields": IN}
            await to_c.write([task_item(second, {"y": IN}, [last], request=request, task=1)])
            there = output(IN, to=c.id, address=c.address, to_task=1)
            await to_a.write([task_item(first, {"x": IN}, [there], request=request)])
            await send(to_a, "x", IN, x, request=request)
            pieces, _ = await until_done(to_c)
            same(joined(pieces, IN), whole(whole(x), seed=1))
            await until_done(to_a)


async def test_a_neighbour_that_is_somebody_else_or_gone_is_told_to_the_host(two):
    _, b, to_a, _, first, _ = two
    x = picture()
    for task, (device, address) in enumerate((("0" * 16, b.address), (b.id, "127.0.0.1:1"))):
        outputs = [output(IN, to=device, address=address, to_task=9)]
        await to_a.write([task_item(first, {"x": IN}, outputs, task=task)])
        await send(to_a, "x", IN, x, task=task)
        _, ends = await until_done(to_a, tasks=2)
        (failed,) = (end for end in ends if isinstance(end, pb.TaskFailed))
        assert (failed.code, failed.task) == ("send", task)
        assert device in failed.message


async def test_pieces_go_by_grpc_where_the_data_plane_cannot_be_reached(two, monkeypatch):
    a, b, to_a, to_b, first, second = two
    x = picture()
    last = {"tensor": "z", "box": IN, "yields": IN}
    there = output(IN, to=b.id, address=b.address, to_task=1)
    for request, way in (("r1", "data"), ("r2", "data"), ("r3", "grpc"), ("r4", "grpc")):
        if request == "r3":
            monkeypatch.setattr("worker.peers.neighbours.connect", out_of_reach)
            # Its stream ends: the next is opened in vain.
            await asyncio.to_thread(hang_up, b)
        before = await sent(a)
        await to_b.write([task_item(second, {"y": IN}, [last], request=request, task=1)])
        await to_a.write([task_item(first, {"x": IN}, [there], request=request)])
        await send(to_a, "x", IN, x, request=request)
        pieces, _ = await until_done(to_b)
        same(joined(pieces, IN), whole(whole(x), seed=1))
        await until_done(to_a)
        assert {key for key, count in (await sent(a)).items() if count > before[key]} == {way}


def out_of_reach(*_):
    raise LostWorker(cause="a firewall", cure="open the port")


def hang_up(running):
    """Ends the streams that neighbours have to a worker of this process."""
    for listener in [each for each in gc.get_objects() if isinstance(each, DataListener)]:
        if running.data_port == listener.port:
            listener.keep(())


async def sent(running):
    """How many messages a worker has sent to neighbours, by their way."""
    async with WorkerClient(running.address, Caller("host", "s")) as client:
        counters = (await client.hello("test")).counters
    return {way: counters.get(f"{way}_messages", 0) for way in ("data", "grpc")}


async def test_outputs_to_itself_feed_the_next_task(two):
    a, _, to_a, _, first, second = two
    x = picture()
    last = {"tensor": "z", "box": IN, "yields": IN}
    here = output(IN, to=a.id, to_task=1)
    await to_a.write(
        [
            task_item(first, {"x": IN}, [here]),
            task_item(second, {"y": IN}, [last], task=1),
        ]
    )
    await send(to_a, "x", IN, x)
    pieces, ends = await until_done(to_a, tasks=2)
    assert [end.task for end in ends] == [0, 1]
    same(joined(pieces, IN), whole(whole(x), seed=1))


@pytest.mark.parametrize("any_values", [False, True])
async def test_values_that_are_not_finite_go_to_a_peer_only_where_they_may(two, any_values):
    _, b, to_a, to_b, first, second = two
    x = picture()
    x[0, 0, 3, 3] = np.inf
    halves = [output(half, to=b.id, address=b.address, to_task=1) for half in (TOP, BOTTOM)]
    item = task_item(first, {"x": IN}, halves)
    item.task.any_values = any_values
    await to_b.write(
        [task_item(second, {"y": IN}, [{"tensor": "z", "box": IN, "yields": IN}], task=1)]
    )
    await to_a.write([item])
    await send(to_a, "x", IN, x)
    _, (ended,) = await until_done(to_a)
    assert getattr(ended, "code", "") == ("" if any_values else "not_finite")
    if any_values:
        pieces, _ = await until_done(to_b)
        np.testing.assert_array_equal(joined(pieces, IN), whole(whole(x), seed=1))


@pytest.mark.parametrize("way", ["data", "grpc"])
async def test_a_neighbour_that_takes_nothing_is_given_up(tmp_path, monkeypatch, way):
    async def never(*_):
        await asyncio.Event().wait()

    def reads_nothing(*_):
        ended.wait(20)

    ended = threading.Event()
    module = {"data": "worker.peers.data_stream", "grpc": "worker.peers.neighbours"}[way]
    monkeypatch.setattr(f"{module}.PATIENCE_S", 0.2)
    monkeypatch.setattr(f"{module}.SLOWEST_BYTES_PER_S", 1e9)
    monkeypatch.setattr(GrpcService, "_read", never)
    monkeypatch.setattr(DataListener, "_read", reads_nothing)
    if way == "grpc":
        monkeypatch.setattr("worker.peers.neighbours.connect", out_of_reach)
    failed: list[tuple[SendToPeer, ImbrexError]] = []
    given_up = asyncio.Event()

    def fail(action, error):
        failed.append((action, error))
        given_up.set()

    peers = Neighbours(Caller("a", "s"), "test", fail)
    box = Box.whole((1, 1 << 20))
    key = TaskKey("r", 1, 1, 1)
    piece = TensorPiece(key, "y", box, np.zeros(box.shape, np.float32))
    async with in_process(tmp_path / "b", secret="s") as b, asyncio.timeout(60):
        for _ in range(8):
            peers.send(SendToPeer(b.id, b.address, (piece,), key))
        await given_up.wait()
        await peers.close()
        ended.set()
    assert isinstance(failed[0][1], LostWorker)
    assert "has not accepted" in failed[0][1].cause


async def test_pieces_for_an_unreachable_neighbour_fail_at_once(monkeypatch):
    """Whatever the reason; and later messages try again."""
    failed = []
    peers = Neighbours(Caller("a", "s"), "1", lambda action, error: failed.append((action, error)))
    tried = []

    async def no_thread(self):
        tried.append(self)
        await asyncio.sleep(0.05)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("worker.peers.neighbours._Neighbour._connect", no_thread)
    key = TaskKey("r", 1, 0, 0)
    for _ in range(2):
        actions = [SendToPeer("b", "127.0.0.1:1", (), key) for _ in range(5)]
        for action in actions:
            peers.send(action)
        await until(lambda: len(failed) == 5)
        assert [each for each, _ in failed] == actions
        assert {error.code for _, error in failed} == {"send"}
        failed.clear()
    assert len(tried) == 2
    await peers.close()


async def test_a_task_for_which_there_is_no_memory_fails_and_the_next_runs(two, monkeypatch):
    _, _, to_a, _, first, _ = two
    x, real, left = picture(), state.aligned_empty, [1]

    def short(*about):
        if left:
            left.pop()
            raise MemoryError("planted")
        return real(*about)

    monkeypatch.setattr(state, "aligned_empty", short)
    back = {"tensor": "y", "box": IN, "yields": IN}
    for task in range(2):
        await to_a.write([task_item(first, {"x": IN}, [back], task=task)])
        for half in (TOP, BOTTOM):
            await send(to_a, "x", half, x[half.slices()], task=task)
        _, (end,) = await until_done(to_a)
        assert isinstance(end, (pb.TaskDone, pb.TaskFailed)[1 - task])
        if not task:
            assert end.code == "out_of_memory"
