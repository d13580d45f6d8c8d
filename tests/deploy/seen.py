"""What is seen on booted machines, and of them."""

from __future__ import annotations

import re
import sys

from tests.deploy.machines import OURS, Machine, inside
from tests.deploy.packages import run


def up_s(machine: Machine) -> float:
    """How long its oldest daemon has run, in seconds."""
    return max(map(float, machine.ssh("ps -u imbrex -o etimes=").split()), default=0.0)


def resident(machine: Machine) -> dict[str, float]:
    """Megabytes that each of its daemons holds in memory, shared libraries with it."""
    lines = [line.split() for line in machine.ssh("ps -u imbrex -o rss=,args=").splitlines()]
    return {
        daemon: round(int(size) / 1024, 1)
        for size, *command in lines
        for daemon in ("worker", "coordinator")
        if daemon in command
    }


def runs_from(machine: Machine, unit: str) -> str:
    """The environment below /opt/imbrex/venvs that a service's libraries are from."""
    process = machine.ssh("systemctl", "show", "-P", "MainPID", unit).strip()
    mapped = set(
        re.findall(r"/opt/imbrex/venvs/([^/]+)/", machine.ssh(f"cat /proc/{process}/maps"))
    )
    assert len(mapped) == 1, mapped
    return str(mapped.pop())


def exposure(machine: Machine, daemon: str) -> float:
    """How much of the system a daemon's unit leaves open to it, of 10, as systemd sees it."""
    said = machine.ssh(f"systemd-analyze security --no-pager imbrex-{daemon}.service")
    return float(re.findall(r"Overall exposure level.*: ([0-9.]+)", said)[0])


def restarted(machine: Machine, times: int, daemon: str = "worker") -> bool:
    """Whether it serves, after systemd has started it again by itself so often."""
    said = machine.ssh(f"systemctl show -P ActiveState -P NRestarts imbrex-{daemon}.service")
    return set(said.split()) == {"active", str(times)}


def pause_s(machine: Machine, daemon: str = "worker") -> float:
    """Seconds before systemd would start it again, if it failed now."""
    unit = f"/org/freedesktop/systemd1/unit/imbrex_2d{daemon}_2eservice"
    manager = "org.freedesktop.systemd1"
    asked = f"busctl get-property {manager} {unit} {manager}.Service"
    said = machine.ssh(f"{asked} RestartUSecNext 2>&1 || {asked} RestartUSec")
    return int(said.split()[-1]) / 1e6


def leftovers(machine: Machine) -> str:
    """What imbrex has left there."""
    units = "/etc/systemd/system/imbrex* /etc/systemd/system/*/imbrex*"
    listed = f"ls -d /opt/imbrex /etc/imbrex /var/lib/imbrex {units} 2>&1"
    known = "systemctl list-units --all --plain --no-legend 'imbrex*'"
    return machine.ssh(f"{listed} | grep -v 'No such file'; {known} | grep -v not-found || true")


def assert_private(machine: Machine) -> None:
    """No key is for others to read, no token or key in a command line or in the journal."""
    assert machine.ssh("find /etc/imbrex /opt/imbrex/worked -type f -perm /007") == ""
    assert machine.ssh("find /var/lib/imbrex/* -maxdepth 0 -perm /077") == ""
    assert machine.ssh("find /var/lib/imbrex -name '*.pem' -perm /077") == ""
    seen = machine.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl --no-pager -o cat")
    assert "imbrex" in seen
    assert re.findall(r":8462/[0-9a-f]{64}/", seen) == []
    assert re.findall(r"imbrex_[\w-]{32}(?![\w-])", seen) == []
    assert "PRIVATE KEY" not in seen


def announced(within_s: float) -> set[str]:
    """Names of the workers that say over multicast DNS that they are there."""
    listener = (
        "import sys, time\n"
        "from zeroconf import ServiceBrowser, Zeroconf\n"
        "found = set()\n"
        "def seen(zeroconf, service_type, name, state_change):\n"
        "    found.add(name.rpartition('._imbrex')[0].rpartition('-')[0])\n"
        f"zeroconf = Zeroconf(interfaces=['{OURS}'])\n"
        "ServiceBrowser(zeroconf, '_imbrex._tcp.local.', handlers=[seen])\n"
        f"deadline = time.monotonic() + {within_s}\n"
        "while len(found) < 3 and time.monotonic() < deadline:\n"
        "    time.sleep(0.2)\n"
        "print(*found)\n"
    )
    return set(run(*inside(sys.executable, "-c", listener)).split())
