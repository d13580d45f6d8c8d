"""A network of namespaces: the host, its devices, and a hub between them.

    host ---- hub (a bridge) ---- device 1, device 2, ...

`star`: one full-duplex link at the host. Devices reach each other through the host, so that their
traffic crosses its link once each way. `air`: the same, but both directions of that link share one
bucket of tokens. `switch`: every port is full duplex and has the bandwidth; devices reach each
other directly. Queues are short first-in first-out ones, as of a simple switch. Of the kernel's
shapers only `tbf` is needed, and for `air` also `ifb` and `u32`.

Namespaces are called PREFIX, the process that owns them, and a name: those of a process that is
gone are removed by the next run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from coordinator.costs import Medium
from protos.errors import BadConfiguration, Unavailable

PREFIX = "imbrex-lab-"
SUBNET = "10.77.0"
HOST = f"{SUBNET}.1"
TOOLS = ("ip", "tc", "sysctl")
MOST_DEVICES = 64
# An Ethernet frame of 1514 bytes carries 1448 of a TCP stream: bandwidths are what a stream gets.
_WIRE_PER_PAYLOAD = 1514 / 1448
# What has passed an idle link at memory speed before its rate holds: as little as is possible, for
# halos are small. What a sender hands over at once must fit (two frames; the kernel's 64 KB would
# make all smaller messages free).
_SEGMENT_BYTES, _BURST_BYTES = 3000, 4000
# What a port holds back before it drops: about what a home's switch has.
QUEUE_BYTES = 512 * 1024
_RUN = Path("/run/netns")
_END_S = 3.0

# No surprises: congestion control that every kernel allows in a namespace (a home's short round
# trips leave no difference to the usual cubic), no routers that tell of shorter ways, no addresses
# that appear by themselves.
_SYSCTL = (
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.send_redirects=0",
    "net.ipv4.conf.default.send_redirects=0",
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What to build: devices beside the host, the bandwidth of each link in Mbps, and what a port
    holds back before it drops.
    """

    devices: int
    medium: Medium
    mbps: float
    queue_bytes: int = QUEUE_BYTES


class Network:
    """Namespaces that this process owns; the context removes them, `guard` if it cannot."""

    def __init__(self, wiring: Wiring, owner: int | None = None) -> None:
        self.wiring = wiring
        self._stem = f"{PREFIX}{owner or os.getpid()}-"

    @property
    def host(self) -> str:
        """The host's namespace."""
        return f"{self._stem}host"

    def device(self, number: int) -> str:
        """The namespace of device 1, 2, ..."""
        return f"{self._stem}d{number}"

    def address(self, number: int) -> str:
        """Of device 1, 2, ...; 0 is the host."""
        return f"{SUBNET}.{number + 1}"

    def build(self) -> None:
        """Makes everything.

        Raises:
            BadConfiguration: not root, no iproute2.
            Unavailable: the kernel refuses something.
        """
        require_tools()
        hub = f"{self._stem}hub"
        for name in (hub, self.host, *map(self.device, range(1, self.wiring.devices + 1))):
            _run("ip", "netns", "add", name)
            _sysctl(name, _SYSCTL)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "br0", "up")
        self._plug(hub, self.host, 0)
        for number in range(1, self.wiring.devices + 1):
            self._plug(hub, self.device(number), number)
        self._shape(hub)

    def remove(self) -> None:
        """Ends what runs inside and removes the namespaces."""
        _remove([name for name in existing() if name.startswith(self._stem)])

    def dropped(self) -> int:
        """Packets that found a queue full, since it was built."""
        names = [
            self.host,
            f"{self._stem}hub",
            *map(self.device, range(1, self.wiring.devices + 1)),
        ]
        shown = [_run("tc", "-s", "-j", "-n", name, "qdisc", "show") for name in names]
        return sum(int(queue.get("drops", 0)) for text in shown for queue in json.loads(text))

    def inside(self, namespace: str) -> tuple[str, ...]:
        """A command that executes another inside the namespace."""
        return ("ip", "netns", "exec", namespace)

    def _plug(self, hub: str, name: str, number: int) -> None:
        """A cable from the namespace's `eth0` to a port of the hub."""
        port, address = f"port{number}", self.address(number)
        cable = ("type", "veth", "peer", "name", port, "netns", hub)
        _run("ip", "-n", name, "link", "add", "eth0", *cable)
        _run("ip", "-n", hub, "link", "set", port, "master", "br0", "up")
        _run("ip", "-n", name, "link", "set", "eth0", "gso_max_size", str(_SEGMENT_BYTES), "up")
        through_host = number and self.wiring.medium != "switch"
        _run(
            "ip",
            "-n",
            name,
            "address",
            "add",
            f"{address}/{32 if through_host else 24}",
            "dev",
            "eth0",
        )
        if through_host:
            _run("ip", "-n", name, "route", "add", HOST, "dev", "eth0")
            _run("ip", "-n", name, "route", "add", f"{SUBNET}.0/24", "via", HOST)

    def _shape(self, hub: str) -> None:
        mbps, queue_bytes = self.wiring.mbps, self.wiring.queue_bytes
        match self.wiring.medium:
            case "star":
                limit(self.host, "eth0", mbps)
                limit(hub, "port0", mbps, queue_bytes)
            case "switch":
                limit(self.host, "eth0", mbps)
                limit(hub, "port0", mbps, queue_bytes)
                for number in range(1, self.wiring.devices + 1):
                    limit(self.device(number), "eth0", mbps)
                    limit(hub, f"port{number}", mbps, queue_bytes)
            case "air":
                _run("ip", "-n", self.host, "link", "add", "air", "type", "ifb")
                _run("ip", "-n", self.host, "link", "set", "air", "up")
                limit(self.host, "air", mbps)
                _run("tc", "-n", self.host, "qdisc", "add", "dev", "eth0", "clsact")
                everything = ("protocol", "ip", "u32", "match", "u32", "0", "0")
                through = ("action", "mirred", "egress", "redirect", "dev", "air")
                for way in ("ingress", "egress"):
                    filter_ = ("filter", "add", "dev", "eth0", way, *everything, *through)
                    _run("tc", "-n", self.host, *filter_)


