"""The time of a halo between two workers' kernels: from the end of the kernel that computes it
until the task that reads it has all of its input, and from then until its kernel starts.

Two worker processes on this machine, with the same clock, run a chain of two small tasks: the first
task's output goes only to the second worker, which has just computed another task of the request.
Medians over all messages, by size. Cores are kept from idling meanwhile (see
`benchmarks.messages`).

    python -m benchmarks.handover [--json] [--messages 300]
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from onnx import TensorProto, helper

from benchmarks.messages import GAP_S, awake, seldom, worker
from benchmarks.report import command_line, emit
from coordinator.planning.cluster_file import parse_cluster
from coordinator.planning.planners.halo import halo
from coordinator.requests.messages import task_item
from coordinator.tasks.events import Assign, Cancelled, Joined, RequestId, Submitted
from coordinator.tasks.scheduler import Scheduler
from coordinator.tasks.task_graph import outline_plan
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.cut.program import Program
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.rpc.channels import HOST, Caller
from protos.rpc.worker_client import ExchangeStream, WorkerClient
from protos.wire.convert import box_message
from protos.wire.frames import decode, encode
from worker.compute.sessions import Sessions
from worker.engines.base import Place
from worker.engines.onnxruntime import OnnxRuntime
from worker.programs.store import BlobStore
from worker.tasks.state import Tasks
from worker.tasks.task_items import task_order

SHAPES = ((1, 64, 1, 16), (1, 64, 1, 256), (1, 256, 2, 256))
# What the first task reads and makes, and the second.
_NAMES = (("x", "y"), ("y", "z"))
# Of a request on one device, as a plan with an exchange for every few layers has them.
TASKS = 16


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--messages", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="imbrex-handover-") as name, ExitStack() as stack:
        pair = [
            stack.enter_context(worker(Path(name) / folder))[0] for folder in ("first", "second")
        ]
        with awake():
            found = uvloop.run(measure(pair, given.messages))
            found["set_up_ms"] = set_up_ms(Path(name) / "here", given.messages)
            found["describe_ms"], found["take_in_ms"] = orders_ms(given.messages // 10)
    rows = (
        f"{row['bytes']:>7} bytes: {row['end_to_full_ms']:.3f} ms until the task is full, "
        f"{row['full_to_start_ms']:.3f} ms more until it is computed"
        for row in found["sizes"]
    )
    costs = (
        f"CPU of a task: {found['set_up_ms']:.3f} ms to set it up, {found['describe_ms']:.3f} to "
        f"describe it at the host, {found['take_in_ms']:.3f} to take that in"
    )
    text = "\n".join([*rows, costs])
    emit(found, given, text)
    return 0


def set_up_ms(folder: Path, times: int) -> float:
    """CPU milliseconds of setting up a task, as a request's are: `TASKS` in one go, as seldom as
    requests come (the median).
    """
    shape = SHAPES[1]
    program, store = _relu(shape, _NAMES[0]), BlobStore(folder, 1 << 20)
    sessions = Sessions(OnnxRuntime(Place(folder / "optimised", store, 1)), store, 1 << 20)
    sessions.prepare(program)
    given, shares = {"x": np.ones(shape, np.float32)}, []
    for _ in seldom(times):
        began_s = time.thread_time()
        bound = [sessions.get(program.sha256).bound(given, {"y": shape}) for _ in range(TASKS)]
        shares.append((time.thread_time() - began_s) / len(bound))
    return _median_ms(shares)


def orders_ms(requests: int) -> tuple[float, float]:
    """CPU milliseconds for a task of ResNet-50's halo plan on four devices: to decide where it runs
    and to say so, and to understand that on its device (medians over requests).
    """
    network = network_of(catalogue.load("resnet50"))
    devices = '[[device]]\nname = "d"\ncount = 4\ngflops = 2'
    cluster = parse_cluster(f"[host]\ncomputes = false\n[network]\nmbps = 1000\n{devices}")
    graph = outline_plan(halo(network, cluster), network)
    scheduler = Scheduler()
    for device in cluster.devices:
        scheduler.step(Joined(device.id))
    said, understood = [], []
    for number in seldom(requests):
        request = RequestId(f"request {number}")
        began_s = time.thread_time()
        actions = scheduler.step(Submitted(request, graph))
        run = scheduler.requests[request]
        items = [task_item(action, run, str) for action in actions if isinstance(action, Assign)]
        message = encode(items)
        said.append((time.thread_time() - began_s) / len(items))
        scheduler.step(Cancelled(request))
        time.sleep(GAP_S)  # so that caches are cold, as after a kernel
        tasks = Tasks("d-1", cap_bytes=1 << 40)
        began_s = time.thread_time()
        for item, _ in decode(message):
            tasks.add_task(task_order(item.task, 0), 0.0)
        understood.append((time.thread_time() - began_s) / len(items))
    return _median_ms(said), _median_ms(understood)


async def measure(pair: Sequence[dict[str, Any]], messages: int) -> dict[str, Any]:
    """Milliseconds by size, and by which way the messages went."""
    caller = Caller(HOST)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(WorkerClient(worker_ready["address"], caller))
            for worker_ready in pair
        ]
        first, second = (client.exchange() for client in clients)
        sizes = []
        for shape in SHAPES:
            programs = [_relu(shape, names) for names in _NAMES]
            for client in clients:
                await client.prepare([_message(program) for program in programs])
            times = [await _once(first, second, pair[1], programs, shape) for _ in range(messages)]
            until_full, until_start = zip(*times[messages // 10 :], strict=True)
            sizes.append(
                {
                    "bytes": 4 * int(np.prod(shape)),
                    "end_to_full_ms": _median_ms(until_full),
                    "full_to_start_ms": _median_ms(until_start),
                }
            )
        counters = (await clients[0].hello("benchmark")).counters
        ways = {way: counters.get(f"{way}_messages", 0) for way in ("data", "grpc")}
    return {"messages": messages, "ways": ways, "sizes": sizes}


async def _once(
    first: ExchangeStream,
    second: ExchangeStream,
    there: dict[str, Any],
    programs: Sequence[Program],
    shape: tuple[int, ...],
) -> tuple[float, float]:
    """Seconds from the first task's end until the second is full, and from then to its start."""
    request, box = uuid.uuid4().hex[:12], box_message(Box.whole(shape))

    def task(number: int, of: int, **to: Any) -> pb.Item:
        given, made = _NAMES[of]
        output = pb.Task.Output(tensor=made, box=box, yields=box, **to)
        return pb.Item(
            task=pb.Task(
                request=request,
                plan_version=1,
                task=number,
                program=programs[of].sha256,
                inputs=[pb.Task.Input(tensor=given, box=box, data_type=1)],
                outputs=[output],
            )
        )

    def given(number: int) -> pb.Item:
        return pb.Item(
            tensor=pb.Tensor(
                request=request, plan_version=1, task=number, tensor="x", box=box, data_type=1
            )
        )

    array = np.ones(shape, np.float32)
    await second.write([task(1, of=1, to=HOST), task(2, of=0, to=HOST), given(2)], [array])
    await _done(second)
    there_too = {"to": there["id"], "address": there["address"], "to_task": 1}
    await first.write([task(0, of=0, **there_too), given(0)], [array])
    made, read = await _done(first), await _done(second)
    for stream in (first, second):
        await stream.write([pb.Item(release=pb.Release(requests=[request]))])
    return read.ready_s - made.stop_s, read.start_s - read.ready_s


async def _done(stream: ExchangeStream) -> pb.TaskDone:
    while True:
        for item, _ in await stream.read():
            if item.WhichOneof("kind") == "done":
                return item.done
            if item.WhichOneof("kind") == "failed":
                raise SystemExit(item.failed.message)


def _median_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 4)


def _relu(shape: tuple[int, ...], names: tuple[str, str]) -> Program:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
    graph = helper.make_graph(
        [helper.make_node("Relu", names[:1], names[1:])], "relu", ends[:1], ends[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Program(model.SerializeToString(), ())


def _message(program: Program) -> pb.Program:
    return pb.Program(sha256=program.sha256, graph=program.graph)


if __name__ == "__main__":
    raise SystemExit(main())
