"""Exams: a device computes seeded programs, and its results are compared with this machine's.

There are two kinds. The entrance exam is a small network that takes milliseconds; no device
computes for clients before it has passed. Later exams are tasks of the networks in use, as prepared
on the device; nothing waits for them.
"""

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from coordinator.audit.arbiter import Arbiter
from coordinator.audit.case import Case, RequestedBox, can_be_judged, tolerance_of
from coordinator.audit.collector import Collector
from coordinator.audit.job import OutputDifference, ReceivedOutput, relative
from coordinator.audit.verdict import Verdict
from coordinator.devices.pool import Pool
from coordinator.tasks.events import RequestId
from coordinator.tasks.task_graph import TaskGraph
from models.check.tolerance import PLAIN
from models.cut.cutter import cut
from models.cut.program import BlobSource, Program
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.run.reference import ProgramRunner, seeded
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.rpc.channels import HOST
from protos.wire.convert import box_message, data_type_of, dtype_of
from protos.wire.facts import DeviceId
from protos.wire.frames import Payload, pieces

ENTRANCE = "the entrance exam"
# A Raspberry Pi 3 takes milliseconds for the entrance exam, and seconds for a block of VGG-16.
ENTRANCE_S = 20.0
TASK_S = 120.0
# A limit, since an exam must not exhaust a device's memory.
_MOST_INPUT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ExamQuestion:
    """A program with the boxes and values of its inputs, and the boxes and ONNX types of its
    outputs.
    """

    model: str
    task: int
    program: Program = field(repr=False)
    blobs: BlobSource = field(repr=False)
    boxes: Mapping[str, Box]
    inputs: Arrays = field(repr=False)
    yields: Mapping[str, tuple[Box, int]]
    tolerance: float


async def entrance(device: DeviceId, pool: Pool, collector: Collector) -> Verdict:
    """Runs the entrance exam; it is small enough to be judged in this process.

    Raises:
        ImbrexError: the device is gone or cannot compute it.
    """
    question, expected = _entrance()
    case = await _answered(question, device, pool, collector, ENTRANCE_S)
    differences = [
        OutputDifference(c.tensor, relative(c.array, expected[c.tensor])) for c in case.received
    ]
    return Verdict.of(case, max(differences, key=lambda difference: difference.difference))


async def of_task(
    graph: TaskGraph,
    task: int,
    device: DeviceId,
    pool: Pool,
    collector: Collector,
    arbiter: Arbiter,
) -> Verdict:
    """Runs a task of a network in use on seeded inputs.

    Raises:
        ImbrexError: the device is gone or cannot compute it, or it cannot be judged.
    """
    case = await _answered(_of_task(graph, task), device, pool, collector, TASK_S)
    return Verdict.of(case, await arbiter.judge(case))


def tasks_to_try(graph: TaskGraph, device: DeviceId, most: int) -> list[int]:
    """A random choice of the tasks that a plan gives a device."""

    def input_bytes(task: int) -> int:
        return sum(
            entry.box.volume * graph.tensors[entry.tensor].itemsize
            for entry in graph.tasks[task].inputs
        )

    own = [task.id for task in graph.tasks if task.device == device]
    small = [t for t in own if input_bytes(t) < _MOST_INPUT_BYTES and can_be_judged(graph, t)]
    return random.sample(small, min(most, len(small)))


async def _answered(
    question: ExamQuestion, device: DeviceId, pool: Pool, collector: Collector, most_s: float
) -> Case:
    request = RequestId(f"exam-{uuid.uuid4().hex[:12]}")
    tolerance = tolerance_of(question.tolerance, device, pool)
    case = Case(
        request,
        question.model,
        device,
        question.task,
        tolerance,
        question.program,
        question.blobs,
        dict(question.inputs),
    )
    items, payloads = _order(question, request)
    for tensor, (box, data_type) in question.yields.items():
        array = np.empty(box.shape, dtype_of(data_type))
        key = (device, question.task, 0, tensor)
        case.received.append(ReceivedOutput(tensor, box, box, array))
        case.wanted.append(RequestedBox(device, items, key, box, array, box.volume, payloads))
        items, payloads = [], []  # the first message requests all outputs
    await pool.connection(device).ensure([question.program], question.blobs)
    try:
        await collector.collect(request, [case], most_s)
    finally:
        release = pb.Item(release=pb.Release(requests=[request]))
        await pool.connection(device).send([release])
    return case


