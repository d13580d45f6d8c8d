"""Devices, links and clusters as planners see them: numbers, no connections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from coordinator.costs.affine import Costs
from coordinator.tasks.plan import DeviceId, Plan
from models.units import Network
from protos.errors import BadRequest

__all__ = ["Cluster", "Costs", "Device", "Endpoint", "Link", "Medium", "Planner"]

Medium = Literal["star", "air", "switch"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What handling messages and tasks costs one machine, besides computing.

    One event loop does it, one thing after the other: `message_s + bytes * byte_s` for a message
    that is sent or received, `task_s` for a task: at the host until it is described, on a device
    until it runs. Messages between devices, which pass neither gRPC nor an event loop, cost
    `peer_message_s` and `peer_byte_s`; None: as any message.
    """

    message_s: float = 0.0
    byte_s: float = 0.0
    task_s: float = 0.0
    peer_message_s: float | None = None
    peer_byte_s: float | None = None

    @property
    def to_peers(self) -> Endpoint:
        """The same for messages between devices."""
        return Endpoint(
            self.message_s if self.peer_message_s is None else self.peer_message_s,
            self.byte_s if self.peer_byte_s is None else self.peer_byte_s,
            self.task_s,
        )

    def message_of_s(self, size_bytes: int) -> float:
        """Seconds for one message of this size."""
        return self.message_s + size_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Link:
    """A device's connection to the host: the wire, and the machines at its ends.

    A message of n bytes occupies the wire for `message_s + n / bytes_per_s` and is at the other
    end `latency_s` after that. `near` is the host, the same for all of its links, and `far` the
    device.
    """

    bytes_per_s: float
    message_s: float = 0.0
    latency_s: float = 0.0
    near: Endpoint = Endpoint()
    far: Endpoint = Endpoint()

    @property
    def fixed_s(self) -> float:
        """Seconds that any message costs, whatever its size."""
        return self.message_s + self.latency_s + self.near.message_s + self.far.message_s

    @property
    def byte_s(self) -> float:
        """Seconds that each byte of a message adds."""
        return 1.0 / self.bytes_per_s + self.endpoint_byte_s

    @property
    def endpoint_byte_s(self) -> float:
        """Seconds that each byte costs the machines at both ends together."""
        return self.near.byte_s + self.far.byte_s

    def occupied_s(self, size_bytes: int) -> float:
        """Seconds that one message takes of the wire."""
        return self.message_s + size_bytes / self.bytes_per_s

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds from sending to arrival of one message; nothing for nothing."""
        if not size_bytes:
            return 0.0
        return self.fixed_s + size_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Device:
    """A worker as a planner sees it.

    `speed` ranks devices as AOFL does (frequency, e.g. in MHz x cores or FLOP/s); `host` marks
    the coordinator's own worker, whose link is memory. It computes `concurrency` tasks at once,
    each of which costs `costs`.
    """

    id: DeviceId
    name: str
    costs: Costs
    link: Link
    speed: float
    memory_bytes: int
    host: bool = False
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that a planner may use.

    `uplink` is the host's own connection, which all of its traffic shares; None where it is
    not known to be narrower than the devices' links together. `apart` are pairs of devices that
    cannot reach each other: what would pass between them goes through the host.
    """

    devices: tuple[Device, ...]
    medium: Medium = "star"
    uplink: Link | None = None
    apart: frozenset[frozenset[DeviceId]] = frozenset()

    @property
    def is_serial(self) -> bool:
        """Whether the host sends to one device after the other."""
        return (
            self.medium == "air"
            or self.uplink is not None
            or any(each.link.near != Endpoint() for each in self.devices)
        )

    @property
    def mutual(self) -> tuple[Device, ...]:
        """Devices that all reach each other: those that most others can't reach are left out."""
        kept, apart = list(self.devices), self.apart
        while apart:
            met = Counter(device for pair in apart for device in pair)
            worst = met.most_common(1)[0][0]
            kept = [device for device in kept if device.id != worst]
            apart = frozenset(pair for pair in apart if worst not in pair)
        return tuple(kept)

    def device(self, device_id: DeviceId) -> Device:
        """The device of this id; KeyError if there is none."""
        for device in self.devices:
            if device.id == device_id:
                return device
        raise KeyError(device_id)


class Planner(Protocol):
    """What every planner is: a function of the network and the cluster.

    Raises:
        Infeasible: no device, or no device with enough memory.
    """

    def __call__(self, network: Network, cluster: Cluster) -> Plan:
        """The best plan that this strategy knows."""
        ...


def fastest(cluster: Cluster, count: int) -> Cluster:
    """The cluster's `count` fastest devices, the host before its equals; all of them for 0.

    Raises:
        BadRequest: there are not so many.
    """
    if not count:
        return cluster
    if not 0 < count <= len(cluster.devices):
        raise BadRequest(
            cause=f"a plan for {count} devices was requested; there are {len(cluster.devices)}",
            cure="Request fewer, or see in `imbrex status` why some are missing",
        )
    # Names break ties, numbers in them in order: the same devices every time.
    ranked = sorted(
        cluster.devices, key=lambda each: (-each.speed, not each.host, len(each.name), each.name)
    )
    return replace(cluster, devices=tuple(ranked[:count]))
