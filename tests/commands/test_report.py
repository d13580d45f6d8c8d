"""`imbrex bench --report`: a live cluster's report, what it keeps to itself, and what reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.answers import PlanChoice
from imbrex.described import load_cluster
from imbrex.kinds.presets import Preset, load_kind
from protos.errors import BadRequest
from tests.cli.run_cli import imbrex, refused
from tests.commands.conftest import Live, started

NOWHERE = "http://127.0.0.1:9"
MACHINE = {"cpu", "machine", "cores", "mhz_max", "pace", "threads", "concurrency", "runtime"}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Path, str]]:
    """Two workers that nobody has measured, their report, and what was said meanwhile."""
    folder = tmp_path_factory.mktemp("reported")
    with started(folder, 2, profile_s=2) as live:
        target = folder / "report.json"
        ran = live.ask("bench", live.file, "--report", target, "--repeat", 3, "--devices", "1..2")
        assert ran.code == 0, ran.err
        assert str(target) in ran.out
        yield live, target, ran.out


def test_a_report_has_speeds_costs_and_speed_ups(reported: tuple[Live, Path, str]) -> None:
    live, target, said = reported
    assert "\nhalo" in said
    found = json.loads(target.read_text())
    (kind,) = found["kinds"]
    assert kind["devices"] == 2
    assert kind.keys() >= MACHINE
    numbers = kind["preset"]
    required = {name for name, each in Preset.model_fields.items() if each.is_required()}
    assert required <= numbers.keys() <= Preset.model_fields.keys()
    assert all(each["how"] for each in numbers.values())
    assert numbers["gflops"]["value"] == pytest.approx(
        sum(each.gflops for each in live.client.devices()) / 2, rel=0.3
    )
    (speedups,) = found["speedups"]
    cases = [(each["strategy"], each["devices"]) for each in speedups["results"]]
    assert cases == [("halo", 1), ("auto", 1), ("halo", 2), ("auto", 2)]
    assert len(speedups["one_device_s"]) == 3
    for each in speedups["results"]:
        assert len(each["samples_s"]) == 3
        assert each["speedup"] == pytest.approx(
            sorted(speedups["one_device_s"])[1] / each["latency_s"], abs=1e-3
        )
    halo = speedups["results"][2]["bytes"]["halo"]
    assert numbers["peer_message_ms"]["how"].startswith("the requests" if halo else "not measured")
    assert {"system", "kernel", "versions", "coordinator"} <= found["made"].keys()


def test_a_report_tells_nobody_whose_it_is(reported: tuple[Live, Path, str]) -> None:
    live, target, _ = reported
    text = target.read_text()
    for each in live.client.devices():
        private = (each.id, each.name, each.address, each.facts["boot_id"], each.fingerprint)
        assert not [word for word in private if str(word) in text]
    assert live.client.url not in text
    assert str(target.parent) not in text


def test_a_report_is_a_cluster_and_a_preset(reported: tuple[Live, Path, str]) -> None:
    live, target, _ = reported
    cluster = load_cluster(target)
    assert [each.name for each in cluster.devices] == ["device-1", "device-2"]
    asked = ("--cluster", target, "--strategy", "single", "--json")
    simulated = imbrex("simulate", live.file, *asked).json()["strategies"]["single"]
    live_plan = live.client.plan("tiny", PlanChoice("single"))
    assert 1 / 3 < simulated["latency_s"] / live_plan.predicted_latency_s < 3
    (used,) = imbrex("plan", live.file, *asked).json()["devices_used"]
    assert used in {"device-1", "device-2"}
    preset = load_kind(str(target))
    numbers = json.loads(target.read_text())["kinds"][0]["preset"]
    told = {name: each["value"] for name, each in numbers.items()}
    assert preset.model_dump(include=told.keys()) == told
    assert not preset.tls


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"cluster": 3}', '{"cluster": {"file": "x"}}', "\x00"),
        '{"cluster": {"file": "[network]", "profiles": {}}}',
        '{"cluster": {"file": "[network]\\nmbps = 1\\n[[device]]\\nname = \'a\'\\n'
        'profile = \'/etc/passwd\'", "profiles": {}}, "kinds": []}',
    ],
)
def test_malformed_report_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    ran = refused("simulate", "lenet5", "--cluster", file)
    assert str(file) in ran.err
    assert "cure: " in ran.err
    with pytest.raises(BadRequest, match=r"report\.json"):
        load_kind(str(file))


def test_unwritable_report_is_refused_before_anything_is_measured(
    live: Live, tmp_path: Path
) -> None:
    missing = tmp_path / "missing" / "report.json"
    assert str(missing) in live.refuses("bench", live.file, "--report", missing)
    assert "directory" in live.refuses("bench", live.file, "--report", tmp_path)
    target = tmp_path / "report.json"
    assert "no model" in live.refuses("bench", "vgg61", "--report", target)
    assert "--url" in refused("bench", "--report", target, "--url", NOWHERE).err
    assert live.ask("bench", live.file, "--report", target, "--json").code == 2
    assert live.ask("bench").code == 2
    assert not target.exists()
    assert live.client.profile("worker-1").state == "unmeasured"


def test_a_cluster_without_another_device_has_no_link_to_measure(tmp_path: Path) -> None:
    with started(tmp_path, 0) as live:
        said = live.refuses("bench", live.file, "--report", tmp_path / "report.json")
    assert "beside the coordinator's own" in said
