"""Groups: several images at once, each on its own devices.

One image over all devices is answered soonest. One image per device wastes nothing on halos and
transfers, so it answers most per second. Groups of a few devices lie between. Which is best
depends on how many images are there: `Grouping.response_s` predicts what a caller waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.costs.devices import Cluster, Device
from coordinator.planning.simulator import simulate
from coordinator.tasks.plan import DeviceId, Plan, TrafficBytes
from models.units import Network


@dataclass(frozen=True, slots=True)
class Service:
    """What one group does to one image.

    `latency_s` alone on an idle group; `period_s` between two images of a busy group, which is
    what its busiest device computes; `shared_s` of the medium that all groups share.
    """

    latency_s: float
    period_s: float
    shared_s: float


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups with a plan for each; no device is in two of them."""

    plans: tuple[Plan, ...]
    services: tuple[Service, ...]

    @property
    def devices(self) -> frozenset[DeviceId]:
        """All devices that any group uses."""
        return frozenset(device for plan in self.plans for device in plan.devices)

    @property
    def capacity_per_s(self) -> float:
        """Images per second that all groups together answer at most."""
        groups = sum(1.0 / service.period_s for service in self.services)
        shared_s = sum(service.shared_s / service.period_s for service in self.services) / groups
        return min(groups, 1.0 / shared_s) if shared_s else groups

    def response_s(self, outstanding: float) -> float:
        """Predicted seconds from an image's arrival to its answer when so many images, this one
        among them, are there at a time.

        By the asymptotic bounds of Denning and Buzen (1978): no sooner than the groups compute
        it, nor than its turn comes. A lone image gets the quickest group; with an image for each,
        all groups take part. By Little's law the images there at a time are the arrival rate
        times the response: what arrives in excess of the capacity shows here.
        """
        latencies = [service.latency_s for service in self.services]
        weights = [1.0 / service.period_s for service in self.services]
        pairs = zip(weights, latencies, strict=True)
        mean = sum(weight * latency for weight, latency in pairs) / sum(weights)
        share = min(1.0, (outstanding - 1.0) / (len(latencies) - 1)) if len(latencies) > 1 else 0.0
        alone = min(latencies) + max(0.0, share) * (mean - min(latencies))
        return max(alone, outstanding / self.capacity_per_s)


def counts(devices: int) -> list[int]:
    """Numbers of groups to consider: powers of two, and a device each."""
    found = [1]
    while found[-1] * 2 < devices:
        found.append(found[-1] * 2)
    return [*found, devices] if devices > 1 else found


def divided(cluster: Cluster, count: int) -> list[Cluster]:
    """`count` groups of about equal speed: the fastest device first, each to the slowest group."""
    groups: list[list[Device]] = [[] for _ in range(count)]
    for device in sorted(cluster.devices, key=lambda each: (-each.speed, each.name)):
        min(groups, key=lambda group: sum(each.speed for each in group)).append(device)
    return [replace(cluster, devices=tuple(group)) for group in groups]


def grouping(plans: Sequence[Plan], network: Network, clusters: Sequence[Cluster]) -> Grouping:
    """Groups with their plans, and what each does to an image."""
    pairs = zip(plans, clusters, strict=True)
    return Grouping(tuple(plans), tuple(service(plan, network, cluster) for plan, cluster in pairs))


def service(plan: Plan, network: Network, cluster: Cluster) -> Service:
    """What a plan's devices do to an image, by the simulator."""
    simulation = simulate(plan, network, cluster)
    busiest_s = max(simulation.busy_s(device) for device in plan.devices)
    shared_s = _shared_s(simulation.traffic, cluster)
    return Service(simulation.latency_s, max(busiest_s, shared_s), shared_s)


def _shared_s(traffic: TrafficBytes, cluster: Cluster) -> float:
    """Seconds that an image's bytes occupy what all devices share; the host's own share of the
    traffic, which crosses no link, is counted too, so this is an upper bound.
    """
    if cluster.medium == "air":
        rate = max(device.link.bytes_per_s for device in cluster.devices)
        return (traffic.scatter + traffic.gather + 2 * traffic.halo) / rate
    if cluster.uplink is None:
        return 0.0
    crossing = traffic.halo if cluster.medium == "star" else 0
    return (max(traffic.scatter, traffic.gather) + crossing) / cluster.uplink.bytes_per_s
