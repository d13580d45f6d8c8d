"""What is wrong with one machine has a name, a cause and a cure; what is right has none."""

import pytest

from coordinator.doctor.machines import findings
from protos.wire.facts import KeptPrograms
from tests.doctor.patients import GIB, VERSION, cable, condition, patient, wifi

MB = 1_000_000


def counted(sent: int, resent: int):
    """A condition with such counters of packets."""
    return condition(segments_sent=sent, segments_resent=resent)


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
        (
            {"kept": (KeptPrograms("ncnn does not take the operator Erf", 2, is_lacking=True),)},
            *("programs_left", "note", "2 of its programs: ncnn does not take the operator Erf"),
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
            {"segments_sent": 1400, "segments_resent": 20, "before": counted(1000, 10)},
            *("packet_loss", "warning", "2% of the packets that it sends"),
        ),
        (
            {"segments_sent": 1400, "segments_resent": 50, "before": counted(1000, 10)},
            *("packet_loss", "error", "10% of the packets that it sends"),
        ),
        (
            {"segments_sent": 10_000, "segments_resent": 300, "before": counted(9_000, 300)},
            *("packet_loss", "note", "3% of the packets that it has sent since"),
        ),
        # What no kernel says.
        (
            {"segments_sent": 10_000, "segments_resent": 2**64 - 1},
            *("packet_loss", "note", "100% of"),
        ),
        (
            {"interfaces": [cable(carrier_changes=12)]},
            *("link_flaps", "warning", "eth0 has come and gone 6 times"),
        ),
        (
            {"interfaces": [cable(carrier_changes=2**32 - 1)], "up_s": 1e6},
            *("link_flaps", "warning", "eth0 has come and gone 2147483647 times"),
        ),
        (
            {"interfaces": [cable(), wifi()], **REACHED_BY_WIFI},
            "wrong_interface",
            "warning",
            "a cable is plugged into eth0 (192.168.1.20)",
        ),
    ],
)
def test_fault_of_a_machine_is_named(wrong, code, severity, told) -> None:
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
        {"segments_sent": 1400, "segments_resent": 2, "before": counted(1000, 0)},
        {"segments_sent": 9_000, "segments_resent": 900},
        {"segments_sent": 10**9, "segments_resent": 10**6, "before": counted(10**9 - 400, 10**6)},
        # A machine that started again meanwhile, and what no kernel says.
        {"segments_sent": 10, "segments_resent": 5, "before": counted(10**6, 10**6)},
        {"segments_sent": 10, "segments_resent": 2**64 - 1, "before": counted(2**64 - 1, 0)},
        {"segments_resent": 2**64 - 1},
        {"interfaces": [cable(carrier_changes=11)]},
        {"interfaces": [cable(carrier_changes=100)], "up_s": 30 * 86_400.0},
        {"interfaces": [cable(carrier_changes=100)], "up_s": float("inf")},
        {"interfaces": [cable(carrier_changes=100, connected=False)]},
    ],
)
def test_healthy_machine_has_no_findings(right) -> None:
    assert not list(findings(patient(**right), VERSION))


@pytest.mark.parametrize(
    ("link", "cure"),
    [
        (
            cable("eth7", saves_energy=True),
            "off, which is active: sudo ethtool --set-eee eth7",
        ),
        (cable(), "then switch Energy-Efficient Ethernet off: sudo ethtool --set-eee eth0"),
        (wifi(address="192.168.1.20"), "closer to the access point"),
    ],
)
def test_the_cure_of_lost_packets_is_of_the_link_that_loses_them(link, cure) -> None:
    told = {"interfaces": [link], "segments_sent": 20_000, "segments_resent": 2000}
    (found,) = findings(patient(**told), VERSION)
    assert cure in found.cure
    assert ("dtparam=eee=off" in found.cure) is not link.wireless
