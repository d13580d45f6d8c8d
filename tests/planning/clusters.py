"""Small clusters for tests of planners."""

from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.rates import RateCosts
from protos.wire.facts import DeviceId

MBPS = 1e6 / 8


def device(
    name: str, gflops: float = 1.0, *, mbps: float = 100.0, memory_mb: float = 0, run_s: float = 0
) -> Device:
    return Device(
        id=DeviceId(name),
        name=name,
        costs=RateCosts(gflops, run_s=run_s),
        link=Link(mbps * MBPS, message_s=0.0005, latency_s=0.0005),
        speed=gflops,
        memory_bytes=round(memory_mb * 1e6),
    )


def cluster(*gflops: float, mbps: float = 100.0, memory_mb: float = 0) -> Cluster:
    return Cluster(
        tuple(
            device(f"d{index}", rate, mbps=mbps, memory_mb=memory_mb)
            for index, rate in enumerate(gflops)
        )
    )


# So slow that any network is worth splitting.
SLOW = 1e-4
