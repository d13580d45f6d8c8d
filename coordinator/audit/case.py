"""One task to be computed again: its inputs, what others received from it, and what is missing.

The inputs of a task that reads from peers are what those peers keep of their outputs, never what
the examined device claims to have received. Its outputs are judged as they arrived: at the host,
and at the peers that read them. Only what nobody else received is taken from the device itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coordinator.audit.job import ReceivedOutput
from coordinator.devices.pool import Pool
from coordinator.requests.messages import output_message
from coordinator.requests.request_state import RequestState
from coordinator.tasks.events import RequestId
from coordinator.tasks.task_graph import TaskGraph, TaskInput, TaskOutput
from models.check.tolerance import ACROSS
from models.cut.program import BlobSource, Program
from models.onnx_file.mapped import location_of
from models.tensors.boxes import Box
from models.tensors.selection import fitting
from protos import imbrex_pb2 as pb
from protos.wire.convert import box_message
from protos.wire.facts import DeviceId
from protos.wire.frames import Payload

# Weights that may be copied, such as the part of a fully connected layer that reads some rows of a
# map, whose columns are not contiguous in the file.
MOST_COPIED_BYTES = 8 << 20

# Identifies an answer: its device, and the tensor of which attempt of which task.
TensorKey = tuple[DeviceId, int, int, str]


def tolerance_of(base: float, device: DeviceId, pool: Pool) -> float:
    """How far a device may differ from this machine; devices of one kind may differ by `base`."""
    return base if pool.is_alike(device) else max(base, ACROSS)


@dataclass(slots=True, eq=False)
class RequestedBox:
    """A box that a device keeps or computes, requested by `items` with their `payloads`. It is
    copied to `target`, of which `missing` elements have not arrived.
    """

    device: DeviceId
    items: Sequence[pb.Item] = field(repr=False)
    key: TensorKey
    box: Box
    target: np.ndarray = field(repr=False)
    missing: int
    payloads: Sequence[Payload] = field(default=(), repr=False)


@dataclass(slots=True, eq=False)
class Case:
    """A task that ran on `device`; it can be judged when nothing of `wanted` is missing."""

    request: RequestId
    model: str
    device: DeviceId
    task: int
    tolerance: float
    program: Program = field(repr=False)
    blobs: BlobSource = field(repr=False)
    inputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    received: list[ReceivedOutput] = field(default_factory=list, repr=False)
    wanted: list[RequestedBox] = field(default_factory=list, repr=False)

    def fill(self, key: TensorKey, box: Box, array: np.ndarray) -> bool:
        """Takes a tensor; returns whether it was wanted."""
        for wanted in self.wanted:
            if wanted.key == key and wanted.box.contains(box):
                if array.dtype != wanted.target.dtype or array.shape != box.shape:
                    return False
                wanted.target[box.slices(wanted.box)] = array
                wanted.missing -= box.volume
                return True
        return False

    @property
    def is_complete(self) -> bool:
        """Whether everything that was requested has arrived."""
        return all(wanted.missing <= 0 for wanted in self.wanted)


def can_be_judged(graph: TaskGraph, task: int) -> bool:
    """Whether a task can be computed again with little memory: weights that the program reads
    directly from a file take none, others are copied several times before onnxruntime has them. A
    dynamic output cannot be judged: rounding decides how many elements it has.
    """
    if any(graph.tensors[output.tensor].is_dynamic for output in graph.tasks[task].outputs):
        return False
    copied = 0
    for ref in graph.programs[graph.tasks[task].program].weights:
        array = graph.blobs.array_of(ref.sha256)
        if not array.flags.c_contiguous or location_of(array) is None:
            copied += array.nbytes
    return copied <= MOST_COPIED_BYTES


def tasks_by_device(state: RequestState) -> Mapping[DeviceId, list[int]]:
    """The tasks of an answered request that each device computed and that can be judged; none if
    any task was tried twice, since it is then not certain which device computed what.
    """
    if state.retried or len(state.attempts) != len(state.graph.tasks):
        return {}
    by_device: dict[DeviceId, list[int]] = {}
    for (task, _), device in state.attempts.items():
        if can_be_judged(state.graph, task):
            by_device.setdefault(device, []).append(task)
    return by_device


def case_of(request: RequestId, state: RequestState, task: int, pool: Pool) -> Case:
    """The case of a task of an answered request without retries, whose devices still keep their
    results.
    """
    return _Builder(request, state, task, pool).case


class _Builder:
    def __init__(self, request: RequestId, state: RequestState, task: int, pool: Pool) -> None:
        self._state = state
        self._pool = pool
        self._graph: TaskGraph = state.graph
        self._attempts = {task: (number, of) for (task, number), of in state.attempts.items()}
        spec = self._graph.tasks[task]
        _, device = self._attempts[task]
        self.case = Case(
            request,
            self._graph.plan.model,
            device,
            task,
            tolerance_of(self._graph.tolerance, device, pool),
            self._graph.programs[spec.program],
            self._graph.blobs,
        )
        for needed in spec.inputs:
            self.case.inputs[needed.tensor] = self._input(needed)
        for output in spec.outputs:
            self.case.received += self._received(output)
        if not self.case.received:
            self.case.received += [self._own(output) for output in spec.outputs]

    def _input(self, needed: TaskInput) -> np.ndarray:
        array = np.empty(needed.box.shape, self._graph.tensors[needed.tensor].dtype)
        host = self._state.arrays.get(needed.tensor)
        if host is not None and (needed.summed or not self._state.direct):
            array[...] = host[needed.box.slices()]
            return array
        for piece in needed.pieces:
            target = array[piece.box.slices(needed.box)]
            if piece.source is None or any(
                output.to_host
                for output in self._graph.tasks[piece.source].outputs
                if output.tensor == needed.tensor
            ):
                assert host is not None
                target[...] = host[piece.box.slices()]
            else:
                self._ask_maker(piece.source, needed.tensor, piece.box, target)
        return array

    def _received(self, output: TaskOutput) -> Iterator[ReceivedOutput]:
        """What the host and the peers that read an output received of it."""
        state, case = self._state, self.case
        if output.to_host or not state.direct:
            held = state.partials.get((case.task, output.tensor))
            array = state.arrays[output.tensor] if held is None else held
            arrived = array[output.box.slices()]
            selection = fitting(state.selections, output.tensor, output.box)
            yield ReceivedOutput(output.tensor, output.box, output.yields, arrived, selection)
        for route in output.routes if state.direct else ():
            number, reader = self._attempts[route.reader]
            if reader == case.device or route.box.is_empty or not self._pool.shows(reader):
                continue
            array = self._empty(output.tensor, route.box)
            show = pb.Show(
                request=case.request,
                plan_version=self._graph.plan.version,
                task=route.reader,
                attempt=number,
                tensor=output.tensor,
                box=box_message(route.box),
            )
            self._ask(
                reader, pb.Item(show=show), (route.reader, number), output.tensor, route.box, array
            )
            yield ReceivedOutput(output.tensor, route.box, output.yields, array)

    def _own(self, output: TaskOutput) -> ReceivedOutput:
        """An output that nobody else has read, as the device itself keeps it."""
        array = self._empty(output.tensor, output.box)
        self._ask_maker(self.case.task, output.tensor, output.box, array)
        return ReceivedOutput(output.tensor, output.box, output.yields, array)

    def _empty(self, tensor: str, box: Box) -> np.ndarray:
        return np.empty(box.shape, self._graph.tensors[tensor].dtype)

    def _ask_maker(self, task: int, tensor: str, box: Box, target: np.ndarray) -> None:
        """Requests a box of a tensor from the device that computed it."""
        number, device = self._attempts[task]
        (output,) = (o for o in self._graph.tasks[task].outputs if o.tensor == tensor)
        resend = pb.Resend(
            request=self.case.request,
            plan_version=self._graph.plan.version,
            task=task,
            attempt=number,
            outputs=[output_message(self._graph, output, box)],
        )
        self._ask(device, pb.Item(resend=resend), (task, number), tensor, box, target)

    def _ask(
        self,
        device: DeviceId,
        item: pb.Item,
        attempt: tuple[int, int],
        tensor: str,
        box: Box,
        target: np.ndarray,
    ) -> None:
        key = (device, *attempt, tensor)
        self.case.wanted.append(RequestedBox(device, [item], key, box, target, box.volume))
