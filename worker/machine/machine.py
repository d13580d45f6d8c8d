"""The state of this machine: what the coordinator's doctor cannot see from outside.

Everything is read from the kernel's files below `root`, except for what these do not say of network
cards (`Cards`), so that tests can describe any state of a Raspberry Pi in files.
"""

import array
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from protos import imbrex_pb2 as pb
from protos.daemon.interfaces import InterfaceRank, is_wireless, rank_of

_SIOCETHTOOL = 0x8946  # linux/sockios.h
_ETHTOOL_GSET = 0x00000001  # linux/ethtool.h
_ETHTOOL_CMD_BYTES = 44
_ETHTOOL_GEEE = 0x00000044
_ETHTOOL_EEE_BYTES = 40
_SIOCGIWPOWER = 0x8B2D  # linux/wireless.h
_NAME_BYTES = 16  # IFNAMSIZ
# Bits of `supported` in struct ethtool_cmd, fastest first, and their Mbps.
_PORTS = ((12, 10_000), (15, 2500), (5, 1000), (4, 1000), (3, 100), (2, 100), (1, 10), (0, 10))
_NETWORK = "sys/class/net"
_FREQUENCY = "sys/devices/system/cpu/cpu0/cpufreq"
# Raspberry Pi's firmware reports flags in hexadecimal; in newer kernels a Pi 5's `soc` has an
# address in its name. Bit 0 is under-voltage, 1 frequency capped, 2 throttled, 3 soft limit; the
# higher bits say what has happened since boot.
POWER_FLAGS = "sys/devices/platform/soc*/soc*:firmware/get_throttled"
# Mainline kernels report only under-voltage.
VOLTAGE_ALARM = "sys/class/hwmon/hwmon*/in0_lcrit_alarm"
_VOLTAGE_SENSOR = "rpi_volt"
_UNDER_VOLTAGE = 1 << 0
_NOW = 0xF
# Names of processor sensors on Raspberry Pis and PCs.
_SENSORS = ("cpu_thermal", "cpu-thermal", "soc_thermal", "coretemp", "k10temp")


class Cards:
    """Queries the system and its drivers; one that does not answer leaves the value unknown."""

    def addresses(self) -> dict[str, list[str]]:
        """The IPv4 addresses of every interface."""
        return {
            name: [entry.address for entry in entries if entry.family == socket.AF_INET]
            for name, entries in psutil.net_if_addrs().items()
        }

    def port_mbps(self, name: str) -> int:
        """The highest speed of an Ethernet port in Mbps; 0 if unknown."""
        answer = _of_driver(name, _ETHTOOL_GSET, _ETHTOOL_CMD_BYTES)
        supported = answer[1] if answer else 0
        return next((mbps for bit, mbps in _PORTS if supported >> bit & 1), 0)

    def saves_energy(self, name: str) -> bool:
        """Whether both ends of a cable use Energy-Efficient Ethernet."""
        # struct ethtool_eee: after the command, what is supported, advertised by this end and by
        # the other one, and whether it is active.
        answer = _of_driver(name, _ETHTOOL_GEEE, _ETHTOOL_EEE_BYTES)
        return answer is not None and bool(answer[4])

    def saves_power(self, name: str) -> bool:
        """Whether a Wi-Fi card saves power by sleeping between beacons."""
        # struct iwreq: a name, then struct iw_param {s32 value, u8 fixed, u8 disabled, u16 flags}.
        answer = _ask(_SIOCGIWPOWER, struct.pack(f"{_NAME_BYTES}s16x", name.encode()))
        return answer is not None and not answer[_NAME_BYTES + 5]


def _of_driver(name: str, command: int, size: int) -> tuple[int, ...] | None:
    """What an Ethernet driver answers to a command of ethtool, in words of 32 bits."""
    words = array.array("B", struct.pack("=I", command).ljust(size, b"\0"))
    address, _ = words.buffer_info()
    request = struct.pack(f"{_NAME_BYTES}sP", name.encode(), address)
    if _ask(_SIOCETHTOOL, request) is None:
        return None
    return struct.unpack(f"={size // 4}I", words)


def _ask(number: int, request: bytes) -> bytes | None:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, number, request)
    return None


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


def celsius() -> float:
    """The processor's temperature in degrees Celsius; 0 if unknown."""
    read = getattr(psutil, "sensors_temperatures", None)
    sensors = read() if read is not None else {}
    readings = (reading for name in _SENSORS for reading in sensors.get(name, ()))
    return max((reading.current for reading in readings), default=0.0)


def power_flags(root: Path) -> int:
    """The firmware's flags, read below `root`; 0 if unknown."""
    for file in root.glob(POWER_FLAGS):
        with suppress(OSError, ValueError):
            return max(0, int(file.read_text().strip(), 16))
    for file in root.glob(VOLTAGE_ALARM):
        with suppress(OSError, ValueError):
            if file.with_name("name").read_text().strip() == _VOLTAGE_SENSOR:
                return _UNDER_VOLTAGE if int(file.read_text()) else 0
    return 0


def throttled(root: Path = Path("/")) -> bool:
    """Whether heat or power throttles the processor now."""
    return bool(power_flags(root) & _NOW)
