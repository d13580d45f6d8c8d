"""Event loops, wires and processors under a virtual clock.

Each handles one thing at a time, first come, first served, except processors of devices that
compute several tasks at once. A message from host to device passes the host's event loop, the wires
on its way (all at once), its latency, and the device's event loop; then it takes effect. A task
passes its device's event loop, then its processor.

`star`: the host has one full-duplex wire, which all traffic crosses, and traffic between peers once
in each direction; `switch`: each port is a wire; `air`: one half-duplex medium shared by all, on
which traffic between peers counts twice because it is relayed [DESIGN, Media]. The host worker
shares the host's port with the coordinator, and needs no wire to it.
"""

from collections.abc import Callable, Sized
from heapq import heappop, heappush, heapreplace
from itertools import count

from coordinator.costs.cluster import Cluster, EndpointOverhead, Link

# `happens(what)` is called when the event occurs.
Happens = Callable[..., None]
_Message = tuple[int, int, Happens, object]
_PeerMessage = tuple[int, int, int, Happens, object]
# Seconds per message and per byte.
_End = tuple[float, float]
# The links of a message's way, and the numbers of the wires: its own, and those that all share.
_Way = tuple[tuple[Link, ...], tuple[int, ...], tuple[int, ...]]
# The host's place in lists by device.
_HOST = -1


