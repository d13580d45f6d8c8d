"""The check list: a row for everything that was looked at, and every cause told once."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from coordinator.answers import Diagnosis, Finding
from coordinator.devices.other_coordinators import Other
from coordinator.doctor import examine as examination
from coordinator.doctor.examine import diagnose
from coordinator.doctor.findings import Absent, Examined
from imbrex.cli.asking import show_diagnosis
from protos.wire.facts import DeviceId, EngineShare
from tests.doctor.patients import GIB, VERSION, cable, patient, wifi

EVERYTHING = {
    *("connection", "results", "power", "temperature", "governor", "memory", "disk", "clock"),
    *("network", "packets", "neighbours", "announcements", "engine", "version", "coordinators"),
}


def examined(*patients, **changes) -> Diagnosis:
    return diagnose(Examined(version=VERSION, patients=patients, listened=True, **changes))


def states(found: Diagnosis, device: str) -> dict[str, str]:
    return {each.what: each.state for each in found.checks if each.device == device}


def told(found: Diagnosis) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False, emoji=False, markup=False)
    show_diagnosis(found, console)
    return out.getvalue()


def test_a_sound_device_has_a_row_for_everything() -> None:
    found = examined(patient("a", round_trip_s=0.0012, celsius=51.0), patient("b"))
    assert states(found, "a") == dict.fromkeys(EVERYTHING, "ok")
    text = told(found)
    assert "answers in 1.2 ms" in text
    assert "51 °C" in text
    assert "537 MB of 1074 MB free" in text
    assert "eth0, 1000 Mbit/s" in text
    assert "reaches 1 of 1" in text
    assert text.rstrip().endswith("no problem found")


def test_a_row_is_as_bad_as_what_was_found() -> None:
    bad = {"power_flags": 0x5, "memory_available_bytes": 10_000_000, "governor": "ondemand"}
    found = examined(patient("a", **bad, version="1.0.0"), patient("b"))
    assert states(found, "b") == dict.fromkeys(EVERYTHING, "ok")
    wrong = {what: state for what, state in states(found, "a").items() if state != "ok"}
    assert wrong == {"power": "error", "memory": "error", "governor": "note", "version": "warning"}


async def test_devices_of_one_name_are_told_apart() -> None:
    ready = {
        DeviceId(each): SimpleNamespace(
            facts=SimpleNamespace(name="raspberrypi", id=each), address=f"{each}:1"
        )
        for each in ("a1", "b2")
    }
    pool = SimpleNamespace(ready=lambda: ready, peers=())
    settings = SimpleNamespace(mdns=False, cluster="home", interfaces=())

    async def low(connection, source, ready):
        flags = {"power_flags": 0x1} if connection.facts.id == "a1" else {}
        return patient("raspberrypi", id=connection.facts.id, **flags)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(examination, "_patient", low)
        found = diagnose(await examination.examine(pool, settings, lambda _: 0.0))
    power = {each.device: each.state for each in found.checks if each.what == "power"}
    assert power == {"raspberrypi (a1)": "error", "raspberrypi (b2)": "ok"}


def test_the_engine_that_computes_is_named_with_its_gain() -> None:
    faster = {"engine": "openvino", "engine_speedup": 1.86}
    text = told(examined(patient("a", **faster), patient("b")))
    assert "openvino, 1.9 times as fast as onnxruntime" in text
    both = (EngineShare("ncnn", 7, 1.62), EngineShare("openvino", 1, 1.1))
    text = told(examined(patient("a", engines=both)))
    assert "7 programs by ncnn, 1.6 times as fast as onnxruntime; 1 programs by openvino" in text
    refused = patient("a", refused_engines="openvino is refused: it has a bug")
    assert "onnxruntime, another one was refused" in told(examined(refused))
    limited = patient("a", engine="hailo", limits="whole networks only")
    assert "hailo, whole networks only" in told(examined(limited))


def test_findings_about_all_devices_are_in_their_rows() -> None:
    other = Other("pi-9")
    found = examined(
        patient("a", heard=False, coordinators=(other,), newer_members=7),
        patient("b", heard=False, unreached={"id-a": "no answer"}),
    )
    assert states(found, "a")["announcements"] == "warning"
    assert states(found, "a")["coordinators"] == "warning"
    assert states(found, "a")["members"] == "warning"
    assert states(found, "b")["neighbours"] == "error"


def test_unexamined_devices_are_in_the_check_list() -> None:
    gone = {"name": "pi-3", "seen": "40 s ago", "gflops": 1.94}
    absent = Absent("10.0.0.9:8470", "static", "", "no answer", "", **gone)
    found = examined(patient("a"), absent=(absent,), unexamined={"b": "it is too old"})
    assert states(found, "b") == {"connection": "error"}
    assert states(found, "pi-3") == {"connection": "error"}
    assert "last seen 40 s ago; computed at 1.9 GFLOP/s" in told(found)
    unseen = examined(patient("a"), absent=(Absent("10.0.0.8:8470", "static", "", "-", ""),))
    assert "no answer" in told(unseen)
    assert "last seen" not in told(unseen)
    unknown = patient("a", memory_bytes=0, disk_bytes=0, governor="", interfaces=[])
    text = told(examined(unknown))
    assert text.count("not reported") == 6
    assert states(examined(), "") == {}


def test_a_cause_of_many_devices_is_told_once_and_its_cure_last() -> None:
    tired = [
        replace(patient(name, governor="powersave", governor_driver="cpufreq-dt"))
        for name in ("a", "b", "c")
    ]
    text = told(examined(*tired, patient("d", disk_free_bytes=GIB // 100)))
    assert text.count("the governor `powersave` holds") == 1
    assert "warning  a, b, c: the governor" in text
    lines = text.rstrip().splitlines()
    assert lines[-1].startswith("cure: ")
    assert lines[-1].endswith("[governor]")


def test_causes_that_share_a_cure_are_together() -> None:
    full = [
        patient(name, disk_free_bytes=free) for name, free in (("a", 1_000_000), ("b", 2_000_000))
    ]
    lines = told(examined(*full)).rstrip().splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["error    a", "error    b", "cure"]


def test_an_access_point_that_isolates_is_one_finding() -> None:
    names = [f"pi-{number}" for number in range(1, 6)]
    isolated = [
        patient(
            name,
            address=f"192.168.1.{30 + k}:8470",
            interfaces=[wifi(address=f"192.168.1.{30 + k}")],
            unreached={f"id-{other}": "no answer" for other in names if other != name},
        )
        for k, name in enumerate(names)
    ]
    found = examined(*isolated)
    (one,) = [each for each in found.findings if each.code == "client_isolation"]
    assert "pi-1 and pi-2, pi-1 and pi-3" in one.cause
    assert "and 4 more pairs cannot reach each other over Wi-Fi" in one.cause
    assert {states(found, name)["neighbours"] for name in names} == {"error"}


def test_findings_that_others_made_are_among_them() -> None:
    known = Finding("quarantined", "error", "a", "it computed wrong results", "Run a memory test")
    slow = patient("a", interfaces=[cable(mbps=100)])
    found = diagnose(Examined(version=VERSION, patients=(slow,)), [known])
    assert states(found, "a")["results"] == "error"
    assert [each.code for each in found.findings] == ["quarantined", "slow_cable"]
