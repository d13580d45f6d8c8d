"""A worker keeps to its memory by itself: no cgroup does it on Raspberry Pi OS."""

import mmap
import resource

import numpy as np
from onnx import TensorProto, helper

from models.cut.program import Program
from models.tensors.boxes import Box
from protos.daemon import process_memory
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.worker.support import (
    CHANNELS,
    conv_program,
    in_process,
    install,
    picture,
    process,
    send,
    task_item,
    until_done,
    whole,
)
from worker.exchange.exchange import TaskExchange

SIDE = 512
# float32 of SIDE x SIDE in this many channels: 600 MB between two maps of one channel.
CHANNELS_BETWEEN = 600


def wide_program() -> Program:
    """`x` (1, 1, h, w) -> many channels -> `y` (1, 1, h, w): large only in between."""
    spread = helper.make_node("Concat", ["x"] * CHANNELS_BETWEEN, ["wide"], axis=1)
    bent = helper.make_node("Sin", ["wide"], ["bent"])
    gathered = helper.make_node("ReduceMax", ["bent"], ["y"], axes=[1], keepdims=1)
    size = [1, 1, SIDE, SIDE]
    graph = helper.make_graph(
        [spread, bent, gathered],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, size)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Program(model.SerializeToString(), ())


async def answered(client, program, x, request):
    """(pieces, the message that the task ended with)"""
    box = Box.of(*((0, size) for size in x.shape))
    stream = client.exchange()
    output = {"tensor": "y", "box": box, "yields": box}
    await stream.write([task_item(program, {"x": box}, [output], request=request)])
    await send(stream, "x", box, x, request=request)
    pieces, (end,) = await until_done(stream)
    return pieces, end


async def test_a_task_beyond_the_cap_fails_and_the_worker_goes_on(tmp_path):
    wide, (small, blobs) = wide_program(), conv_program()
    x = np.ones((1, 1, SIDE, SIDE), np.float32)
    part = picture(12, 10)
    assert part.shape[1] == CHANNELS
    with process(tmp_path, within=("env",), MEMORY_MB="150") as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            await install(client, wide, {})
            await install(client, small, blobs)
            for number in range(2):
                _, end = await answered(client, wide, x, f"too-large-{number}")
                assert end.code == "out_of_memory", end
                assert "memory" in end.message
            pieces, _ = await answered(client, small, part, "fits")
            np.testing.assert_allclose(pieces[0][1], whole(part), atol=1e-5)
            # The same task where nothing holds it: it was the cap that refused it.
            free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(running.process.pid, resource.RLIMIT_DATA, free)
            pieces, _ = await answered(client, wide, x, "free")
            np.testing.assert_allclose(pieces[0][1], np.sin(x), atol=1e-6)


async def test_memory_that_ends_while_a_task_is_set_up_is_told_as_such(tmp_path, monkeypatch):
    def none_left(*_):
        raise MemoryError((1, 64, 111, 480), np.dtype(np.float32))

    program, blobs = conv_program()
    async with (
        in_process(tmp_path) as running,
        WorkerClient(running.address, Caller("host")) as client,
    ):
        await install(client, program, blobs)
        monkeypatch.setattr(TaskExchange, "_ready", none_left)
        _, end = await answered(client, program, picture(12, 10), "short")
    assert end.code == "out_of_memory", end
    assert "out of memory" in end.message


def test_free_memory_is_what_the_cap_leaves(monkeypatch):
    before = process_memory.free_bytes()
    assert before > 100 << 20
    limit = process_memory.allocated_bytes() + (50 << 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert 0 < process_memory.free_bytes() <= 50 << 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert process_memory.free_bytes() == 0


async def test_maps_begin_at_offsets_that_16_kib_pages_allow(tmp_path, monkeypatch):
    """Raspberry Pi 5's kernel has pages of 16 KiB: a map begins at a multiple of that."""
    offsets = []

    class Map(mmap.mmap):
        def __new__(cls, *args, **more):
            offsets.append(more.get("offset", 0))
            return super().__new__(cls, *args, **more)

    monkeypatch.setattr(mmap, "mmap", Map)
    program, blobs = conv_program()
    part = picture(12, 10)
    async with (
        in_process(tmp_path) as running,
        WorkerClient(running.address, Caller("host")) as client,
    ):
        await install(client, program, blobs)
        pieces, _ = await answered(client, program, part, "r")
    np.testing.assert_allclose(pieces[0][1], whole(part), atol=1e-5)
    assert offsets
    assert all(offset % (16 << 10) == 0 for offset in offsets)
