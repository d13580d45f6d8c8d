"""A device whose address changes, in namespaces: a new lease, a pulled cable, Wi-Fi after Ethernet;
and the interfaces that a home has beside its network.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.devices.support import unique_cluster
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 makes the namespaces"),
]

HUB, PI = f"imbrex-hub-{os.getpid()}", f"imbrex-pi-{os.getpid()}"


def ip(*arguments: str, within: str = "") -> None:
    place = ["-n", within] if within else []
    subprocess.run(["ip", *place, *arguments], check=True, capture_output=True, text=True)


@contextmanager
def home() -> Iterator[None]:
    """Two machines, with a cable (10.81.0.0/24) and an unused Wi-Fi (10.82.0.0/24) between them."""
    try:
        for name in (HUB, PI):
            ip("netns", "add", name)
            ip("link", "set", "lo", "up", within=name)
        for number, name in ((81, "eth0"), (82, "wlan0")):
            ip("link", "add", name, "netns", HUB, "type", "veth", "peer", name, "netns", PI)
            ip("addr", "add", f"10.{number}.0.1/24", "dev", name, within=HUB)
            ip("link", "set", name, "up", within=HUB)
        for name in (HUB, PI):  # as containers have it, on both
            ip("link", "add", "hassio", "type", "bridge", within=name)
            ip("addr", "add", "172.30.32.1/23", "dev", "hassio", within=name)
            ip("link", "set", "hassio", "up", within=name)
        ip("link", "set", "eth0", "up", within=PI)
        ip("addr", "add", "10.81.0.2/24", "dev", "eth0", within=PI)
        yield
    finally:
        for name in (HUB, PI):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@dataclass
class Daemons:
    """A coordinator on the hub and a worker on the Pi; `asking` has one thread, on the hub."""

    worker: subprocess.Popen[bytes]
    asking: ThreadPoolExecutor

    def get(self, path: str) -> Any:
        """What the coordinator answers there."""
        url = f"http://127.0.0.1:8460{path}"
        try:
            with self.asking.submit(urlopen, url, timeout=30).result() as answer:
                return json.load(answer)
        except OSError:
            return {}

    def addresses(self, *states: str) -> list[str]:
        devices = self.get("/v1/devices").get("devices", [])
        return [each["address"] for each in devices if not states or each["state"] in states]

    async def ready_at(self, *addresses: str) -> float:
        wanted = [f"{each}:8470" for each in addresses]
        return await until(lambda: self.addresses("ready") == wanted, within_s=60.0)

    def codes(self) -> list[tuple[str, str]]:
        findings = self.get("/v1/doctor")["findings"]
        return [(each["code"], each["severity"]) for each in findings]


def enter_hub() -> None:
    """Moves this thread alone to the hub."""
    with open(f"/run/netns/{HUB}", "rb") as place:
        left = ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0)
    if left:
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def daemons(folder: Path) -> Iterator[Daemons]:
    settings = folder / "imbrex.toml"
    settings.write_text(
        f'secret = "x"\ncluster = "{unique_cluster()}"\nhost = "0.0.0.0"\nmdns = true\n'
    )
    flags = {
        HUB: ["coordinator", "--no-host-computes", "--no-profile", "--model", "digits"],
        PI: ["worker"],
    }
    started = []
    try:
        for name, arguments in flags.items():
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "imbrex", *arguments]
            command += ["--config", str(settings), "--state-dir", str(folder / name)]
            with (folder / f"{name}.log").open("wb") as log:
                started.append(subprocess.Popen(command, stderr=log, stdout=log))
        with ThreadPoolExecutor(1, initializer=enter_hub) as asking:
            yield Daemons(started[-1], asking)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


async def test_a_device_is_followed_to_its_new_addresses(tmp_path: Path) -> None:
    with home(), daemons(tmp_path) as running:
        await running.ready_at("10.81.0.2")
        assert running.addresses() == ["10.81.0.2:8470"]  # and no container's bridge
        assert "error" not in {severity for _, severity in running.codes()}

        print("lease", end=" ")
        ip("addr", "del", "10.81.0.2/24", "dev", "eth0", within=PI)
        ip("addr", "add", "10.81.0.77/24", "dev", "eth0", within=PI)
        print(await running.ready_at("10.81.0.77"))
        codes = running.codes()
        assert ("moved", "note") in codes
        assert "error" not in {severity for _, severity in codes}

        ip("link", "set", "eth0", "down", within=HUB)  # the cable is pulled
        await until(lambda: running.addresses("ready") == [])
        assert ("unreachable", "error") in running.codes()
        ip("link", "set", "eth0", "up", within=HUB)
        print("cable", await running.ready_at("10.81.0.77"))

        ip("link", "set", "eth0", "down", within=HUB)
        await until(lambda: running.addresses("ready") == [])
        ip("link", "set", "wlan0", "up", within=PI)
        ip("addr", "add", "10.82.0.2/24", "dev", "wlan0", within=PI)
        print("wifi", await running.ready_at("10.82.0.2"))

        running.worker.kill()
        await until(lambda: running.addresses("ready") == [])
        codes = running.codes()
        assert ("unreachable", "error") in codes
        assert "moved" not in {code for code, _ in codes}
