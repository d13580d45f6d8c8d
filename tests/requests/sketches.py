"""Task graphs by hand: boxes over one row of elements, no network behind them; and short words
for what happens to them.
"""

from dataclasses import replace

from coordinator.tasks.deadlines import Expectations
from coordinator.tasks.events import Action, Assign, Joined, Merge, Received, RequestId
from coordinator.tasks.plan import Plan, TrafficBytes
from coordinator.tasks.scheduler import Scheduler
from coordinator.tasks.task_graph import (
    InputPart,
    TaskGraph,
    TaskInput,
    TaskOutput,
    TaskSpec,
    routed,
)
from models.cut.program import BlobSource, Program
from models.graph.shapes import TensorInfo
from models.tensors.boxes import Box
from protos.wire.facts import DeviceId

FLOAT = 1
WIDTH = 12


def row(start: int, stop: int) -> Box:
    return Box.of((start, stop))


def device(name: str) -> DeviceId:
    return DeviceId(name)


def plan(version: int = 1) -> Plan:
    return Plan(
        model="sketch",
        strategy="by hand",
        blocks=(),
        predicted_latency_s=1.0,
        single_device_latency_s=2.0,
        baseline_device=device("a"),
        total_flop=0,
        redundant_flop=0,
        traffic=TrafficBytes(),
        version=version,
    )


def direct_chain(widths: list[list[tuple[int, int]]], names: str = "abcd") -> TaskGraph:
    """The same chain with halos from peer to peer: only the last block's outputs return."""
    graph = chain(widths, names, barrier=False)
    tasks = [replace(task, direct=task.block > 0) for task in graph.tasks]
    return replace(graph, tasks=tuple(routed(tasks, graph.outputs)))


def ends_with_barrier(widths: list[list[tuple[int, int]]], names: str = "abcd") -> TaskGraph:
    """The chain with halos from peer to peer, but for its last block, which waits at a barrier."""
    graph = chain(widths, names, barrier=False)
    last = len(widths) - 1
    tasks = [
        replace(task, direct=0 < task.block < last, barrier=task.block == last)
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(routed(tasks, graph.outputs)))


def from_constants(graph: TaskGraph) -> TaskGraph:
    """The same chain, whose first block reads nothing."""
    tasks = [task if task.block else replace(task, inputs=()) for task in graph.tasks]
    return replace(graph, tasks=tuple(tasks))


def chain(
    widths: list[list[tuple[int, int]]], names: str = "abcd", barrier: bool = True
) -> TaskGraph:
    """A chain of blocks over one row: `widths[b]` are the output spans of block b's tiles; each
    tile reads one element more on either side (a halo).
    """
    tasks: list[TaskSpec] = []
    made = [InputPart(None, row(0, WIDTH))]
    tensors = {"t0": TensorInfo((WIDTH,), FLOAT)}
    for block, spans in enumerate(widths):
        source, target = f"t{block}", f"t{block + 1}"
        tensors[target] = TensorInfo((WIDTH,), FLOAT)
        new = []
        for position, (start, stop) in enumerate(spans):
            box = row(max(0, start - 1), min(WIDTH, stop + 1))
            parts = [InputPart(p.source, p.box.intersect(box)) for p in made]
            pieces = tuple(p for p in parts if not p.box.is_empty)
            out = row(start, stop)
            task = TaskSpec(
                id=len(tasks),
                block=block,
                device=device(names[position]),
                program=f"program-{block}",
                inputs=(TaskInput(source, box, pieces),),
                outputs=(TaskOutput(target, out, out),),
                barrier=barrier,
            )
            tasks.append(task)
            new.append(InputPart(task.id, out))
        made = new
    return TaskGraph(
        plan=plan(),
        tasks=tuple(tasks),
        programs={f"program-{b}": Program(b"%d" % b, ()) for b in range(len(widths))},
        blobs=BlobSource(),
        tensors=tensors,
        inputs=("t0",),
        outputs=(f"t{len(widths)}",),
    )


HALVES = [(0, 6), (6, 12)]

R = RequestId("r")
A, B, C = device("a"), device("b"), device("c")


def scheduler(*devices: str, expected: Expectations | None = None) -> Scheduler:
    state = Scheduler(expected)
    for name in devices:
        assert state.step(Joined(device(name))) == []
    return state


def result(task: int, box: Box, attempt: int = 0, tensor: str = "t1") -> Received:
    return Received(R, task, attempt, tensor, box)


def merge(task: int, tensor: str, box: Box) -> Merge:
    return Merge(R, task, tensor, box, aside=False)


def assigned(actions: list[Action]) -> list[Assign]:
    return [action for action in actions if isinstance(action, Assign)]
