"""Devices, links and clusters as planners see them: numbers without connections."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

from coordinator.costs import Medium
from coordinator.costs.affine import Costs
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from protos.errors import BadRequest
from protos.wire.facts import DeviceId
from protos.wire.limits import Limits

__all__ = ["Cluster", "Costs", "Device", "EndpointOverhead", "Link", "Planner"]


@dataclass(frozen=True, slots=True)
class EndpointOverhead:
    """What one machine spends on messages and tasks, besides computing.

    Its event loop handles them one after the other: `message_s + bytes * byte_s` for each message
    sent or received, and `task_s` for each task (on the host to describe it, on a device to start
    it). Messages between devices, which bypass gRPC and the event loop, cost `peer_message_s` and
    `peer_byte_s`; None: the same as other messages. From when it is told of a task, a device needs
    `set_up_s` to set it up, one after the other, while others are computed.
    """

    message_s: float = 0.0
    byte_s: float = 0.0
    task_s: float = 0.0
    peer_message_s: float | None = None
    peer_byte_s: float | None = None
    set_up_s: float = 0.0

    @property
    def to_peers(self) -> "EndpointOverhead":
        """The same machine's costs for messages between devices."""
        return EndpointOverhead(
            self.message_s if self.peer_message_s is None else self.peer_message_s,
            self.byte_s if self.peer_byte_s is None else self.peer_byte_s,
            self.task_s,
        )


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
    near: EndpointOverhead = EndpointOverhead()
    far: EndpointOverhead = EndpointOverhead()

    @property
    def fixed_s(self) -> float:
        """Seconds of any message, whatever its size."""
        return self.message_s + self.latency_s + self.near.message_s + self.far.message_s

    @property
    def byte_s(self) -> float:
        """Seconds per byte of a message."""
        return 1.0 / self.bytes_per_s + self.endpoint_byte_s

    @property
    def endpoint_byte_s(self) -> float:
        """Seconds per byte that both ends together need."""
        return self.near.byte_s + self.far.byte_s

    def occupied_s(self, size_bytes: int) -> float:
        """Seconds for which one message occupies the wire."""
        return self.message_s + size_bytes / self.bytes_per_s

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds from sending to arrival of one message; 0 for no bytes."""
        if not size_bytes:
            return 0.0
        return self.fixed_s + size_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Device:
    """A worker as a planner sees it.

    `speed` ranks devices as AOFL does (frequency, e.g. in MHz x cores or FLOP/s); `host` marks the
    host worker, whose link is memory. The device computes `concurrency` tasks at once, each at the
    cost that `costs` predicts. With `limits` it takes whole networks only. `unsplit_s`: seconds for
    which it was measured to compute the unsplit network that is planned for.
    """

    id: DeviceId
    name: str
    costs: Costs
    link: Link
    speed: float
    memory_bytes: int
    host: bool = False
    concurrency: int = 1
    limits: Limits | None = None
    unsplit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The devices and links that a planner may use.

    `uplink` is the host's own connection, which all of its traffic shares; None if it is not known
    to be narrower than the devices' links together. `apart` holds pairs of devices that cannot
    reach each other: their messages go through the host.
    """

    devices: tuple[Device, ...]
    medium: Medium = "star"
    uplink: Link | None = None
    apart: frozenset[frozenset[DeviceId]] = frozenset()

    def __post_init__(self) -> None:
        here = {device.id for device in self.devices}
        among = frozenset(pair for pair in self.apart if pair <= here)
        object.__setattr__(self, "apart", among)

    @property
    def is_serial(self) -> bool:
        """Whether the host can send to only one device at a time."""
        return (
            self.medium == "air"
            or self.uplink is not None
            or any(device.link.near != EndpointOverhead() for device in self.devices)
        )

    @property
    def mutual(self) -> tuple[Device, ...]:
        """Devices that all reach each other, without those that most others cannot reach."""
        kept, apart = list(self.devices), self.apart
        while apart:
            met = Counter(device for pair in apart for device in pair)
            worst = min(met, key=lambda device: (-met[device], device))
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
    """A planner: a function of the network and the cluster.

    Raises:
        Infeasible: no device, or no device with enough memory.
    """

    def __call__(self, network: Network, cluster: Cluster) -> Plan:
        """The best plan that this strategy finds."""
        ...


def fastest(cluster: Cluster, count: int) -> Cluster:
    """The cluster's `count` fastest devices, the host before equal ones; all of them for 0.

    Raises:
        BadRequest: there are fewer.
    """
    if not count:
        return cluster
    if not 0 < count <= len(cluster.devices):
        raise BadRequest(
            cause=f"a plan for {count} devices was requested; there are {len(cluster.devices)}",
            cure="Request fewer, or see in `imbrex status` why some are missing",
        )
    # Ties are broken by name, with numbers in numerical order, so that the choice is stable.
    ranked = sorted(
        cluster.devices,
        key=lambda device: (-device.speed, not device.host, len(device.name), device.name),
    )
    return replace(cluster, devices=tuple(ranked[:count]))
