"""One task to be computed again: what it read, what others got of it, and what has to be asked for.

A task that reads from peers is judged by what those peers keep of their outputs, never by what the
device under examination says that it got. What it made is judged by what arrived: at the host, and
at the peers that read it. Only what stays on the device itself is its own word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from coordinator.audit.job import Received
from coordinator.execution.flight import Flight
from coordinator.execution.messages import output_message
from coordinator.tasks.events import RequestId
from coordinator.tasks.graph import TaskGraph, TaskInput, TaskOutput
from coordinator.tasks.plan import DeviceId
from models.boxes import Box
from models.mapped import place_of
from models.program import BlobSource, Program
from models.tolerance import ACROSS
from protos import imbrex_pb2 as pb
from protos.convert import box_message
from protos.frames import Payload

# Such as the part of a fully connected layer that reads some rows of a map: its columns lie apart.
MOST_COPIED_BYTES = 8 << 20

# A frame that answers: from which device, and about which tensor of which task's attempt.
Key = tuple[DeviceId, int, int, str]


class Peers(Protocol):
    """What is known of the devices that a request ran on."""

    def shows(self, device: DeviceId) -> bool:
        """Whether it can be asked what its peers sent."""
        ...

    def is_alike(self, device: DeviceId) -> bool:
        """Whether its processor is of our kind."""
        ...


def tolerance_of(base: float, device: DeviceId, peers: Peers) -> float:
    """How far a device may be from our own onnxruntime, where devices of one kind may be `base`."""
    return base if peers.is_alike(device) else max(base, ACROSS)


@dataclass(slots=True, eq=False)
class Wanted:
    """A box that a device keeps or makes, asked for by `items` with their `payloads`; it is copied
    to `target`, of whose elements `missing` have not come.
    """

    device: DeviceId
    items: Sequence[pb.Item] = field(repr=False)
    key: Key
    box: Box
    target: np.ndarray = field(repr=False)
    missing: int
    payloads: Sequence[Payload] = field(default=(), repr=False)


@dataclass(slots=True, eq=False)
class Case:
    """A task that ran on `device`. Judged when nothing of `wanted` is missing."""

    request: RequestId
    model: str
    device: DeviceId
    task: int
    tolerance: float
    program: Program = field(repr=False)
    blobs: BlobSource = field(repr=False)
    inputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    received: list[Received] = field(default_factory=list, repr=False)
    wanted: list[Wanted] = field(default_factory=list, repr=False)

    def fill(self, key: Key, box: Box, array: np.ndarray) -> bool:
        """Takes a tensor that was asked for; whether it was."""
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
        """Whether everything that was asked for has come."""
        return all(each.missing <= 0 for each in self.wanted)


def can_be_judged(graph: TaskGraph, task: int) -> bool:
    """Whether a task can be computed again in little memory: weights that lie in a file as the
    program reads them take none, others are copied several times until onnxruntime has them.
    """
    copied = 0
    for ref in graph.programs[graph.tasks[task].program].weights:
        array = graph.blobs.array_of(ref.sha256)
        if not array.flags.c_contiguous or place_of(array) is None:
            copied += array.nbytes
    return copied <= MOST_COPIED_BYTES


def tasks_by_device(flight: Flight) -> Mapping[DeviceId, list[int]]:
    """Which tasks each device computed of an answered request, of those that can be judged; none
    where one was tried twice: who computed what is not certain then.
    """
    if flight.retried or len(flight.attempts) != len(flight.graph.tasks):
        return {}
    found: dict[DeviceId, list[int]] = {}
    for (task, _), device in flight.attempts.items():
        if can_be_judged(flight.graph, task):
            found.setdefault(device, []).append(task)
    return found


def case_of(request: RequestId, flight: Flight, task: int, peers: Peers) -> Case:
    """The case of a task of an answered request without retries, whose devices still keep what
    they made.
    """
    return _Builder(request, flight, task, peers).case


class _Builder:
    def __init__(self, request: RequestId, flight: Flight, task: int, peers: Peers) -> None:
        self._flight = flight
        self._peers = peers
        self._graph: TaskGraph = flight.graph
        self._attempts = {task: (number, of) for (task, number), of in flight.attempts.items()}
        spec = self._graph.tasks[task]
        _, device = self._attempts[task]
        self.case = Case(
            request,
            self._graph.plan.model,
            device,
            task,
            tolerance_of(self._graph.tolerance, device, peers),
            self._graph.programs[spec.program],
            self._graph.blobs,
        )
        for each in spec.inputs:
            self.case.inputs[each.tensor] = self._input(each)
        for output in spec.outputs:
            self.case.received += self._received(output)
        if not self.case.received:
            self.case.received += [self._own(output) for output in spec.outputs]

    def _input(self, each: TaskInput) -> np.ndarray:
        array = np.empty(each.box.shape, self._graph.tensors[each.tensor].dtype)
        host = self._flight.arrays.get(each.tensor)
        if host is not None and (each.summed or not self._flight.direct):
            array[...] = host[each.box.slices()]
            return array
        for piece in each.pieces:
            target = array[piece.box.slices(each.box)]
            if piece.source is None or self._is_at_host(piece.source, each.tensor):
                assert host is not None
                target[...] = host[piece.box.slices()]
            else:
                self._ask_maker(piece.source, each.tensor, piece.box, target)
        return array

    def _is_at_host(self, task: int, tensor: str) -> bool:
        return any(o.to_host for o in self._graph.tasks[task].outputs if o.tensor == tensor)

    def _received(self, output: TaskOutput) -> Iterator[Received]:
        """What the host and the peers that read an output have of it."""
        flight, case = self._flight, self.case
        if output.to_host or not flight.direct:
            held = flight.partials.get((case.task, output.tensor))
            array = flight.arrays[output.tensor] if held is None else held
            yield Received(output.tensor, output.box, output.yields, array[output.box.slices()])
        for route in output.routes if flight.direct else ():
            number, reader = self._attempts[route.reader]
            if reader == case.device or route.box.is_empty or not self._peers.shows(reader):
                continue
            array = self._empty(output.tensor, route.box)
            show = pb.Show(
                request=case.request,
                plan_version=self._graph.plan.version,
                task=route.reader,
                attempt=number,
                tensor=output.tensor,
                box=box_message(route.box.spans),
            )
            self._ask(
                reader, pb.Item(show=show), (route.reader, number), output.tensor, route.box, array
            )
            yield Received(output.tensor, route.box, output.yields, array)

    def _own(self, output: TaskOutput) -> Received:
        """What the device itself keeps: nobody else has read it."""
        array = self._empty(output.tensor, output.box)
        self._ask_maker(self.case.task, output.tensor, output.box, array)
        return Received(output.tensor, output.box, output.yields, array)

    def _empty(self, tensor: str, box: Box) -> np.ndarray:
        return np.empty(box.shape, self._graph.tensors[tensor].dtype)

    def _ask_maker(self, task: int, tensor: str, box: Box, target: np.ndarray) -> None:
        """Asks the device that made a tensor for a box of what it keeps."""
        number, device = self._attempts[task]
        (output,) = (o for o in self._graph.tasks[task].outputs if o.tensor == tensor)
        resend = pb.Resend(
            request=self.case.request,
            plan_version=self._graph.plan.version,
            task=task,
            attempt=number,
            outputs=[output_message(output, box)],
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
        self.case.wanted.append(Wanted(device, [item], key, box, target, box.volume))
