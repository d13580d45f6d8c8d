"""Machines as the kernel describes them: `/sys/class/net` as files, and addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from protos.daemon import interfaces

AF_INET = 2


@dataclass
class Machine:
    """`down`: names of interfaces that are not connected."""

    sys: Path
    addresses: dict[str, tuple[str, str]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)

    def has(self, name: str, address: str, *what: str, type: str = "1", mask: int = 24) -> None:
        """An interface with these entries: `device`, `bridge`, `lower_eth0`, ..."""
        folder = self.sys / name
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{type}\n")
        for each in what:
            (folder / each).mkdir()
        bits = (0xFFFFFFFF << (32 - mask)) & 0xFFFFFFFF
        netmask = ".".join(str(bits >> shift & 255) for shift in (24, 16, 8, 0))
        self.addresses[name] = (address, netmask)

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """This machine is it."""

        def entries() -> dict[str, list[Any]]:
            return {
                name: [SimpleNamespace(family=AF_INET, address=address, netmask=mask)]
                for name, (address, mask) in self.addresses.items()
                if address
            }

        def statistics() -> dict[str, Any]:
            return {n: SimpleNamespace(speed=0, isup=n not in self.down) for n in self.addresses}

        monkeypatch.setattr(interfaces, "SYS", self.sys)
        monkeypatch.setattr(psutil, "net_if_addrs", entries)
        monkeypatch.setattr(psutil, "net_if_stats", statistics)


def home_assistant(sys: Path) -> Machine:
    """A home's hub with cable, Wi-Fi, a bridge in the home's network, containers and two VPNs."""
    machine = Machine(sys)
    machine.has("lo", "127.0.0.1", type="772", mask=8)
    machine.has("docker0", "172.17.0.1", "bridge", "brif", mask=16)
    machine.has("hassio", "172.30.32.1", "bridge", "brif", "lower_vethab12", mask=23)
    machine.has("vethab12", "")
    machine.has("wt0", "100.64.0.7", type="65534", mask=10)
    machine.has("home-vpn", "10.8.0.2", "tun_flags", mask=24)
    machine.has("enp3s0", "10.0.0.2", "device")
    machine.has("wlp2s0", "10.0.0.3", "device", "wireless", "phy80211")
    machine.has("enp4s0", "", "device")
    machine.has("lan", "10.0.5.1", "bridge", "brif", "lower_enp4s0", "lower_vethcd34")
    machine.has("vethcd34", "")
    machine.has("eth0", "10.99.0.2")  # the inner end of a container's pair
    return machine
