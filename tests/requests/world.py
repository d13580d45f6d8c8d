"""Devices, messages and a host's memory around a scheduler: everything can come in any order.

Tasks compute numbers, so that a right answer is one that equals the whole chain's.
"""

from dataclasses import dataclass, field

from coordinator.tasks.events import (
    Abort,
    Accuse,
    Add,
    Assign,
    Cancel,
    Complete,
    Event,
    Failed,
    Finished,
    Lost,
    Merge,
    Received,
    Release,
    RequestId,
    Resend,
    Send,
    Submitted,
)
from coordinator.tasks.scheduler import Scheduler
from coordinator.tasks.task_graph import TaskGraph, TaskSpec
from models.tensors.boxes import Box
from protos.wire.facts import DeviceId
from tests.requests.sketches import WIDTH

Cells = dict[int, int]
# What tasks without inputs compute from.
CONSTANT = {i: 3 * i + 1 for i in range(WIDTH)}
Key = tuple[RequestId, int, int]


class Expected:
    """Every task takes a second, preparing a fifth."""

    def task_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        return 1.0

    def prepare_s(self, graph: TaskGraph, task: int, device: DeviceId) -> float:
        return 0.2

    def has_room(self, graph: TaskGraph, task: int, device: DeviceId) -> bool:
        return True

    def takes(self, graph: TaskGraph, device: DeviceId) -> bool:
        return True


def cells(box: Box) -> range:
    return range(box[0].start, box[0].stop)


def layer(block: int, source: Cells, i: int) -> int:
    """One element of a block's output, from three of its input."""
    left, right = (source[j] if 0 <= j < WIDTH else 0 for j in (i - 1, i + 1))
    return (31 * left + 17 * source[i] + 7 * right + block) % 10007


def answer(graph: TaskGraph, first: Cells) -> Cells:
    """What the whole chain makes of an input."""
    if not graph.tasks[0].inputs:
        first = CONSTANT
    for block in range(len(graph.tensors) - 1):
        first = {i: layer(block, first, i) for i in range(WIDTH)}
    return first


@dataclass(eq=False)
class Job:
    """A task on a device."""

    key: Key
    spec: TaskSpec
    host: list[tuple[str, Box]]
    routes: list[tuple[DeviceId, Key, str, Box]]
    inputs: dict[str, Cells] = field(default_factory=dict)
    output: Cells | None = None

    @property
    def full(self) -> bool:
        return self.output is None and all(
            set(cells(each.box)) <= set(self.inputs.get(each.tensor, ()))
            for each in self.spec.inputs
        )


@dataclass(eq=False)
class Message:
    """On its way; `to` is None for the host."""

    to: DeviceId | None
    key: Key
    event: Event | None
    tensor: str = ""
    values: Cells = field(default_factory=dict)