class Machines:
    """What is known of a cluster's media and machines before anything is sent; devices are indices
    into the cluster's.

    Wires have numbers: of each device to the host, of the host to each device, the same two that
    all devices share, and the air.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.links = [device.link for device in cluster.devices]
        self.is_host = [device.host for device in cluster.devices]
        self.near = [_end(link.near) for link in self.links]
        self.far = [_end(link.far) for link in self.links]
        self.to_peers = [_end(link.far.to_peers) for link in self.links]
        self.concurrency = [device.concurrency for device in cluster.devices]
        self.uplink = cluster.uplink
        self.is_air, self._is_star = cluster.medium == "air", cluster.medium == "star"
        devices = len(self.links)
        self.up, self.down = range(devices), range(devices, 2 * devices)
        self.shared_up, self.shared_down, self.air = range(2 * devices, 2 * devices + 3)
        self.wires = 2 * devices + 3
        self._ways: dict[tuple[int, int], _Way] = {}

    def way(self, d: int, to: int) -> _Way:
        """The links between two peers, of which the slower determines the speed, and the wires."""
        found = self._ways.get((d, to))
        if found is None:
            found = self._ways[d, to] = self._way(d, to)
        return found

    def _way(self, d: int, to: int) -> _Way:
        ends = [end for end in (d, to) if not self.is_host[end]]
        links = tuple(dict.fromkeys(self.links[end] for end in ends))
        if self.is_air:
            return links, (self.air,), ()
        wires = [self.up[d]] if d in ends else []
        wires += [self.down[to]] if to in ends else []
        relayed = self._is_star and len(ends) == 2
        shared: list[int] = []
        if self.uplink is not None:
            shared += [self.shared_up] if relayed or self.is_host[to] else []
            shared += [self.shared_down] if relayed or self.is_host[d] else []
        return links, tuple(wires), tuple(shared)


def _end(endpoint: EndpointOverhead) -> _End:
    return endpoint.message_s, endpoint.byte_s


class Media:
    """A cluster's media and machines while messages travel and tasks are computed."""

    def __init__(self, machines: Machines) -> None:
        self.now = 0.0
        self._machines, self._links = machines, machines.links
        # When each wire, and each event loop (the host's is the last), is free.
        self._wires = [0.0] * machines.wires
        self._loops = [0.0] * (len(machines.links) + 1)
        # For each device, when each of its concurrent tasks ends, as a heap.
        self._processors = [[0.0] * tasks for tasks in machines.concurrency]
        # When each device has set up all tasks of which it was told.
        self._set_up_s = [0.0] * len(machines.links)
        self._queue: list[tuple[float, int, Happens, object]] = []
        self._order = count()

    def run(self, pending: Sized) -> None:
        """Runs one event after the other while anything is `pending`."""
        queue = self._queue
        while pending:
            self.now, _, happens, what = heappop(queue)
            happens(what)

    def at(self, when: float, happens: Happens, what: object) -> None:
        """Adds an event that happens at `when`."""
        heappush(self._queue, (when, next(self._order), happens, what))

    def describe_tasks(self, d: int, tasks: int) -> None:
        """The host describes tasks to a device; its next message waits for that."""
        seconds = self._links[d].near.task_s * tasks
        if seconds:
            self._loops[_HOST] = max(self.now, self._loops[_HOST]) + seconds

    def down(self, d: int, size: int, happens: Happens, what: object) -> None:
        """A message from the host to a device."""
        message = (d, size, happens, what)
        self._handled(_HOST, self._machines.near[d], size, self._down_wire, message)

    def up(self, d: int, size: int, happens: Happens, what: object) -> None:
        """A message from a device to the host."""
        message = (d, size, happens, what)
        self._handled(d, self._machines.far[d], size, self._up_wire, message)

    def across(self, d: int, to: int, size: int, happens: Happens, what: object) -> None:
        """A message from one device to another."""
        message = (d, to, size, happens, what)
        self._handled(d, self._machines.to_peers[d], size, self._across_wires, message)

    def set_up(self, d: int) -> float:
        """A device is told of a task; returns when it will have set it up."""
        free, now = self._set_up_s[d], self.now
        self._set_up_s[d] = (free if free > now else now) + self._links[d].far.set_up_s
        return self._set_up_s[d]

    def compute(
        self, d: int, seconds: float, set_up_s: float, happens: Happens, what: object
    ) -> None:
        """A task whose inputs are on the device, set up at `set_up_s`; the event is its end."""
        task_s, now = self._links[d].far.task_s, self.now
        ready = set_up_s if set_up_s > now else now
        if task_s:
            free = self._loops[d]
            self._loops[d] = (free if free > now else now) + task_s
            ready = max(self._loops[d], ready + task_s)
        task = (d, seconds, happens, what)
        if ready > now:
            heappush(self._queue, (ready, next(self._order), self._processor, task))
        else:
            self._processor(task)

    # ------------------------------------------------------------ machines

    def _handled(self, d: int, end: _End, size: int, then: Happens, what: object) -> None:
        """An event loop sends or receives a message, as soon as it is free."""
        message_s, byte_s = end
        seconds = message_s + size * byte_s
        if seconds:
            free, now = self._loops[d], self.now
            stop = self._loops[d] = (free if free > now else now) + seconds
            heappush(self._queue, (stop, next(self._order), then, what))
        else:
            then(what)

    def _processor(self, task: tuple[int, float, Happens, object]) -> None:
        d, seconds, happens, what = task
        processors, now = self._processors[d], self.now
        free = processors[0]
        stop = (free if free > now else now) + seconds
        heapreplace(processors, stop)
        heappush(self._queue, (stop, next(self._order), happens, what))

    # ------------------------------------------------------------ wires

    def _down_wire(self, message: _Message) -> None:
        d, size, _, _ = message
        machines = self._machines
        left = self._through(d, size, machines.down[d], machines.shared_down)
        self.at(left + self._links[d].latency_s, self._down_end, message)

    def _down_end(self, message: _Message) -> None:
        d, size, happens, what = message
        self._handled(d, self._machines.far[d], size, happens, what)

    def _up_wire(self, message: _Message) -> None:
        d, size, _, _ = message
        machines = self._machines
        left = self._through(d, size, machines.up[d], machines.shared_up)
        self.at(left + self._links[d].latency_s, self._up_end, message)

    def _up_end(self, message: _Message) -> None:
        d, size, happens, what = message
        self._handled(_HOST, self._machines.near[d], size, happens, what)

    def _through(self, d: int, size: int, own: int, shared: int) -> float:
        """Occupies the wires between host and device; returns when the message has left them."""
        machines, wires = self._machines, self._wires
        seconds = self._links[d].occupied_s(size)
        if machines.is_host[d]:
            return self.now + seconds
        if machines.is_air:
            own = machines.air
        start = max(self.now, wires[own])
        if machines.uplink is not None and not machines.is_air:
            start = max(start, wires[shared])
            wires[shared] = start + machines.uplink.occupied_s(size)
        wires[own] = start + seconds
        return start + seconds

    def _across_wires(self, message: _PeerMessage) -> None:
        """Occupies every wire between two peers."""
        d, to, size, _, _ = message
        machines, free = self._machines, self._wires
        links, own, shared = machines.way(d, to)
        link = links[0]
        if len(links) > 1:
            link = max(links, key=lambda link: link.occupied_s(size) + link.latency_s)
        seconds = longest = link.message_s + size / link.bytes_per_s
        if machines.is_air:
            longest = seconds = seconds * (2 - machines.is_host[d] - machines.is_host[to])
        start = self.now
        for wire in (*own, *shared) if shared else own:
            start = max(start, free[wire])
        for wire in own:
            free[wire] = start + seconds
        if shared:
            assert machines.uplink is not None
            busy_s = machines.uplink.occupied_s(size)
            longest = max(seconds, busy_s) if own else busy_s
            for wire in shared:
                free[wire] = start + busy_s
        arrival = start + longest + link.latency_s
        heappush(self._queue, (arrival, next(self._order), self._across_end, message))

    def _across_end(self, message: _PeerMessage) -> None:
        _, to, size, happens, what = message
        self._handled(to, self._machines.to_peers[to], size, happens, what)
