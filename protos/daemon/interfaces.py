"""This machine's network interfaces, ranked by what the kernel says they are.

Names say nothing reliable: a VPN may be called `wt0`, a container's bridge `hassio`, the cable of a
home `br0`. The kernel says what has hardware, and what lies on what (`/sys/class/net`).
"""

import ipaddress
import socket
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

SYS = Path("/sys/class/net")
_LOOPBACK_TYPE = "772"
# Types of devices without a link layer: tun, WireGuard, PPP, IP in IP, GRE.
_TUNNEL_TYPES = frozenset({"65534", "512", "768", "769", "776", "778", "823"})
# Where the kernel says nothing.
_TUNNEL_NAMES = ("tun", "wg", "tailscale", "zt", "ppp", "utun")
_BRIDGE_NAMES = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "podman", "lxc", "lxd")
_DEEPEST = 4


class InterfaceRank(IntEnum):
    """How likely others reach an interface, the best first.

    `PHYSICAL`: it has hardware (cable or Wi-Fi), or lies on what has: a bridge with a port in the
    home's network, a bond, a VLAN. `VIRTUAL`: the inner end of a container or machine. `TUNNEL`: a
    VPN. `INNER`: a bridge between containers, `LOOPBACK`.
    """

    PHYSICAL = 0
    VIRTUAL = 1
    TUNNEL = 2
    INNER = 3
    LOOPBACK = 4
    FAR = 5


@dataclass(frozen=True, slots=True)
class Interface:
    """An IPv4 address of this machine; `mbps`: the speed of its link, 0 if unknown. `is_up`: it is
    connected.
    """

    name: str
    address: str
    netmask: str
    rank: InterfaceRank
    mbps: int = 0
    is_up: bool = True

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The addresses that are reached through it without a router."""
        return ipaddress.IPv4Network(f"{self.address}/{self.netmask or 32}", strict=False)


def own_interfaces() -> list[Interface]:
    """Every IPv4 address of this machine."""
    statistics = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        status, rank = statistics.get(name), rank_of(name)
        for entry in entries:
            if entry.family == socket.AF_INET:
                speed, is_up = (status.speed, status.isup) if status else (0, False)
                mask = getattr(entry, "netmask", None) or ""
                found.append(Interface(name, entry.address, mask, rank, speed, is_up))
    return found


def best(among: list[Interface]) -> list[Interface]:
    """The connected interfaces of the best rank that is there; none of loopback."""
    up = [
        interface
        for interface in among
        if interface.is_up and interface.rank < InterfaceRank.LOOPBACK
    ]
    rank = min((interface.rank for interface in up), default=InterfaceRank.FAR)
    return [interface for interface in up if interface.rank is rank]


def rank_towards(host: str, own: list[Interface]) -> InterfaceRank:
    """The rank of the interface through which an IPv4 address is reached without a router."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return InterfaceRank.PHYSICAL  # IPv6, which is announced for one link
    ranks = (
        interface.rank for interface in own if interface.is_up and address in interface.network
    )
    return min(ranks, default=InterfaceRank.FAR)


def rank_of(name: str, sys: Path | None = None, depth: int = 0) -> InterfaceRank:
    """What the kernel says an interface is, below `sys`."""
    folder = (sys or SYS) / name
    if not folder.exists():
        return _by_name(name)
    kind = _text(folder / "type")
    if kind == _LOOPBACK_TYPE:
        return InterfaceRank.LOOPBACK
    if any((folder / mark).exists() for mark in ("device", "wireless", "phy80211")):
        return InterfaceRank.PHYSICAL
    if kind in _TUNNEL_TYPES or (folder / "tun_flags").exists():
        return InterfaceRank.TUNNEL
    below = [path.name.removeprefix("lower_") for path in folder.glob("lower_*")]
    if depth < _DEEPEST and any(
        rank_of(lower, sys, depth + 1) is InterfaceRank.PHYSICAL for lower in below if lower != name
    ):
        return InterfaceRank.PHYSICAL
    return InterfaceRank.INNER if (folder / "bridge").exists() else InterfaceRank.VIRTUAL


def is_wireless(name: str, sys: Path) -> bool:
    """Whether an interface is Wi-Fi."""
    return any((sys / name / mark).exists() for mark in ("wireless", "phy80211"))


def _by_name(name: str) -> InterfaceRank:
    if name.startswith("lo"):
        return InterfaceRank.LOOPBACK
    if name.startswith(_TUNNEL_NAMES):
        return InterfaceRank.TUNNEL
    return InterfaceRank.INNER if name.startswith(_BRIDGE_NAMES) else InterfaceRank.PHYSICAL


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
