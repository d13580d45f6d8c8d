"""What is wrong between machines: who hears, reaches and knows whom."""

import pytest

from coordinator.doctor.findings import Absent, Examined
from coordinator.doctor.networks import findings
from tests.doctor.patients import VERSION, patient, wifi


def codes(*patients, **changes):
    examined = Examined(version=VERSION, patients=patients, listened=True, **changes)
    return [(each.code, each.severity, each.device) for each in findings(examined)]


def on_wifi(name: str, number: int, **changes):
    address = f"192.168.1.{number}"
    own = {"interfaces": [wifi(address=address)], "address": f"{address}:8470"}
    return patient(name, **(own | changes))


def test_a_sound_cluster() -> None:
    assert codes(patient("a"), patient("b")) == []


def test_silence_of_all_devices_is_blocked_multicast() -> None:
    deaf = [patient("a", heard=False), patient("b", heard=False)]
    assert codes(*deaf) == [("multicast_blocked", "warning", "")]
    quiet = Examined(version=VERSION, patients=tuple(deaf), listened=False)
    assert not list(findings(quiet))


def test_silence_of_one_device_is_its_blocked_multicast() -> None:
    some = [patient("a", heard=False), patient("b")]
    assert codes(*some) == [("multicast_blocked", "warning", "a")]
    # Not expected of our own worker, nor where announcements are switched off.
    assert not codes(patient("b"), patient("a", heard=False, source="host"))
    assert not codes(patient("b"), patient("a", heard=False, announced=False))


def test_one_way_reachability_is_an_error_of_the_sender() -> None:
    a = patient("a", unreached={"id-b": "no answer"})
    (found,) = findings(Examined(VERSION, (a, patient("b"))))
    assert (found.code, found.severity, found.device) == ("one_way", "error", "a")
    assert "cannot reach b" in found.cause
    assert "which reaches it (no answer)" in found.cause
    assert "On b" in found.cure


def test_peers_that_do_not_reach_each_other_are_an_error() -> None:
    a, b = {"unreached": {"id-b": "no answer"}}, {"unreached": {"id-a": "no answer"}}
    assert codes(patient("a", **a), patient("b", **b)) == [("unreachable_peers", "error", "a")]
    both = on_wifi("a", 30, **a), on_wifi("b", 31, **b)
    assert codes(*both) == [("client_isolation", "error", "a")]
    (found,) = findings(Examined(VERSION, both))
    assert "isolation" in found.cure


def test_the_hosts_worker_is_for_nobody_else() -> None:
    own = patient("host", address="127.0.0.1:40001", source="host")
    assert codes(patient("a"), own) == [("wrong_interface", "warning", "host")]
    alone = patient("b", address="127.0.0.1:40002")
    assert codes(alone, own) == []


@pytest.mark.parametrize(
    ("absent", "code"),
    [
        (
            Absent("10.0.0.9:8470", "mdns", "duplicate_id", "two of x", "Delete"),
            "duplicate_identity",
        ),
        (
            Absent("10.0.0.9:8470", "mdns", "denied", "it speaks protocol 1", "Install"),
            "version_skew",
        ),
        (Absent("10.0.0.9:8470", "mdns", "denied", "wrong secret", "Give it"), "denied"),
        (Absent("172.17.0.2:8470", "mdns", "", "no route", "", near=False), "wrong_interface"),
        (Absent("10.0.0.9:8470", "mdns", "", "does not answer", ""), "unreachable"),
        (Absent("10.0.0.9:8470", "static", "", "does not answer", ""), "unreachable"),
        (Absent("10.0.0.9:8470", "static", "", "no answer", "", near=False), "unreachable"),
    ],
)
def test_absent_device_is_an_error_by_its_reason(absent, code) -> None:
    assert codes(patient("a"), absent=(absent,)) == [(code, "error", absent.address)]


def test_cluster_without_devices_is_an_error() -> None:
    assert codes() == [("no_device", "error", "")]


def test_device_that_cannot_be_asked_is_an_error() -> None:
    found = codes(patient("a"), unexamined={"b": "it runs an older version"})
    assert found == [("not_examined", "error", "b")]


def test_neighbouring_cluster_is_only_noted() -> None:
    assert codes(patient("a"), others=("neighbours",)) == [("other_cluster", "note", "")]
