"""Devices as they are examined, healthy unless told otherwise."""

from typing import Any

from coordinator.doctor.findings import Patient
from protos import imbrex_pb2 as pb
from protos.wire.facts import DeviceId

VERSION = "1.2.3"
GIB = 1 << 30


def cable(name: str = "eth0", address: str = "192.168.1.20", **changes: Any) -> pb.Interface:
    told = {"connected": True, "mbps": 1000, "port_mbps": 1000}
    return pb.Interface(name=name, addresses=[address], **(told | changes))


def wifi(name: str = "wlan0", address: str = "192.168.1.30", **changes: Any) -> pb.Interface:
    return pb.Interface(name=name, addresses=[address], **({"wireless": True} | changes))


def condition(**changes: Any) -> pb.Condition:
    told: dict[str, Any] = {
        "memory_bytes": GIB,
        "memory_available_bytes": GIB // 2,
        "disk_bytes": 32 * GIB,
        "disk_free_bytes": 20 * GIB,
        "governor": "performance",
        "governor_driver": "cpufreq-dt",
        "interfaces": [cable()],
        "announced": True,
    }
    return pb.Condition(**(told | changes))


def patient(name: str = "pi-1", **changes: Any) -> Patient:
    own = {key: changes.pop(key) for key in list(changes) if key in Patient.__slots__}
    told: dict[str, Any] = {
        "id": DeviceId(f"id-{name}"),
        "name": name,
        "address": "192.168.1.20:8470",
        "source": "static",
        "version": VERSION,
        "condition": condition(**changes),
    }
    return Patient(**(told | own))