def _order(question: ExamQuestion, request: RequestId) -> tuple[list[pb.Item], list[Payload]]:
    """The messages for the task and the tensors that it reads."""
    task = pb.Task(
        request=request,
        task=question.task,
        program=question.program.sha256,
        inputs=[
            pb.Task.Input(
                tensor=name,
                box=box_message(box),
                data_type=data_type_of(question.inputs[name].dtype),
            )
            for name, box in question.boxes.items()
        ],
        outputs=[
            pb.Task.Output(tensor=name, box=box_message(box), yields=box_message(box), to=HOST)
            for name, (box, _) in question.yields.items()
        ],
        sources_named=True,
    )
    items: list[pb.Item] = [pb.Item(task=task)]
    payloads: list[Payload] = []
    for name, whole in question.boxes.items():
        array = question.inputs[name]
        for part in pieces(whole, array.itemsize):
            box = Box.of(*part)
            header = pb.Tensor(
                request=request,
                task=question.task,
                tensor=name,
                box=box_message(box),
                data_type=data_type_of(array.dtype),
            )
            items.append(pb.Item(tensor=header))
            payloads.append(array[box.slices(whole)])
    return items, payloads


def _of_task(graph: TaskGraph, task: int) -> ExamQuestion:
    spec = graph.tasks[task]
    rng = np.random.default_rng()
    boxes = {entry.tensor: entry.box for entry in spec.inputs}
    return ExamQuestion(
        model=graph.plan.model,
        task=task,
        program=graph.programs[spec.program],
        blobs=graph.blobs,
        boxes=boxes,
        inputs={
            name: seeded(rng, graph.tensors[name].dtype, box.shape) for name, box in boxes.items()
        },
        yields={
            output.tensor: (output.yields, graph.tensors[output.tensor].data_type)
            for output in spec.outputs
        },
        tolerance=graph.tolerance,
    )


@cache
def _entrance() -> tuple[ExamQuestion, Arrays]:
    """The entrance exam and its correct results. Its few weights are embedded in the graph, and
    stay small where onnxruntime pads them to 16 channels (AVX-512), so that a device with a full
    disk can take it.
    """
    net = NetworkBuilder("entrance", seed=1)
    x = net.input("x", (1, 1, 32, 32)).conv("conv", 8, square(3)).relu()
    x = x.add("sum", x.conv("deep", 8, square(3), groups=8)).max_pool("pool", square(2, 2))
    x = x.conv("point", 16, square(1)).norm().relu().conv("wide", 8, square(3), groups=8)
    graph, blobs = load_graph(net.model(x)), BlobSource()
    everything = {name: Box.whole(graph.shape(name)) for name in graph.results}
    piece = cut(graph, graph.nodes, everything, blobs, static=True)
    assert not piece.program.weights, "all weights are small enough to be embedded"
    rng = np.random.default_rng(1)
    inputs = {
        name: seeded(rng, graph.tensors[name].dtype, box.shape)
        for name, box in piece.inputs.items()
    }
    outputs = ProgramRunner(blobs, threads=1).run(piece.program, inputs, graph.outputs)
    question = ExamQuestion(
        model=ENTRANCE,
        task=0,
        program=piece.program,
        blobs=blobs,
        boxes=piece.inputs,
        inputs=inputs,
        yields={name: (box, graph.tensors[name].data_type) for name, box in piece.yields.items()},
        tolerance=PLAIN,
    )
    return question, dict(zip(graph.outputs, outputs, strict=True))
