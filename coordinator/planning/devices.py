"""Devices, links and clusters as planners see them: numbers, no connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from coordinator.costs.affine import Costs
from coordinator.planning.plan import DeviceId, Plan
from models.units import Network

__all__ = ["Cluster", "Costs", "Device", "Link", "Medium", "Planner"]

Medium = Literal["star", "air", "switch"]


@dataclass(frozen=True, slots=True)
class Link:
    """A device's connection to the host.

    A message of n bytes occupies it for `message_s + n / bytes_per_s` and arrives `latency_s`
    after it was sent; the CPUs at its ends are busy for `endpoint_byte_s` per byte.
    """

    bytes_per_s: float
    message_s: float = 0.0
    latency_s: float = 0.0
    endpoint_byte_s: float = 0.0

    @property
    def fixed_s(self) -> float:
        """Seconds that any message costs, whatever its size."""
        return self.message_s + self.latency_s

    @property
    def byte_s(self) -> float:
        """Seconds that each byte of a message adds."""
        return 1.0 / self.bytes_per_s + self.endpoint_byte_s

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds from sending to arrival of one message; nothing for nothing."""
        if not size_bytes:
            return 0.0
        return self.fixed_s + size_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Device:
    """A worker as a planner sees it.

    `speed` ranks devices as AOFL does (frequency, e.g. in MHz x cores or FLOP/s); `host` marks
    the coordinator's own worker, whose link is memory.
    """

    id: DeviceId
    name: str
    costs: Costs
    link: Link
    speed: float
    memory_bytes: int
    host: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that a planner may use.

    `uplink` is the host's own connection, which all of its traffic shares; None where it is
    not known to be narrower than the devices' links together.
    """

    devices: tuple[Device, ...]
    medium: Medium = "star"
    uplink: Link | None = None

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
