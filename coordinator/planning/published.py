"""The published testbed, for which networks are planned if no cluster is given."""

from __future__ import annotations

from coordinator.costs.devices import Cluster, Device, Link
from coordinator.costs.rates import RateCosts
from coordinator.tasks.plan import DeviceId

# Raspberry Pi 3s on 100 Mbit/s Ethernet.
GFLOPS, BYTES_PER_S, MESSAGE_S, LATENCY_S = 1.85, 93.7e6 / 8, 1e-3, 2e-3
# Unlimited memory: the question is how models are divided, not whether a Pi could hold them.
MEMORY_BYTES = 1 << 40


def equal_cluster(count: int, stem: str = "pi") -> Cluster:
    """This many devices of the published kind, called pi-1 and so on."""
    link = Link(BYTES_PER_S, MESSAGE_S, LATENCY_S)
    return Cluster(
        tuple(
            Device(
                id=DeviceId(f"{stem}-{number}"),
                name=f"{stem}-{number}",
                costs=RateCosts(GFLOPS),
                link=link,
                speed=GFLOPS,
                memory_bytes=MEMORY_BYTES,
            )
            for number in range(1, count + 1)
        )
    )