class World:
    """Feeds a scheduler and does what it says."""

    def __init__(self, state: Scheduler) -> None:
        self.state = state
        self.now = 0.0
        self.jobs: dict[DeviceId, dict[Key, Job]] = {}
        self.early: dict[DeviceId, list[Message]] = {}
        self.messages: list[Message] = []
        self.graphs: dict[RequestId, TaskGraph] = {}
        self.memory: dict[RequestId, dict[str, Cells]] = {}
        self.ends: dict[RequestId, list[str]] = {}
        self.accused: set[DeviceId] = set()

    # ------------------------------------------------------------ what happens

    def submit(self, graph: TaskGraph) -> RequestId:
        request = RequestId(f"r{len(self.graphs)}")
        self.graphs[request] = graph
        first = {i: (7 * i + len(self.graphs)) % 101 for i in range(WIDTH)}
        self.memory[request] = {"t0": first}
        self.ends[request] = []
        self.step(Submitted(request, graph))
        return request

    def step(self, event: Event, values: Cells | None = None) -> None:
        for action in self.state.step(event, self.now):
            self.act(action, values)

    def join(self, device: DeviceId, event: Event) -> None:
        self.jobs.setdefault(device, {})
        self.early.setdefault(device, [])
        self.step(event)

    def lose(self, device: DeviceId) -> None:
        """Its work is gone; what it sent before may still arrive."""
        self.jobs.pop(device, None)
        self.early.pop(device, None)
        self.step(Lost(device))

    def all_jobs(self) -> list[tuple[DeviceId, Job]]:
        return [(name, job) for name, jobs in self.jobs.items() for job in jobs.values()]

    def full_jobs(self) -> list[tuple[DeviceId, Job]]:
        return [(name, job) for name, job in self.all_jobs() if job.full]

    def compute(self, device: DeviceId, job: Job, halves: bool = False) -> None:
        """Runs a job; its outputs are under way then."""
        read = [job.inputs[each.tensor] for each in job.spec.inputs]
        (source,) = read or [CONSTANT]
        box = job.spec.outputs[0].box
        job.output = {i: layer(job.spec.block, source, i) for i in cells(box)}
        for to, key, tensor, part in job.routes:
            values = {i: job.output[i] for i in cells(part)}
            self.messages.append(Message(to, key, None, tensor, values))
        self.messages.append(Message(None, job.key, Finished(*job.key)))
        self.to_host(job, halves)

    def to_host(self, job: Job, halves: bool = False) -> None:
        for tensor, box in job.host:
            start, stop = box[0].start, box[0].stop
            middle = (start + stop) // 2 if halves and stop - start > 1 else stop
            for a, b in ((start, middle), (middle, stop)):
                if a < b:
                    part = Box.of((a, b))
                    values = {i: job.output[i] for i in cells(part)}
                    event = Received(*job.key, tensor, part)
                    self.messages.append(Message(None, job.key, event, tensor, values))

    def deliver(self, message: Message) -> None:
        if message.to is None:
            self.step(message.event, message.values)
        elif message.to in self.jobs:
            self._piece(message)

    def _piece(self, message: Message) -> None:
        job = self.jobs[message.to].get(message.key)
        if job is None:
            self.early[message.to].append(message)
        elif job.output is None:
            job.inputs.setdefault(message.tensor, {}).update(message.values)

    # ------------------------------------------------------------ what is done about it

    def act(self, action: object, values: Cells | None) -> None:
        match action:
            case Assign(request, task, number, device):
                self._assign((request, task, number), device)
            case Send(request, task, number, device, tensor, box):
                held = self.memory[request].get(tensor, {})
                assert set(cells(box)) <= set(held), "sent before it was merged"
                part = {i: held[i] for i in cells(box)}
                job = self.jobs[device].get((request, task, number))
                if job is not None:
                    assert not set(part) & set(job.inputs.get(tensor, ())), "sent twice"
                    job.inputs.setdefault(tensor, {}).update(part)
            case Resend(request, task, number, device, tensors):
                assert device in self.jobs
                job = self.jobs[device].get((request, task, number))
                if job is None or job.output is None:
                    event = Failed(request, task, number, "no_output", "gone")
                    self.messages.append(Message(None, (request, task, number), event))
                else:
                    job.host = [(o.tensor, o.box) for o in job.spec.outputs if o.tensor in tensors]
                    self.to_host(job)
            case Cancel(request, task, number, device):
                self.jobs.get(device, {}).pop((request, task, number), None)
            case Merge(request, _, tensor, box):
                assert set(values) == set(cells(box))
                self.memory[request].setdefault(tensor, {}).update(values)
            case Complete(request):
                self.ends[request].append("complete")
            case Abort(request, error):
                self.ends[request].append(str(error))
            case Release(request, devices):
                for device in devices:
                    jobs = self.jobs[device]
                    for key in [key for key in jobs if key[0] == request]:
                        del jobs[key]
            case Accuse(device):
                self.accused.add(device)
            case Add():
                raise AssertionError("nothing is summed here")

    def _assign(self, key: Key, device: DeviceId) -> None:
        assert device in self.state.devices
        run = self.state.requests.get(key[0])
        if run is None:
            return  # it ended in the same step
        spec = run.graph.tasks[key[1]]
        routes = [
            (reader.device, (key[0], route.reader, reader.number), output.tensor, route.box)
            for output in (spec.outputs if run.direct else ())
            for route in output.routes
            if (reader := run.tasks[route.reader].latest)
        ]
        host = [(o.tensor, o.box) for o in spec.outputs if o.to_host or not run.direct]
        job = self.jobs[device][key] = Job(key, spec, host, routes)
        waiting = [each for each in self.early[device] if each.key == job.key]
        self.early[device] = [each for each in self.early[device] if each.key != job.key]
        for message in waiting:
            self._piece(message)
