"""Cables pulled in the middle of a request: nobody sends a FIN, and only some packets arrive."""

import os
import subprocess
import threading
import urllib.request
from collections.abc import Callable

import pytest

from benchmarks.lab.cluster import Computer, Lab, lab
from benchmarks.lab.network import HOST
from benchmarks.lab.presets import Preset
from coordinator.choice import Choice
from models.digits.examples import examples
from tests.serving.processes import wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces"),
]

SLOW = Computer(pace=0.02, message_ms=0.0, byte_ns=0.0, task_ms=0.0)


def ip(namespace: str, *command: str) -> None:
    subprocess.run(["ip", "-n", namespace, *command], check=True, capture_output=True)


def cut(running: Lab, number: int) -> Callable[[], None]:
    """The device's port of the hub goes down; how to mend it. Neither side is told."""
    hub = running.network.host.removesuffix("host") + "hub"
    ip(hub, "link", "set", f"port{number}", "nomaster")
    return lambda: ip(hub, "link", "set", f"port{number}", "master", "br0")


def cut_one_way(running: Lab, number: int) -> Callable[[], None]:
    """What the device sends to the host is lost; what it is sent arrives."""
    device = running.network.device(number)
    ip(device, "route", "add", "blackhole", HOST)
    return lambda: ip(device, "route", "del", "blackhole", HOST)


def cut_peers(running: Lab, number: int) -> Callable[[], None]:
    """Devices 1 and 2 lose each other; both still reach the host."""
    pairs = [(1, 2), (2, 1)]
    for one, other in pairs:
        route = ("route", "add", "blackhole", running.network.address(other))
        ip(running.network.device(one), *route)

    def mend() -> None:
        for one, other in pairs:
            route = ("route", "del", "blackhole", running.network.address(other))
            ip(running.network.device(one), *route)

    return mend


@pytest.mark.parametrize("strategy", ["ofl", "halo"])
@pytest.mark.parametrize("harm", [cut, cut_one_way, cut_peers])
def test_a_request_survives_it(harm: Callable[[Lab, int], Callable[[], None]], strategy: str):
    preset = Preset(gflops=1.0, mbps=200.0, message_ms=0.0, medium="switch")
    picture = examples()[0].path.read_bytes()
    choice = Choice(strategy)
    with lab(preset, 3, SLOW, print, models=["digits"], profile=False) as running:

        def ask() -> list[object]:
            return running.client.infer("digits", picture, "image/png", choice)["predictions"]

        right = ask()
        assert ask() == right
        answers: list[list[object]] = []
        asking = threading.Thread(target=lambda: answers.append(ask()))
        asking.start()
        wait(lambda: _busy(running))
        mend = harm(running, 1)
        asking.join(60)
        assert answers == [right]
        assert ask() == right
        mend()
        wait(lambda: _ready(running) == 3)
        assert ask() == right


def _busy(running: Lab) -> bool:
    with urllib.request.urlopen(f"{running.client.url}/metrics", timeout=10) as answer:
        return b"\nimbrex_in_flight 1.0" in answer.read()


def _ready(running: Lab) -> int:
    return sum(each["state"] == "ready" for each in running.client.devices())
