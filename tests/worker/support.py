"""Small programs, and workers in this process or in their own."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from models.cut.program import BlobSource, Program, WeightRef
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.rpc.worker_client import CHUNK_BYTES
from protos.wire.convert import box_message, data_type_of
from tests.forked import Forked
from worker.daemon import READY_FILE, run
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
CHANNELS = 16


def conv_model(weights=(), *, pads=(1, 1, 1, 1), opset=17, seed=0, extra=(), names=("x", "y")):
    """`x` (1, 16, h, w) -> Conv 3x3 -> Relu -> `y` (1, 16, ...); `weights` are left out."""
    x, y = names
    random = np.random.default_rng(seed)
    arrays = {
        "w": (random.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 12).astype(np.float32),
        "b": random.standard_normal(CHANNELS).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", [x, "w", "b"], ["c"], kernel_shape=[3, 3], pads=list(pads)),
        helper.make_node("Relu", ["c"], [y]),
        *extra,
    ]
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, CHANNELS, "h", "w"])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, CHANNELS, "oh", "ow"])],
        initializer=[
            helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.tobytes(), raw=True)
            for name, array in arrays.items()
            if name not in weights
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {name: arrays[name] for name in weights}


def conv_program(blobs=None, **options):
    """The program of `conv_model`, its weights named by content (in `blobs`)."""
    model, arrays = conv_model(("w", "b"), **options)
    blobs = blobs if blobs is not None else BlobSource()
    refs = tuple(
        WeightRef(name, blobs.add(array), TensorProto.FLOAT, array.shape)
        for name, array in arrays.items()
    )
    return Program(model.SerializeToString(), refs), blobs


def whole(x, **options):
    """What plain onnxruntime makes of the same model."""
    model, _ = conv_model(**options)
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def picture(rows=12, columns=10, seed=1):
    shape = (1, CHANNELS, rows, columns)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def message_of(program):
    return pb.Program(
        sha256=program.sha256,
        graph=program.graph,
        weights=[
            pb.Weight(name=r.name, sha256=r.sha256, data_type=r.data_type, dims=r.dims)
            for r in program.weights
        ],
    )


async def install(client, program, blobs):
    """Puts and prepares a program as a coordinator does."""
    reply = await client.prepare([message_of(program)])
    have = await client.missing(list(reply.missing))
    for sha256 in reply.missing:
        await client.put(
            sha256,
            blobs.chunks(sha256, have[sha256], CHUNK_BYTES),
            blobs.size_of(sha256),
            have[sha256],
        )
    if reply.missing:
        reply = await client.prepare([message_of(program)])
    assert not reply.missing
    assert [entry.error for entry in reply.programs] == [""]


async def ready(client):
    """A program that a worker has prepared."""
    program, blobs = conv_program()
    await install(client, program, blobs)
    return program


def task_item(program, inputs, outputs, *, request="r", task=0, attempt=0, data_type=1):
    """`inputs`: name -> box; `outputs`: dicts of Output fields, boxes as Box."""
    return pb.Item(
        task=pb.Task(
            request=request,
            plan_version=1,
            task=task,
            attempt=attempt,
            program=program.sha256,
            inputs=[
                pb.Task.Input(tensor=name, box=box_message(box), data_type=data_type)
                for name, box in inputs.items()
            ],
            outputs=[
                pb.Task.Output(
                    **{
                        "to": "host",
                        **output,
                        "box": box_message(output["box"]),
                        "yields": box_message(output["yields"]),
                    }
                )
                for output in outputs
            ],
        )
    )


def tensor_item(name, box, array, *, request="r", task=0, attempt=0, plan_version=1):
    return pb.Item(
        tensor=pb.Tensor(
            request=request,
            plan_version=plan_version,
            task=task,
            attempt=attempt,
            tensor=name,
            box=box_message(box),
            data_type=data_type_of(array.dtype),
        )
    )


async def send(stream, name, box, array, **key):
    await stream.write([tensor_item(name, box, array, **key)], [array])


async def until_done(stream, tasks=1):
    """(pieces, ends): what came until that many tasks were done or had failed."""
    pieces, ends = [], []
    while len(ends) < tasks:
        for item, payload in await asyncio.wait_for(stream.read(), 20):
            kind = item.WhichOneof("kind")
            if kind == "tensor":
                pieces.append((item.tensor, payload))
            else:
                ends.append(getattr(item, kind))
    return pieces, ends


def joined(pieces, box):
    """One array from pieces."""
    result = np.full(box.shape, np.nan, np.float32)
    for tensor, payload in pieces:
        part = Box.of(*zip(tensor.box.start, tensor.box.stop, strict=True))
        result[part.slices(box)] = payload
    return result


@dataclass(frozen=True)
class Running:
    address: str
    id: str
    state_dir: Path
    process: subprocess.Popen | None = None
    data_port: int = 0


@contextlib.asynccontextmanager
async def in_process(state_dir, **changes):
    """A worker on this event loop: real gRPC, real onnxruntime."""
    values = {"port": 0, "mdns": False, "threads": 1, "engine": "onnxruntime"} | changes
    settings = WorkerSettings(state_dir=state_dir, **values)
    stop = asyncio.Event()
    daemon = asyncio.create_task(run(settings, stop))
    ready = state_dir / READY_FILE
    while not ready.exists():
        if daemon.done():
            await daemon
        await asyncio.sleep(0.005)
    content = json.loads(ready.read_text())
    try:
        own = Running(content["address"], content["id"], state_dir, None, content["data_port"])
        yield own
    finally:
        stop.set()
        await daemon


def environment(state_dir, **changes):
    values = {"PORT": "0", "MDNS": "false", "THREADS": "1", "ENGINE": "onnxruntime"}
    values |= {"STATE_DIR": str(state_dir)} | changes
    ours = {f"IMBREX_WORKER_{key}": value for key, value in values.items()}
    return {key: v for key, v in os.environ.items() if not key.startswith("IMBREX_")} | ours


@contextlib.contextmanager
def process(state_dir, *, within=(), **changes):
    """A worker in a process of its own, forked or executed by the command `within`; killed at the
    end if it still runs.
    """
    told = {"cwd": ROOT, "env": environment(state_dir, **changes), "stderr": subprocess.PIPE}
    if within:
        started = subprocess.Popen([*within, sys.executable, "-m", "imbrex", "worker"], **told)
    else:
        started = Forked(["worker"], **told)
    try:
        ready = state_dir / READY_FILE
        deadline = time.monotonic() + 30
        while not _is_ready(ready, started.pid):
            if started.poll() is not None:
                raise AssertionError(started.stderr.read().decode())
            assert time.monotonic() < deadline, "the worker does not get ready"
            time.sleep(0.02)
        content = json.loads(ready.read_text())
        yield Running(content["address"], content["id"], state_dir, started, content["data_port"])
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


def _is_ready(path, pid):
    try:
        return json.loads(path.read_text())["pid"] == pid
    except FileNotFoundError:
        return False


def terminate(running):
    """SIGTERM; the exit code."""
    running.process.send_signal(signal.SIGTERM)
    return running.process.wait(15)


def weights_of(program, blobs):
    """The program's weights by name."""
    return {
        ref.name: np.array(blobs.array_of(ref.sha256)).reshape(ref.dims) for ref in program.weights
    }
