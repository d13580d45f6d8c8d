"""The times that the scheduler may expect of tasks, from present knowledge of the devices."""

from __future__ import annotations

import math

from coordinator.devices.devices import Devices
from coordinator.tasks.deadlines import Expectations
from coordinator.tasks.task_graph import TaskGraph
from models.cut.program import Program
from models.tensors.boxes import Box
from models.tensors.memory import needed_bytes
from protos.wire.convert import dtype_of
from protos.wire.facts import DeviceId

# Reading weights from an SD card and making a session, after the weights have arrived.
PREPARE_S = 5.0


class LiveExpectations(Expectations):
    """From what was measured of the devices."""

    def __init__(self, devices: Devices) -> None:
        self._pool, self._measured = devices.pool, devices.measured
        self._known = devices.known

    def task_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Seconds from sending a task's inputs to an idle device until its outputs are back, if the
        inputs of its whole block share the wire.
        """
        computing_s = self._measured.computing_s(graph, task, device, self._known)
        if computing_s is None:
            return math.inf
        link, block = self._measured.link(device), graph.tasks[task].block
        specs = [spec for spec in graph.tasks if spec.block == block]
        input_bytes = sum(
            _size(graph, entry.tensor, entry.box) for spec in specs for entry in spec.inputs
        )
        output_bytes = sum(
            _size(graph, output.tensor, output.box) for spec in specs for output in spec.outputs
        )
        return link.transfer_s(input_bytes) + computing_s + link.transfer_s(output_bytes)

    def prepare_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        """Seconds until the device can run the task's program, with all weights transferred; 0 if
        it can already.
        """
        name = graph.tasks[task].program
        if self._has(device, name):
            return 0.0
        size = _weight_bytes(graph.programs[name])
        return PREPARE_S + self._measured.link(device).transfer_s(size)

    def has_room(self, graph: TaskGraph, task: int, device: DeviceId) -> bool:
        """Whether the device can prepare and hold the task's program beside its own."""
        name, known = graph.tasks[task].program, self._known(device)
        if known is None or not known.memory_bytes or self._has(device, name):
            return True
        own, more = graph.programs_of(device), _weight_bytes(graph.programs[name])
        held = sum(map(_weight_bytes, own)) + more
        needed = needed_bytes(len(own) + 1, held, more, 0, 0, 0)
        return needed <= known.memory_bytes

    def _has(self, device: DeviceId, program: str) -> bool:
        connection = self._pool.get(device)
        return connection is not None and program in connection.programs.ready

    def takes(self, graph: TaskGraph, device: DeviceId) -> bool:
        """Whether the device's limits allow the tasks of this plan."""
        known = self._known(device)
        if known is None or known.limits is None:
            return True
        return graph.whole is not None and known.limits.take(*graph.whole)


def _weight_bytes(program: Program) -> int:
    return sum(
        math.prod(weight.dims) * dtype_of(weight.data_type).itemsize for weight in program.weights
    )


def _size(graph: TaskGraph, tensor: str, box: Box) -> int:
    return box.volume * graph.tensors[tensor].itemsize
