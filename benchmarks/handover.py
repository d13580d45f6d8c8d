"""How long a border is on its way between two workers' kernels: from the end of the one that makes
it until the task that reads it is full there, and from then until its kernel starts.

Two worker processes on this machine, whose clocks are the same, run a chain of two small tasks: the
first task's output goes to the second worker alone, which has just computed another task of the
request. Medians over all messages, by size. No core is put to sleep meanwhile (see
`benchmarks.messages`).

    python -m benchmarks.handover [--json] [--messages 300]
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvloop
from onnx import TensorProto, helper

from benchmarks.messages import GAP_S, awake, worker
from benchmarks.report import command_line, emit
from models.boxes import Box
from models.program import Program
from protos import imbrex_pb2 as pb
from protos.channels import HOST, Caller
from protos.client import ExchangeStream, WorkerClient
from protos.convert import box_message
from worker.compute import Compute, Throttle
from worker.engines.base import Place, Ready
from worker.engines.onnxruntime import OnnxRuntime
from worker.programs.store import BlobStore
from worker.sessions import Sessions

SHAPES = ((1, 64, 1, 16), (1, 64, 1, 256), (1, 256, 2, 256))
# What the first task reads and makes, and the second.
_NAMES = (("x", "y"), ("y", "z"))
# Of a request on one device, as a plan with an exchange for every few layers has them.
TASKS = 16

T = TypeVar("T")


def main() -> int:
    """Prints the result."""
    parser = command_line(__doc__)
    parser.add_argument("--messages", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="imbrex-handover-") as name, ExitStack() as stack:
        pair = [stack.enter_context(worker(Path(name) / each))[0] for each in ("first", "second")]
        with awake():
            found = uvloop.run(measure(pair, given.messages))
            found["set_up_ms"] = set_up_ms(Path(name) / "here", given.messages)
    rows = (
        f"{row['bytes']:>7} bytes: {row['end_to_full_ms']:.3f} ms until the task is full, "
        f"{row['full_to_start_ms']:.3f} ms more until it is computed"
        for row in found["sizes"]
    )
    text = "\n".join([*rows, f"of that {found['set_up_ms']:.3f} ms of CPU to set a task up"])
    emit(found, given, text)
    return 0


class _Watched(Throttle):
    """Knows how much CPU time a thread needs from waiting for a job until it computes."""

    def __init__(self) -> None:
        super().__init__(pace=1.0)
        self._idle_s: dict[int, float] = {}
        self.seconds: list[float] = []

    def computed(self, ready: Ready[T]) -> tuple[T, float]:
        """Once for every run."""
        thread, now_s = threading.get_ident(), time.thread_time()
        if thread in self._idle_s:
            self.seconds.append(now_s - self._idle_s[thread])
        found = super().computed(ready)
        self._idle_s[thread] = time.thread_time()
        return found


def set_up_ms(folder: Path, times: int) -> float:
    """CPU milliseconds for a task beside its kernels, as seldom as messages come: its share of
    setting up a request's tasks in one go, and from its being full until it computes (medians).
    """
    shape = SHAPES[1]
    program, store = _relu(shape, _NAMES[0]), BlobStore(folder, 1 << 20)
    sessions = Sessions(OnnxRuntime(Place(folder / "optimised", store, 1)), store, 1 << 20)
    sessions.prepare(program)
    given, shares = {"x": np.ones(shape, np.float32)}, []
    for _ in range(times // TASKS):
        time.sleep(GAP_S)
        began_s = time.thread_time()
        bound = [sessions.get(program.sha256).bound(given, {"y": shape}) for _ in range(TASKS)]
        shares.append((time.thread_time() - began_s) / TASKS)
    watched, ended = _Watched(), threading.Semaphore(0)
    compute = Compute(watched)
    for _ in range(times):
        time.sleep(GAP_S)
        compute.submit(lambda: bound[0], lambda _: ended.release())
        ended.acquire()
    compute.close()
    return round((statistics.median(shares) + statistics.median(watched.seconds)) * 1e3, 4)


async def measure(pair: Sequence[dict[str, Any]], messages: int) -> dict[str, Any]:
    """Milliseconds by size, and by which way the messages went."""
    caller = Caller(HOST)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(WorkerClient(each["address"], caller)) for each in pair
        ]
        first, second = (each.exchange() for each in clients)
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
                    "end_to_full_ms": round(statistics.median(until_full) * 1e3, 4),
                    "full_to_start_ms": round(statistics.median(until_start) * 1e3, 4),
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
    request, box = uuid.uuid4().hex[:12], box_message(Box.whole(shape).spans)

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
    await asyncio.sleep(GAP_S)
    there_too = {"to": there["id"], "address": there["address"], "to_task": 1}
    await first.write([task(0, of=0, **there_too), given(0)], [array])
    made, read = await _done(first), await _done(second)
    for stream in (first, second):
        await stream.write([pb.Item(release=pb.Release(requests=[request]))])
    return read.ready_s - made.stop_s, read.start_s - read.ready_s


async def _done(stream: ExchangeStream) -> pb.TaskDone:
    while (received := await stream.read()) is not None:
        for item, _ in received:
            if item.WhichOneof("kind") == "done":
                return item.done
            if item.WhichOneof("kind") == "failed":
                raise SystemExit(item.failed.message)
    raise SystemExit("a worker ended its stream")


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