def require_tools() -> None:
    """Raises BadConfiguration where namespaces cannot be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise BadConfiguration(
            cause=f"the lab needs {', '.join(missing)}, which is not installed",
            cure="apt install iproute2 procps",
        )
    if os.geteuid() != 0:
        raise BadConfiguration(
            cause="only root may make network namespaces",
            cure="Run it again with sudo; nothing but the namespaces needs it",
        )


def remove_leftovers() -> list[str]:
    """Removes the namespaces of owners that are gone; their names."""
    found = [name for name in existing() if not _owned(name)]
    _remove(found)
    return found


def limit(namespace: str, device: str, mbps: float, queue_bytes: int = QUEUE_BYTES) -> None:
    """Limits what leaves through a device of a namespace, from now on; what waits for it is dropped
    beyond a queue of so many bytes.
    """
    rate = round(mbps * 1e6 * _WIRE_PER_PAYLOAD)
    shaper = ("tbf", "rate", f"{rate}bit", "burst", str(_BURST_BYTES), "limit", str(queue_bytes))
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shaper)


def existing() -> list[str]:
    """The namespaces of all rooms on this machine."""
    return sorted(path.name for path in _RUN.glob(f"{PREFIX}*")) if _RUN.exists() else []


def _owned(name: str) -> bool:
    owner = name.removeprefix(PREFIX).partition("-")[0]
    return owner.isdecimal() and psutil.pid_exists(int(owner))


def _remove(names: Sequence[str]) -> None:
    """Whoever runs inside is ended first: a namespace lives as long as its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        inhabitants = [inhabitant for name in names for inhabitant in _inhabitants(name)]
        for inhabitant in inhabitants:
            with suppress(psutil.NoSuchProcess):
                inhabitant.send_signal(number)
        psutil.wait_procs(inhabitants, timeout=_END_S)
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _inhabitants(name: str) -> Iterator[psutil.Process]:
    found = subprocess.run(
        ["ip", "netns", "pids", name], check=False, capture_output=True, text=True
    )
    for pid in map(int, found.stdout.split()):
        with suppress(psutil.NoSuchProcess):
            if pid != os.getpid():
                yield psutil.Process(pid)


def _sysctl(namespace: str, settings: Sequence[str]) -> None:
    _run("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", *settings)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(
            cause=f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}",
            cure="The kernel needs namespaces, veth, bridge and sch_tbf (for `air` also ifb, u32)",
        )
    return done.stdout
