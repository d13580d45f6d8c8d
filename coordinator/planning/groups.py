"""Groups of devices that compute several images at once, one per group.

One image over all devices is answered soonest. One image per device spends nothing on halos and
transfers, so that most images are answered per second. Groups of a few devices lie between. Which
is best depends on the number of images at a time: `Grouping.response_s` predicts a client's wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.costs.cluster import Cluster, Device
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.whole_network_devices import parted
from coordinator.tasks.plan import Plan, TrafficBytes
from models.cut.units import Network
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """The times of one image on one group.

    `latency_s`: alone on an idle group; `period_s`: between two images of a busy group, which is
    the computing time of its busiest device; `shared_s`: on the medium that all groups share.
    """

    latency_s: float
    period_s: float
    shared_s: float


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups, each with a plan; no device is in two of them."""

    plans: tuple[Plan, ...]
    services: tuple[ServiceTimes, ...]

    @property
    def devices(self) -> frozenset[DeviceId]:
        """All devices that any group uses."""
        return frozenset(device for plan in self.plans for device in plan.devices)

    @property
    def capacity_per_s(self) -> float:
        """The most images per second that all groups together can answer."""
        groups = sum(1.0 / service.period_s for service in self.services)
        shared_s = sum(service.shared_s / service.period_s for service in self.services) / groups
        return min(groups, 1.0 / shared_s) if shared_s else groups

    def response_s(self, outstanding: float) -> float:
        """Predicted seconds from an image's arrival to its answer, with this many images (itself
        included) at a time.

        A single image gets the fastest group; with enough images, all groups take part. An image
        beyond one for each group waits for the busiest device's work on those before it, as in the
        balanced job bounds of Zahorjan et al. (1982): images in one group hardly overlap, since
        its devices wait for each other. By Little's law the number of images at a time is the
        arrival rate times the latency, so arrivals beyond the capacity show here.
        """
        latencies = [service.latency_s for service in self.services]
        weights = [1.0 / service.period_s for service in self.services]
        pairs = zip(weights, latencies, strict=True)
        mean = sum(weight * latency for weight, latency in pairs) / sum(weights)
        share = min(1.0, (outstanding - 1.0) / (len(latencies) - 1)) if len(latencies) > 1 else 0.0
        alone = min(latencies) + max(0.0, share) * (mean - min(latencies))
        queued = max(0.0, outstanding - len(latencies))
        return max(alone + queued / self.capacity_per_s, outstanding / self.capacity_per_s)


def counts(devices: int, alone: int = 0) -> list[int]:
    """Numbers of groups to consider: all devices together; powers of two, and one group per device,
    beside the groups of those that are always `alone`.
    """
    found = [1 << power for power in range(max(1, devices).bit_length()) if 1 << power < devices]
    return sorted({1, *(count + alone for count in (*found, devices))} - {0})


def divided(cluster: Cluster, count: int) -> list[Cluster]:
    """`count` groups: devices with limits are each one of them, and the others have about equal
    speed: devices, the fastest first, go to the slowest group.
    """
    free, limited = parted(cluster)
    groups: list[list[Device]] = [[] for _ in range(count - len(limited))]
    for device in sorted(free.devices, key=lambda device: (-device.speed, device.name)):
        min(groups, key=lambda group: sum(device.speed for device in group)).append(device)
    groups += [[device] for device in limited]
    return [replace(cluster, devices=tuple(group)) for group in groups]


def grouping(plans: Sequence[Plan], network: Network, clusters: Sequence[Cluster]) -> Grouping:
    """Groups with their plans and simulated times."""
    pairs = zip(plans, clusters, strict=True)
    return Grouping(tuple(plans), tuple(service(plan, network, cluster) for plan, cluster in pairs))


def service(plan: Plan, network: Network, cluster: Cluster) -> ServiceTimes:
    """The times of an image by a plan, from the simulator. Devices that are in the cluster do the
    work of those that have left, as when a request is executed.
    """
    simulation = simulate(plan, network, cluster)
    busiest_s = max(simulation.busy_s(device.id) / device.concurrency for device in cluster.devices)
    shared_s = _shared_s(simulation.traffic, cluster)
    return ServiceTimes(simulation.latency_s, max(busiest_s, shared_s), shared_s)


def _shared_s(traffic: TrafficBytes, cluster: Cluster) -> float:
    """Seconds for which an image's bytes occupy the medium that all devices share. The host's own
    part of the traffic, which crosses no link, is counted as well, so this is an upper bound.
    """
    if cluster.medium == "air":
        rate = max(device.link.bytes_per_s for device in cluster.devices)
        return (traffic.scatter + traffic.gather + 2 * traffic.halo) / rate
    if cluster.uplink is None:
        return 0.0
    crossing = traffic.halo if cluster.medium == "star" else 0
    return (max(traffic.scatter, traffic.gather) + crossing) / cluster.uplink.bytes_per_s
