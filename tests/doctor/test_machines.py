"""What is wrong with one machine has a name, a cause and a cure; what is right has none."""

import pytest

from coordinator.doctor.machines import findings
from tests.doctor.patients import GIB, VERSION, cable, patient, wifi

MB = 1_000_000
REACHED_BY_WIFI = {"address": "192.168.1.30:8470"}


@pytest.mark.parametrize(
    ("wrong", "code", "severity", "told"),
    [
        ({"power_flags": 0x1}, "under_voltage", "error", "too low now"),
        ({"power_flags": 0x50005}, "under_voltage", "error", "too low now"),
        ({"power_flags": 0x10000}, "under_voltage", "warning", "since it started"),
        ({"power_flags": 0x4, "celsius": 82.0}, "throttled", "warning", "now (82 °C)"),
        ({"power_flags": 0x2}, "throttled", "warning", "throttled now"),
        ({"power_flags": 0x8}, "throttled", "warning", "throttled now"),
        ({"power_flags": 0x60000}, "throttled", "note", "since it started"),
        ({"governor": "powersave"}, "governor", "warning", "lowest frequency"),
        ({"governor": "ondemand"}, "governor", "note", "late"),
        (
            {"memory_available_bytes": 150 * MB},
            "low_memory",
            "warning",
            "150 MB of its 1074 MB",
        ),
        ({"memory_available_bytes": 10 * MB}, "low_memory", "error", "10 MB"),
        ({"disk_free_bytes": 300 * MB}, "full_disk", "warning", "300 MB are free"),
        ({"disk_free_bytes": 3 * MB}, "full_disk", "error", "3 MB are free"),
        ({"ahead_s": 5.0}, "clock_skew", "warning", "5 s ahead of"),
        ({"ahead_s": -3600.0}, "clock_skew", "error", "3600 s behind"),
        (
            {"refused_engines": "openvino is refused: it has a bug"},
            *("engine_refused", "warning", "openvino is refused: it has a bug"),
        ),
        ({"version": "1.2.2"}, "version_skew", "warning", f"1.2.2, the coordinator {VERSION}"),
        ({"interfaces": [cable(mbps=100)]}, "slow_cable", "warning", "at 100 Mbit/s but could"),
        ({"interfaces": [cable(mbps=10, port_mbps=100)]}, "slow_cable", "warning", "at 10 Mbit"),
        (
            {"interfaces": [wifi(saves_power=True)], **REACHED_BY_WIFI},
            "wifi_power_saving",
            "warning",
            "wlan0",
        ),
        (
            {"interfaces": [cable(), wifi()], **REACHED_BY_WIFI},
            "wrong_interface",
            "warning",
            "a cable is plugged into eth0 (192.168.1.20)",
        ),
    ],
)
def test_it_is_named(wrong, code, severity, told) -> None:
    (found,) = findings(patient(**wrong), VERSION)
    assert (found.code, found.severity, found.device) == (code, severity, "pi-1")
    assert told in found.cause
    assert len(found.cure) > 20


@pytest.mark.parametrize(
    "right",
    [
        {},
        # What a machine can't know says nothing.
        {"memory_bytes": 0, "memory_available_bytes": 0, "disk_bytes": 0, "disk_free_bytes": 0},
        {"governor": "", "governor_driver": "", "interfaces": []},
        {"governor": "powersave", "governor_driver": "intel_pstate"},
        {"ahead_s": 1.9},
        {"ahead_s": 4.0, "round_trip_s": 5.0},
        {"interfaces": [cable(mbps=100, port_mbps=100)]},
        {"interfaces": [cable(mbps=100, port_mbps=0)]},
        {"interfaces": [cable(mbps=1000, port_mbps=10_000)]},
        {"interfaces": [cable(), wifi(saves_power=True)]},  # not used
        {"interfaces": [cable(connected=False), wifi()], **REACHED_BY_WIFI},
        {"disk_free_bytes": GIB, "memory_available_bytes": 200 * MB},
    ],
)
def test_what_is_right_is_not_named(right) -> None:
    assert not list(findings(patient(**right), VERSION))
