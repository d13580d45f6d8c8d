"""The scheduler's actions as messages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from coordinator.tasks.events import Assign, Resend, Send
from coordinator.tasks.runs import RequestRun
from coordinator.tasks.task_graph import TaskGraph, TaskOutput, TaskSpec
from models.tensors.boxes import Box
from models.tensors.selection import NO_SELECTION, Selections, fitting
from protos import imbrex_pb2 as pb
from protos.rpc.channels import HOST
from protos.wire.convert import box_message
from protos.wire.facts import DeviceId
from protos.wire.frames import pieces

# A reader of a task's output: device, address, attempt.
_Reader = tuple[DeviceId, str, int]
# The source of a box of its input: tensor, device, box.
_Source = tuple[str, DeviceId, Box]
# A task; the location of its neighbours: the addresses of the plan's devices if all is as planned,
# otherwise its readers and sources, nothing if everything goes through the host; whether its values
# may be any; what the host reads of its results.
_Key = tuple[int, Hashable, bool, Hashable]

# Encoded tasks, kept while their plan is in use. After faults a task has other neighbours, and such
# a combination seldom occurs again.
_DESCRIBED: WeakKeyDictionary[TaskGraph, dict[_Key, pb.Task]] = WeakKeyDictionary()
_MOST_PER_TASK = 4


def task_item(
    action: Assign,
    run: RequestRun,
    address: Callable[[DeviceId], str],
    selections: Selections = NO_SELECTION,
) -> pb.Item:
    """The task of an assignment as an item; `address` gives where peers reach a device,
    `selections` what the host reads of results.
    """
    graph, spec = run.graph, run.graph.tasks[action.task]
    readers: tuple[_Reader, ...] | None = None
    sources: tuple[_Source, ...] | None = None
    where: Hashable = None
    if run.direct and run.is_as_planned:
        where = tuple(map(address, run.touched))
    elif run.direct:
        where = readers, sources = tuple(_readers(spec, run, address)), tuple(_sources(spec, run))
    asked = tuple((output.tensor, selections.get(output.tensor)) for output in spec.outputs)
    key = action.task, where, run.unusual, asked
    known = _DESCRIBED.setdefault(graph, {})
    task = known.get(key)
    if task is None:
        if len(known) >= _MOST_PER_TASK * len(graph.tasks):
            known.clear()
        if run.direct and readers is None:
            readers, sources = tuple(_readers(spec, run, address)), tuple(_sources(spec, run))
        task = _described(graph, action.task, run.direct, readers or (), sources or (), selections)
        task.any_values = run.unusual
        known[key] = task
    item = pb.Item(task=task)
    item.task.request = action.request
    item.task.attempt = action.attempt
    return item


def _readers(
    spec: TaskSpec, run: RequestRun, address: Callable[[DeviceId], str]
) -> Iterator[_Reader]:
    """The readers of each route of a task's outputs."""
    for output in spec.outputs:
        for route in output.routes:
            reader = run.tasks[route.reader].latest
            assert reader is not None, "direct tasks are placed before they are assigned"
            yield reader.device, address(reader.device), reader.number


def _sources(spec: TaskSpec, run: RequestRun) -> Iterator[_Source]:
    """The boxes of a task's inputs that peers send."""
    for entry in spec.inputs if spec.direct else ():
        for piece in entry.pieces:
            if piece.source is not None:
                source = run.tasks[piece.source]
                maker = source.latest or source.kept  # a fast device may have computed it already
                assert maker is not None, "direct tasks are placed before they are assigned"
                yield entry.tensor, maker.device, piece.box


def _described(
    graph: TaskGraph,
    number: int,
    direct: bool,
    readers: Sequence[_Reader],
    sources: Sequence[_Source],
    selections: Selections,
) -> pb.Task:
    """The part of a task's message that is the same for all requests."""
    spec = graph.tasks[number]
    inputs = [
        pb.Task.Input(
            tensor=entry.tensor,
            box=box_message(entry.box),
            data_type=graph.tensors[entry.tensor].data_type,
            sources=[
                pb.Task.Source(device=device, box=box_message(box))
                for tensor, device, box in sources
                if tensor == entry.tensor
            ],
        )
        for entry in spec.inputs
    ]
    return pb.Task(
        plan_version=graph.plan.version,
        task=number,
        program=spec.program,
        inputs=inputs,
        outputs=_outputs(graph, spec, direct, iter(readers), selections),
        sources_named=True,
    )


def _outputs(
    graph: TaskGraph,
    spec: TaskSpec,
    direct: bool,
    readers: Iterator[_Reader],
    selections: Selections,
) -> Iterator[pb.Task.Output]:
    """Where each output goes: to the host, and directly to the peers that read it."""
    for output in spec.outputs:
        if output.to_host or not direct:
            message = output_message(graph, output, output.box)
            if selection := fitting(selections, output.tensor, output.box):
                message.selection.CopyFrom(
                    pb.Selection(
                        axis=selection.axis,
                        across=selection.across,
                        start=selection.scores.start,
                        stop=selection.scores.stop,
                        least=selection.least,
                        factor=0 if selection.factor is None else 1 + selection.factor,
                    )
                )
            yield message
        for route in output.routes if direct else ():
            device, address, attempt = next(readers)
            yield pb.Task.Output(
                tensor=output.tensor,
                box=box_message(route.box),
                yields=box_message(output.yields),
                to=device,
                address=address,
                to_task=route.reader,
                to_attempt=attempt,
            )


def output_message(graph: TaskGraph, output: TaskOutput, box: Box) -> pb.Task.Output:
    """A box of an output, to be sent to the host."""
    return pb.Task.Output(
        tensor=output.tensor,
        box=box_message(box),
        yields=box_message(output.yields),
        to=HOST,
        dynamic=graph.tensors[output.tensor].is_dynamic,
    )


def resend_item(action: Resend, graph: TaskGraph) -> pb.Item:
    """A request for outputs of a task that was computed before."""
    outputs = [
        output_message(graph, output, output.box)
        for output in graph.tasks[action.task].outputs
        if output.tensor in action.tensors
    ]
    return pb.Item(
        resend=pb.Resend(
            request=action.request,
            plan_version=graph.plan.version,
            task=action.task,
            attempt=action.attempt,
            outputs=outputs,
        )
    )


def tensor_items(
    action: Send, graph: TaskGraph, array: np.ndarray
) -> Iterator[tuple[pb.Item, np.ndarray]]:
    """A box of the host's tensor `array` as items with views of it; large ones are divided."""
    for part in pieces(action.box, array.itemsize):
        box = Box.of(*part)
        header = pb.Tensor(
            request=action.request,
            plan_version=graph.plan.version,
            task=action.task,
            attempt=action.attempt,
            tensor=action.tensor,
            box=box_message(box),
            data_type=graph.tensors[action.tensor].data_type,
        )
        yield pb.Item(tensor=header), array[box.slices()]
