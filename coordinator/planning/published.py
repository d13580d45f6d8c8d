"""AOFL's testbed, for which `imbrex check` cuts networks: Pi 3s of which one core computes."""

from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.rates import RateCosts
from protos.wire.facts import DeviceId

# Raspberry Pi 3s with one core at 1 GHz, on 100 Mbit/s Ethernet [Zhou et al., SEC'19].
_GFLOPS, _BYTES_PER_S, _MESSAGE_S, _LATENCY_S = 1.85, 93.7e6 / 8, 1e-3, 2e-3
# Unlimited memory: the question is how models are divided, not whether a Pi could hold them.
_MEMORY_BYTES = 1 << 40


def equal_cluster(count: int, stem: str = "pi") -> Cluster:
    """This many devices of the published kind, called pi-1 and so on."""
    link = Link(_BYTES_PER_S, _MESSAGE_S, _LATENCY_S)
    return Cluster(
        tuple(
            Device(
                id=DeviceId(f"{stem}-{number}"),
                name=f"{stem}-{number}",
                costs=RateCosts(_GFLOPS),
                link=link,
                speed=_GFLOPS,
                memory_bytes=_MEMORY_BYTES,
            )
            for number in range(1, count + 1)
        )
    )
