"""Cables pulled, as a home does it: nobody sends a FIN, and only some packets arrive.

Each function harms a network of namespaces and returns what mends it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from itertools import count

from benchmarks.lab.network import HOST, Network, limit

Mend = Callable[[], None]
# Routes of one address differ in their metrics: it may be cut off twice at once.
_METRICS = count(1)


def cut(network: Network, number: int) -> Mend:
    """A device's port of the hub goes dead. Neither side is told."""
    hub = network.host.removesuffix("host") + "hub"
    port = ("link", "set", f"port{number}")
    _ip(hub, *port, "nomaster")
    return lambda: _ip(hub, *port, "master", "br0")


def cut_one_way(network: Network, number: int) -> Mend:
    """What a device sends to the host is lost; what it is sent arrives."""
    return _blackholes(network, [(number, HOST)])


def cut_peers(network: Network, number: int, other: int) -> Mend:
    """Two devices lose each other; both still reach the host."""
    return _blackholes(
        network, [(number, network.address(other)), (other, network.address(number))]
    )


def slow(network: Network, number: int, mbps: float) -> Mend:
    """A device's link becomes slower in both directions, as Wi-Fi does behind a wall (`switch`)."""
    hub = network.host.removesuffix("host") + "hub"

    def at(rate: float) -> None:
        limit(network.device(number), "eth0", rate)
        limit(hub, f"port{number}", rate)

    at(mbps)
    return lambda: at(network.wiring.mbps)


def _blackholes(network: Network, lost: list[tuple[int, str]]) -> Mend:
    metric = ("metric", str(next(_METRICS)))

    def change(how: str) -> None:
        for number, address in lost:
            _ip(network.device(number), "route", how, "blackhole", address, *metric)

    change("add")
    return lambda: change("del")


def _ip(namespace: str, *command: str) -> None:
    subprocess.run(["ip", "-n", namespace, *command], check=True, capture_output=True)
