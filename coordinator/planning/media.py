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

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from coordinator.costs.devices import Cluster, Endpoint, Link

# `happens(what)` is called when the event occurs.
Happens = Callable[..., None]
_Name = tuple[str, int]
_Way = tuple[tuple[Link, ...], tuple[_Name, ...], tuple[_Name, ...]]
_Message = tuple[int, int, Happens, object]
_HOST = -1
_NOTHING = Endpoint()


class Media:
    """A cluster's media and machines; devices are indices into the cluster's."""

    def __init__(self, cluster: Cluster) -> None:
        self.now = 0.0
        self._uplink = cluster.uplink
        self._links = [device.link for device in cluster.devices]
        self._is_host = [device.host for device in cluster.devices]
        # Devices whose event loops take no time.
        self._quiet = [link.far == _NOTHING for link in self._links]
        self._to_peers = [link.far.to_peers for link in self._links]
        self._air, self._star = cluster.medium == "air", cluster.medium == "star"
        self._free: dict[_Name, float] = {}
        self._ways: dict[tuple[int, int], _Way] = {}
        # For each device, when each of its concurrent tasks ends, as a heap.
        self._processors = [[0.0] * device.concurrency for device in cluster.devices]
        self._queue: list[tuple[float, int, Happens, object]] = []
        self._order = count()

    def run(self) -> None:
        """Runs the next event."""
        self.now, _, happens, what = heapq.heappop(self._queue)
        happens(what)

    def at(self, when: float, happens: Happens, what: object) -> None:
        """Adds an event that happens at `when`."""
        heapq.heappush(self._queue, (when, next(self._order), happens, what))

    def describe_tasks(self, d: int, tasks: int) -> None:
        """The host describes tasks to a device; its next message waits for that."""
        seconds = self._links[d].near.task_s * tasks
        if seconds:
            self._occupied(("loop", _HOST), seconds)

    def down(self, d: int, size: int, happens: Happens, what: object) -> None:
        """A message from the host to a device."""
        message = (d, size, happens, what)
        self._handled(_HOST, self._links[d].near, size, self._down_wire, message)

    def up(self, d: int, size: int, happens: Happens, what: object) -> None:
        """A message from a device to the host."""
        message = (d, size, happens, what)
        self._handled(d, self._links[d].far, size, self._up_wire, message)

    def across(self, d: int, to: int, size: int, happens: Happens, what: object) -> None:
        """A message from one device to another."""
        if (d, to) not in self._ways:
            self._ways[d, to] = self._way(d, to)
        message = (d, to, size, happens, what)
        if self._quiet[d]:
            self._across_wires(message)
        else:
            self._handled(d, self._to_peers[d], size, self._across_wires, message)

    def compute(self, d: int, seconds: float, happens: Happens, what: object) -> None:
        """A task whose inputs are on the device; the event is its end."""
        task_s = self._links[d].far.task_s
        if task_s:
            ready = self._occupied(("loop", d), task_s)
            self.at(ready, self._processor, (d, seconds, happens, what))
            return
        free, now = self._processors[d], self.now
        stop = (now if now > free[0] else free[0]) + seconds
        heapq.heapreplace(free, stop)
        heapq.heappush(self._queue, (stop, next(self._order), happens, what))

    # ------------------------------------------------------------ resources

    def _occupied(self, name: _Name, seconds: float) -> float:
        """Occupies a resource for `seconds` as soon as it is free; returns the end."""
        stop = max(self.now, self._free.get(name, 0.0)) + seconds
        self._free[name] = stop
        return stop

    def _handled(self, d: int, end: Endpoint, size: int, then: Happens, what: object) -> None:
        """An event loop sends or receives a message."""
        if end is _NOTHING or not (seconds := end.message_of_s(size)):
            then(what)
        else:
            self.at(self._occupied(("loop", d), seconds), then, what)

    def _processor(self, task: tuple[int, float, Happens, object]) -> None:
        d, seconds, happens, what = task
        free = self._processors[d]
        stop = max(self.now, free[0]) + seconds
        heapq.heapreplace(free, stop)
        self.at(stop, happens, what)

    # ------------------------------------------------------------ wires

    def _down_wire(self, message: _Message) -> None:
        d, size, _, _ = message
        link = self._links[d]
        self.at(self._through(d, link, size, "down") + link.latency_s, self._down_end, message)

    def _down_end(self, message: _Message) -> None:
        d, size, happens, what = message
        self._handled(d, self._links[d].far, size, happens, what)

    def _up_wire(self, message: _Message) -> None:
        d, size, _, _ = message
        link = self._links[d]
        self.at(self._through(d, link, size, "up") + link.latency_s, self._up_end, message)

    def _up_end(self, message: _Message) -> None:
        d, size, happens, what = message
        self._handled(_HOST, self._links[d].near, size, happens, what)

    def _through(self, d: int, link: Link, size: int, direction: str) -> float:
        """Occupies the wires between host and device; returns when the message has left them."""
        seconds, free = link.occupied_s(size), self._free
        if self._is_host[d]:
            return self.now + seconds
        if self._air:
            return self._occupied(("air", _HOST), seconds)
        own, shared = (direction, d), (direction, _HOST)
        start = max(self.now, free.get(own, 0.0))
        if self._uplink is not None:
            start = max(start, free.get(shared, 0.0))
            free[shared] = start + self._uplink.occupied_s(size)
        free[own] = start + seconds
        return start + seconds

    def _across_wires(self, message: tuple[int, int, int, Happens, object]) -> None:
        """Occupies every wire between two peers."""
        d, to, size, happens, what = message
        slower, wires, shared = self._ways[d, to]
        if len(slower) > 1:
            slower = (max(slower, key=lambda link: link.occupied_s(size) + link.latency_s),)
        link, free = slower[0], self._free
        seconds = longest = link.occupied_s(size)
        if self._air:
            longest = seconds = seconds * (2 - self._is_host[d] - self._is_host[to])
        start = self.now
        for name in (*wires, *shared):
            if (until := free.get(name, 0.0)) > start:
                start = until
        for name in wires:
            free[name] = start + seconds
        if shared:
            assert self._uplink is not None
            busy_s = self._uplink.occupied_s(size)
            longest = max(seconds, busy_s) if wires else busy_s
            for name in shared:
                free[name] = start + busy_s
        arrival = start + longest + link.latency_s
        if self._quiet[to]:
            heapq.heappush(self._queue, (arrival, next(self._order), happens, what))
        else:
            self.at(arrival, self._across_end, message)

    def _way(self, d: int, to: int) -> _Way:
        """The links between two peers, of which the slower determines the speed, and the wires: the
        devices' own, and those that all share.
        """
        ends = [each for each in (d, to) if not self._is_host[each]]
        links = tuple(dict.fromkeys(self._links[each] for each in ends))
        if self._air:
            return links, (("air", _HOST),), ()
        wires: list[_Name] = [("up", d)] if d in ends else []
        wires += [("down", to)] if to in ends else []
        relayed = self._star and len(ends) == 2
        shared: list[_Name] = []
        if self._uplink is not None:
            shared += [("up", _HOST)] if relayed or self._is_host[to] else []
            shared += [("down", _HOST)] if relayed or self._is_host[d] else []
        return links, tuple(wires), tuple(shared)

    def _across_end(self, message: tuple[int, int, int, Happens, object]) -> None:
        _, to, size, happens, what = message
        self._handled(to, self._to_peers[to], size, happens, what)
