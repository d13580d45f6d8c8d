"""What the doctor says of networks that are really like that: packets are dropped on their way."""

import asyncio
import os
import shutil
import subprocess

import pytest

from benchmarks.chaos.places import Place, in_the_lab
from benchmarks.lab.cluster import WORKER_PORT
from benchmarks.lab.cuts import cut

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="packets are dropped by nft"),
]

MULTICAST = "ip daddr 224.0.0.251"


def drop(namespace: str, what: str) -> None:
    """These packets neither enter nor leave the namespace."""
    table = "table inet lost { chain %s { type filter hook %s priority 0; %s drop; }\n}"
    for way in ("input", "output"):
        rules = table % (way, way, what)
        command = ["ip", "netns", "exec", namespace, "nft", "-f", "-"]
        subprocess.run(command, input=rules, text=True, check=True, capture_output=True)


async def found(place: Place, *codes: str) -> list[tuple[str, str, str]]:
    """Of these codes, what the doctor finds: (code, severity, device)."""
    told = await asyncio.to_thread(place.client.doctor)
    return [(t.code, t.severity, t.device) for t in told.findings if t.code in codes]


async def test_doctor_names_peers_cut_off_one_way_then_both_ways(tmp_path) -> None:
    codes = ("one_way", "unreachable_peers", "client_isolation", "unreachable")
    async with in_the_lab(tmp_path, 2, 1.0, "digits") as place:
        network = place.network
        assert await found(place, *codes) == []
        # Device 1 may not open connections to device 2's worker, as by a firewall there.
        drop(network.device(2), f"ip saddr {network.address(1)} tcp dport {WORKER_PORT}")
        assert await found(place, *codes) == [("one_way", "error", "worker-0")]
        drop(network.device(1), f"ip saddr {network.address(2)} tcp dport {WORKER_PORT}")
        (both,) = await found(place, *codes)
        assert both[:2] == ("unreachable_peers", "error")
        cut(network, 2)
        gone = f"{network.address(2)}:{WORKER_PORT}"
        async with asyncio.timeout(60):
            while await found(place, *codes) != [("unreachable", "error", gone)]:
                pass


async def test_multicast_is_blocked(tmp_path) -> None:
    async with in_the_lab(tmp_path, 2, 1.0, "digits", mdns=True) as place:
        assert await found(place, "multicast_blocked") == []
        drop(place.network.device(1), MULTICAST)
        assert await found(place, "multicast_blocked") == [
            ("multicast_blocked", "warning", "worker-0")
        ]
        drop(place.network.host, MULTICAST)
        assert await found(place, "multicast_blocked") == [("multicast_blocked", "warning", "")]
