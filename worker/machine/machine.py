"""The state of this machine: what the coordinator's doctor cannot see from outside.

Everything is read from the kernel's files below `root`, except for what these do not say of network
cards (`Cards`), so that tests can describe any state of a Raspberry Pi in files.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from protos import imbrex_pb2 as pb
from protos.daemon.interfaces import InterfaceRank, is_wireless, rank_of
from worker.machine.condition import power_flags
from worker.machine.ethtool import Cards

_NETWORK = "sys/class/net"
_FREQUENCY = "sys/devices/system/cpu/cpu0/cpufreq"


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """The sources to read from."""

    root: Path = Path("/")
    cards: Cards = field(default_factory=Cards)
    clock: Callable[[], float] = time.time

    def condition(self, state_dir: Path, announced: bool) -> pb.Condition:
        """The machine's state; `state_dir` is on the disk that holds the weights."""
        memory, tcp = self._memory(), self._tcp()
        disk = os.statvfs(state_dir)
        return pb.Condition(
            clock_s=self.clock(),
            memory_bytes=memory.get("MemTotal", 0),
            memory_available_bytes=memory.get("MemAvailable", 0),
            disk_bytes=disk.f_blocks * disk.f_frsize,
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            power_flags=power_flags(self.root),
            governor=self._text(f"{_FREQUENCY}/scaling_governor"),
            governor_driver=self._text(f"{_FREQUENCY}/scaling_driver"),
            interfaces=self._interfaces(),
            announced=announced,
            up_s=_number(self._text("proc/uptime").partition(".")[0]),
            segments_sent=tcp.get("OutSegs", 0),
            segments_resent=tcp.get("RetransSegs", 0),
        )

    def _interfaces(self) -> Iterator[pb.Interface]:
        for name, addresses in self.cards.addresses().items():
            if rank_of(name, self.root / _NETWORK) >= InterfaceRank.INNER:
                continue
            folder = f"{_NETWORK}/{name}"
            wireless = is_wireless(name, self.root / _NETWORK)
            yield pb.Interface(
                name=name,
                addresses=addresses,
                wireless=wireless,
                connected=self._text(f"{folder}/carrier") == "1",
                mbps=_number(self._text(f"{folder}/speed")),
                port_mbps=0 if wireless else self.cards.port_mbps(name),
                saves_power=wireless and self.cards.saves_power(name),
                carrier_changes=_number(self._text(f"{folder}/carrier_changes")),
                saves_energy=not wireless and self.cards.saves_energy(name),
            )

    def _tcp(self) -> dict[str, int]:
        """The kernel's counters of TCP."""
        lines = (line.split() for line in self._text("proc/net/snmp").splitlines())
        names, *numbers = [words[1:] for words in lines if words and words[0] == "Tcp:"] or [[]]
        return dict(zip(names, map(_number, *numbers), strict=False)) if numbers else {}

    def _memory(self) -> dict[str, int]:
        """The kernel's memory table, in bytes."""
        table = {}
        for line in self._text("proc/meminfo").splitlines():
            key, _, value = line.partition(":")
            table[key] = _number(value.removesuffix("kB").strip()) << 10
        return table

    def _text(self, path: str) -> str:
        """A file's text; empty if it does not exist or cannot be read."""
        try:
            return (self.root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _number(text: str) -> int:
    """A count; 0 if there is none (the speed of an unplugged cable is -1)."""
    try:
        return max(0, int(text))
    except ValueError:
        return 0
