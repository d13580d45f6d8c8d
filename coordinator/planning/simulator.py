"""The event simulator: the scheduler of execution under a virtual clock.

It predicts the latency of any plan and so ranks all planners by one measure. What runs is the
same pure state that runs requests; only the world around it is modelled:

* a device computes one task at a time, in order of readiness, for `costs.block_s` seconds;
* a message occupies every link on its way for `message_s + bytes / rate` and arrives `latency_s`
  after that; links serve messages first come, first served;
* `star`: the host has one full-duplex link, which all traffic crosses, peers' once each way;
  `air`: one half-duplex medium that everybody shares, peers' traffic costs twice; `switch`: full
  duplex per port [DESIGN, Media];
* what a task passes to one peer is one message;
* the device's own endpoint work (`endpoint_byte_s`) delays the task or the message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from coordinator.execution.events import (
    Abort,
    Action,
    Assign,
    Complete,
    Finished,
    Joined,
    Received,
    RequestId,
    Send,
    Submitted,
)
from coordinator.execution.scheduler import Scheduler
from coordinator.execution.tasks import TaskGraph, TaskSpec, outline_plan
from coordinator.planning.devices import Cluster, Device
from coordinator.planning.plan import DeviceId, Plan, TrafficBytes, tile_works
from models.boxes import Box
from models.units import Network

_REQUEST = RequestId("simulated")


@dataclass(frozen=True, slots=True)
class Activity:
    """One bar of the simulated timeline, in seconds from the request's arrival."""

    kind: Literal["scatter", "compute", "gather", "halo"]
    device: DeviceId
    task: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the simulator predicts of one request."""

    latency_s: float
    traffic: TrafficBytes
    activities: tuple[Activity, ...]

    def busy_s(self, device: DeviceId) -> float:
        """Seconds that a device computes."""
        return sum(
            each.stop_s - each.start_s
            for each in self.activities
            if each.device == device and each.kind == "compute"
        )


def simulate(plan: Plan, network: Network, cluster: Cluster) -> Simulation:
    """Predicts one request of `plan` on an otherwise idle cluster.

    Raises:
        LostWorker: the cluster has no device.
    """
    return _World(outline_plan(plan, network), network, cluster).run()


@dataclass(slots=True)
class _Arrival:
    """What a task on a device has received so far."""

    spec: TaskSpec
    attempt: int
    missing: int


@dataclass(slots=True)
class _World:
    """Devices, links and the clock around the scheduler."""

    graph: TaskGraph
    network: Network
    cluster: Cluster
    now: float = 0.0
    scheduler: Scheduler = field(default_factory=Scheduler)
    activities: list[Activity] = field(default_factory=list)
    _queue: list[tuple[float, int, object]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _free: dict[str, float] = field(default_factory=dict)
    _waiting: dict[int, _Arrival] = field(default_factory=dict)
    _scatter: int = 0
    _gather: int = 0
    _halo: int = 0
    _ended: float | None = None

    def run(self) -> Simulation:
        """Until the request ends."""
        for device in self.cluster.devices:
            self.scheduler.step(Joined(device.id))
        self._do(self.scheduler.step(Submitted(_REQUEST, self.graph)))
        while self._queue and self._ended is None:
            self.now, _, what = heapq.heappop(self._queue)
            match what:
                case _Filled(task, boxes):
                    self._filled(task, boxes)
                case _Computed(task):
                    self._computed(task)
                case _Home(events):
                    for event in events:
                        self._do(self.scheduler.step(event))
        assert self._ended is not None, "a request always ends"
        traffic = TrafficBytes(self._scatter, self._gather, self._halo)
        return Simulation(self._ended, traffic, tuple(self.activities))

    def _at(self, when: float, what: object) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def _do(self, actions: Sequence[Action]) -> None:
        """Sends of one step to one device travel as one message, as the driver sends them."""
        messages: dict[DeviceId, dict[int, list[tuple[str, Box]]]] = {}
        for action in actions:
            match action:
                case Assign(_, task, attempt, device):
                    spec = self.graph.tasks[task]
                    missing = sum(each.box.volume for each in spec.inputs)
                    self._waiting[task] = _Arrival(spec, attempt, missing)
                case Send(_, task, _, device, tensor, box):
                    boxes = messages.setdefault(device, {}).setdefault(task, [])
                    boxes.append((tensor, box))
                case Complete():
                    self._ended = self.now
                case Abort(_, error):
                    raise error
                case _:
                    pass
        for device, tasks in messages.items():
            self._scatter_message(self.cluster.device(device), tasks)

    def _scatter_message(
        self, device: Device, tasks: Mapping[int, Sequence[tuple[str, Box]]]
    ) -> None:
        size = sum(self._bytes(tensor, box) for boxes in tasks.values() for tensor, box in boxes)
        self._scatter += size
        start, stop = self._transfer(device, size, "down")
        arrival = stop + device.link.latency_s + size * device.link.endpoint_byte_s
        for task, boxes in tasks.items():
            self.activities.append(Activity("scatter", device.id, task, start, arrival))
            self._at(arrival, _Filled(task, sum(box.volume for _, box in boxes)))

    def _filled(self, task: int, volume: int) -> None:
        """Boxes arrived at a device; a task whose inputs are full joins its device's queue."""
        arrival = self._waiting[task]
        arrival.missing -= volume
        if arrival.missing:
            return
        device = self.cluster.device(self._device(task))
        start = max(self.now, self._free.get(f"cpu {device.id}", 0.0))
        stop = start + self._task_s(arrival.spec, device)
        self._free[f"cpu {device.id}"] = stop
        self.activities.append(Activity("compute", device.id, task, start, stop))
        self._at(stop, _Computed(task))

    def _computed(self, task: int) -> None:
        """A task's outputs leave: one message to each peer that reads them, one to the host."""
        arrival = self._waiting[task]
        device = self.cluster.device(self._device(task))
        self._pass_on(task, device)
        outputs = [output for output in arrival.spec.outputs if output.to_host]
        if not outputs:
            home = self.now + device.link.latency_s
            self._at(home, _Home((Finished(_REQUEST, task, arrival.attempt),)))
            return
        size = sum(self._bytes(output.tensor, output.box) for output in outputs)
        self._gather += size
        begin = self.now + size * device.link.endpoint_byte_s
        start, stop = self._transfer(device, size, "up", begin)
        home = stop + device.link.latency_s
        self.activities.append(Activity("gather", device.id, task, start, home))
        events = [
            Received(_REQUEST, task, arrival.attempt, output.tensor, output.box)
            for output in outputs
        ]
        self._at(home, _Home(tuple(events)))

    def _pass_on(self, task: int, device: Device) -> None:
        """What peers read of a task's outputs; its own device has it at once."""
        peers: dict[DeviceId, list[tuple[int, int, int]]] = {}
        for output in self.graph.tasks[task].outputs:
            for route in output.routes:
                size = self._bytes(output.tensor, route.box)
                part = (route.reader, route.box.volume, size)
                peers.setdefault(self._device(route.reader), []).append(part)
        for name, parts in peers.items():
            arrival = self.now
            if name != device.id:
                total = sum(size for _, _, size in parts)
                self._halo += total
                start, arrival = self._peer_transfer(device, self.cluster.device(name), total)
                self.activities.append(Activity("halo", device.id, task, start, arrival))
            for reader, volume, _ in parts:
                self._at(arrival, _Filled(reader, volume))

    def _peer_transfer(self, source: Device, target: Device, size: int) -> tuple[float, float]:
        """Occupies every link from peer to peer; returns when it starts and arrives."""
        begin = self.now + size * source.link.endpoint_byte_s
        slower = max(source.link, target.link, key=lambda link: link.transfer_s(size))
        seconds = slower.message_s + size / slower.bytes_per_s
        occupied = {f"up {source.id}": seconds, f"down {target.id}": seconds}
        if self.cluster.medium == "air":
            occupied = {"air": 2 * seconds}
        elif self.cluster.medium == "star" and self.cluster.uplink is not None:
            shared = self.cluster.uplink.message_s + size / self.cluster.uplink.bytes_per_s
            occupied |= {"up host": shared, "down host": shared}
        start = max([begin, *(self._free.get(name, 0.0) for name in occupied)])
        for name, busy in occupied.items():
            self._free[name] = start + busy
        arrival = start + max(occupied.values()) + slower.latency_s
        return start, arrival + size * target.link.endpoint_byte_s

    def _transfer(
        self, device: Device, size: int, direction: str, begin: float | None = None
    ) -> tuple[float, float]:
        """Occupies the links between host and device; returns when it starts and ends."""
        begin = self.now if begin is None else begin
        if device.host:
            return begin, begin + device.link.message_s + size / device.link.bytes_per_s
        occupied = [f"{direction} {device.id}"]
        if self.cluster.medium == "air":
            occupied = ["air"]
        elif self.cluster.uplink is not None:
            occupied.append(f"{direction} host")
        start = max([begin, *(self._free.get(name, 0.0) for name in occupied)])
        stop = start + device.link.message_s + size / device.link.bytes_per_s
        for name in occupied:
            uplink = self.cluster.uplink
            if name.endswith(" host") and uplink is not None:
                self._free[name] = start + uplink.message_s + size / uplink.bytes_per_s
            else:
                self._free[name] = stop
        return start, stop

    def _task_s(self, spec: TaskSpec, device: Device) -> float:
        block = self.graph.plan.blocks[spec.block]
        first = next(task.id for task in self.graph.tasks if task.block == spec.block)
        tile = block.tiles[spec.id - first]
        return device.costs.block_s(tile_works(self.network, block, tile))

    def _device(self, task: int) -> DeviceId:
        device = self.scheduler.requests[_REQUEST].tasks[task].device
        assert device is not None
        return device

    def _bytes(self, tensor: str, box: Box) -> int:
        return box.volume * self.graph.tensors[tensor].itemsize


@dataclass(frozen=True, slots=True)
class _Filled:
    """Elements of a task's inputs arrived."""

    task: int
    volume: int


@dataclass(frozen=True, slots=True)
class _Computed:
    """A device finished a task."""

    task: int


@dataclass(frozen=True, slots=True)
class _Home:
    """Outputs, or news of a task, arrived at the host."""

    events: tuple[Received | Finished, ...]
