"""The event simulator: the scheduler that runs requests, under a virtual clock.

It predicts the latency of any plan, and so ranks all planners by one measure. The scheduler's state
is the same that runs requests; only its environment is modelled (`media`): a device computes one
task at a time, in order of readiness, for `costs.block_s` seconds; wires and event loops handle one
message after the other. What one event sends to one device is a single message, and so is what a
task sends to one peer.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coordinator.costs.cluster import Cluster, Device
from coordinator.planning.simulate.media import Machines, Media
from coordinator.tasks.events import (
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
from coordinator.tasks.plan import Plan, TrafficBytes, tile_works
from coordinator.tasks.scheduler import Scheduler, dispatch
from coordinator.tasks.task_graph import TaskGraph, TaskSpec, outline_plan
from models.cut.units import Network
from models.tensors.boxes import Box
from protos.wire.facts import DeviceId

_REQUEST = RequestId("simulated")
ActivityKind = Literal["scatter", "compute", "gather", "halo"]


@dataclass(frozen=True, slots=True)
class Activity:
    """One bar of the simulated timeline, in seconds since the request's arrival; a message's bar
    lasts from its sending until it was read.
    """

    kind: ActivityKind
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
        """Seconds for which a device computes, the sum of what it computes at once."""
        return sum(
            activity.stop_s - activity.start_s
            for activity in self.activities
            if activity.device == device and activity.kind == "compute"
        )


def simulate(plan: Plan, network: Network, cluster: Cluster) -> Simulation:
    """Predicts one request of `plan` on an otherwise idle cluster.

    Raises:
        LostWorker: the cluster has no device.
    """
    return _Request(outline_plan(plan, network), network, cluster).run()


@dataclass(slots=True)
class _Arrival:
    """What a task on a device has received so far."""

    spec: TaskSpec
    attempt: int
    device: int
    missing: int
    set_up_s: float | None = None


# Tasks and the elements that arrive for their inputs.
_Parts = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Message:
    """Boxes in transit to tasks, sent at `start_s` for or by a task on a device."""

    kind: ActivityKind
    device: DeviceId
    tasks: tuple[int, ...]
    start_s: float
    parts: _Parts


class _Request:
    """The scheduler with one request, and the media around it."""

    def __init__(self, graph: TaskGraph, network: Network, cluster: Cluster) -> None:
        self.graph, self.network, self.cluster = graph, network, cluster
        self.media = Media(Machines(cluster))
        self.scheduler = Scheduler()
        self.activities: list[Activity] = []
        self._places = {device.id: d for d, device in enumerate(cluster.devices)}
        self._tiles = [(block, tile) for block in graph.plan.blocks for tile in block.tiles]
        self._waiting: dict[int, _Arrival] = {}
        self._bytes: Counter[ActivityKind] = Counter()
        self._pending = {_REQUEST}

    def run(self) -> Simulation:
        """Runs until the request ends."""
        for device in self.cluster.devices:
            self.scheduler.step(Joined(device.id))
        self._do(self.scheduler.step(Submitted(_REQUEST, self.graph)))
        self.media.run(self._pending)
        moved = TrafficBytes(*(self._bytes[kind] for kind in ("scatter", "gather", "halo")))
        return Simulation(self.media.now, moved, tuple(self.activities))

    def _do(self, actions: Sequence[Action]) -> None:
        """Executes actions; what a step sends to one device at once is one message, as with the
        driver.
        """
        messages: dict[int, dict[int, list[tuple[str, Box]]]] = {}
        now, later = dispatch(actions)
        for action in now:
            match action:
                case Assign(task=task, device=device):
                    self._assign(action)
                    self.media.describe_tasks(self._places[device], 1)
                    if not self.graph.tasks[task].inputs:
                        messages.setdefault(self._places[device], {})[task] = []
                case Send(_, task, _, device, tensor, box):
                    tasks = messages.setdefault(self._places[device], {})
                    tasks.setdefault(task, []).append((tensor, box))
                case Complete():
                    self._pending.clear()
                case Abort(_, error):
                    raise error
                case _:
                    pass
        for d, tasks in messages.items():
            size = sum(self._size(*part) for boxes in tasks.values() for part in boxes)
            parts = [(k, sum(box.volume for _, box in boxes)) for k, boxes in tasks.items()]
            message = self._message("scatter", d, tuple(tasks), parts, size)
            self.media.down(d, size, self._told, message)
        for assignments in later:
            d = self._places[assignments[0].device]
            for assignment in assignments:
                self._assign(assignment).missing += 1  # its description
            self.media.describe_tasks(d, len(assignments))
            self.media.down(
                d, 0, self._described, [(assignment.task, 1) for assignment in assignments]
            )

    def _assign(self, action: Assign) -> _Arrival:
        spec, d = self.graph.tasks[action.task], self._places[action.device]
        missing = sum(entry.box.volume for entry in spec.inputs)
        arrival = self._waiting[action.task] = _Arrival(spec, action.attempt, d, missing)
        return arrival

    def _message(
        self, kind: ActivityKind, d: int, tasks: tuple[int, ...], parts: _Parts, size: int
    ) -> _Message:
        self._bytes[kind] += size
        return _Message(kind, self.cluster.devices[d].id, tasks, self.media.now, parts)

    def _told(self, message: _Message) -> None:
        self._note(message.kind, message.device, message.tasks, message.start_s)
        self._described(message.parts)

    def _described(self, parts: _Parts) -> None:
        """The host told a device of tasks, or gave it boxes of tasks that it knows."""
        for task, _ in parts:
            arrival = self._waiting[task]
            if arrival.set_up_s is None:
                arrival.set_up_s = self.media.set_up(arrival.device)
        self._fill(parts)

    def _arrived(self, message: _Message) -> None:
        self._note(message.kind, message.device, message.tasks, message.start_s)
        self._fill(message.parts)

    def _fill(self, parts: _Parts) -> None:
        """Adds received elements; a task with complete inputs joins its device's queue."""
        for task, volume in parts:
            arrival = self._waiting[task]
            arrival.missing -= volume
            if not arrival.missing:
                seconds = self._computing_s(task, self.cluster.devices[arrival.device])
                done = (task, seconds)
                self.media.compute(
                    arrival.device, seconds, arrival.set_up_s or 0.0, self._computed, done
                )

    def _computing_s(self, task: int, device: Device) -> float:
        if len(self._tiles) == 1 and device.unsplit_s:
            return device.unsplit_s
        return device.costs.block_s(tile_works(self.network, *self._tiles[task]))

    def _computed(self, done: tuple[int, float]) -> None:
        """Sends a task's outputs: one message to each peer that reads them, one to the host."""
        task, seconds = done
        arrival = self._waiting[task]
        d, device = arrival.device, self.cluster.devices[arrival.device]
        self._note("compute", device.id, (task,), self.media.now - seconds)
        self._pass_on(task, d)
        outputs = [output for output in arrival.spec.outputs if output.to_host]
        if not outputs:
            finished = Finished(_REQUEST, task, arrival.attempt)
            self.media.at(self.media.now + device.link.latency_s, self._news, finished)
            return
        size = 0
        for output in outputs:
            share = self.graph.tensors[output.tensor].read_share
            size += int(self._size(output.tensor, output.box) * share)
        self.media.up(d, size, self._home, self._message("gather", d, (task,), [], size))

    def _pass_on(self, task: int, d: int) -> None:
        """Sends to peers first; what its own device reads is used when the messages are written."""
        peers: dict[int, _Parts] = {}
        sizes: Counter[int] = Counter()
        for output in self.graph.tasks[task].outputs:
            for route in output.routes:
                to = self._waiting[route.reader].device
                peers.setdefault(to, []).append((route.reader, route.box.volume))
                sizes[to] += self._size(output.tensor, route.box)
        kept = peers.pop(d, [])
        for to, parts in peers.items():
            message = self._message("halo", d, (task,), parts, sizes[to])
            self.media.across(d, to, sizes[to], self._arrived, message)
        self._fill(kept)

    def _home(self, message: _Message) -> None:
        """A task's outputs arrived at the host."""
        (task,) = message.tasks
        self._note(message.kind, message.device, message.tasks, message.start_s)
        arrival = self._waiting[task]
        for output in arrival.spec.outputs:
            if output.to_host:
                tensor, box = output.tensor, output.box
                self._do(
                    self.scheduler.step(Received(_REQUEST, task, arrival.attempt, tensor, box))
                )

    def _news(self, finished: Finished) -> None:
        self._do(self.scheduler.step(finished))

    def _note(
        self, kind: ActivityKind, device: DeviceId, tasks: Sequence[int], start_s: float
    ) -> None:
        self.activities += (Activity(kind, device, task, start_s, self.media.now) for task in tasks)

    def _size(self, tensor: str, box: Box) -> int:
        return box.volume * self.graph.tensors[tensor].itemsize
