"""What no file says of network cards: their addresses, and what only a driver reports, by two old
ioctls that every kernel answers.
"""

import array
import fcntl
import socket
import struct
from contextlib import suppress

import psutil  # type: ignore[import-untyped, unused-ignore]

_SIOCETHTOOL = 0x8946  # linux/sockios.h
_ETHTOOL_GSET = 0x00000001  # linux/ethtool.h
_ETHTOOL_CMD_BYTES = 44
_ETHTOOL_GEEE = 0x00000044
_ETHTOOL_EEE_BYTES = 40
_SIOCGIWPOWER = 0x8B2D  # linux/wireless.h
_NAME_BYTES = 16  # IFNAMSIZ
# Bits of `supported` in struct ethtool_cmd, fastest first, and their Mbps.
_PORTS = ((12, 10_000), (15, 2500), (5, 1000), (4, 1000), (3, 100), (2, 100), (1, 10), (0, 10))


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
