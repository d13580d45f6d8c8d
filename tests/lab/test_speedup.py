"""What the benchmark makes of its measurements; and one whole run of it, marked slow."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from contextlib import nullcontext

import pytest

from benchmarks import speedup
from benchmarks.lab import tables
from benchmarks.lab.bars import Bar, bars_svg
from benchmarks.lab.bench import Setting
from benchmarks.lab.where import where
from coordinator.requests.trace import Lived, chrome_trace
from coordinator.tasks.timeline import Passed, Sketch, TaskTimes

RESULT = {
    "speedup": 2.0,
    "predicted_latency_s": 0.4,
    "max_rel_error": 0.0,
    "bytes_error": 0.0,
}


def document(**changes):
    result = {**RESULT, **changes}
    baseline = {"latency_s": 1.0, "samples_s": [1.0, 1.2]}
    model = {"baseline": baseline, "strategies": {"halo": result}}
    return {
        "preset": "p",
        "medium": "star",
        "devices": 2,
        "clocks": [1.0, 1.0],
        "faults": [],
        "models": {"m": model},
    }


def test_the_parts_of_a_request_are_its_latency():
    tasks = [
        TaskTimes(0, 0, "a", 11.0, 11.0, 13.0),
        TaskTimes(1, 0, "b", 11.5, 11.5, 13.0),
        TaskTimes(2, 0, "a", 14.0, 14.0, 15.0),
        TaskTimes(3, 0, "b", 14.0, 14.0, 17.0),
    ]
    lived = Lived("r", "m", 9.0, 10.0, 18.0, tasks, Sketch((0, 0, 1, 1), (Passed(0, 3, 4),)), {})
    plan = {"redundant_flop": 10, "total_flop": 100}
    found = where(chrome_trace(lived), plan, baseline_s=6.0)
    assert found.ideal == 3.0
    assert found.redundant == pytest.approx(0.3)
    assert found.slower_kernels == pytest.approx((3 + 4.5) / 2 - 3.3)
    assert found.first_input == pytest.approx(1.25)
    assert found.between_tasks == pytest.approx(1.0)
    assert found.after_last_task == pytest.approx(2.0)
    assert sum(found.json().values()) == pytest.approx(8.0)


def test_tasks_that_overlap_are_still_of_one_device():
    tasks = [TaskTimes(0, 0, "a", 11.0, 11.0, 13.0), TaskTimes(1, 0, "a", 12.5, 12.5, 14.0)]
    lived = Lived("r", "m", 10.0, 10.0, 15.0, tasks, Sketch((0, 0), ()), {})
    plan = {"redundant_flop": 0, "total_flop": 100}
    assert where(chrome_trace(lived), plan, baseline_s=3.0).ideal == 3.0


def test_a_good_result_has_no_fault():
    assert speedup.faults(document()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"max_rel_error": 1e-4}, "differs"), ({"bytes_error": -0.03}, "bytes")],
)
def test_a_result_that_does_not_count_says_why(changes, named):
    (fault,) = speedup.faults(document(**changes))
    assert named in fault
    assert "halo" in fault


def test_auto_may_not_be_slower_than_one_device():
    found = document()
    found["models"]["m"]["strategies"] = {
        name: {**RESULT, "speedup": 0.9} for name in ("lw", "auto")
    }
    (fault,) = speedup.faults(found)
    assert fault == "m, auto: 0.9 times one device"


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("crowd", {"ratio": 0.96}, "crowd: 0.96 times one device"),
        ("crowd", {"max_rel_error": 1e-4}, "crowd: differs"),
        ("unplug", {"max_rel_error": 1e-4}, "unplug: differs"),
        ("unplug", {"lost": 1}, "1 requests were lost"),
        ("unplug", {"ratio": 2.6}, "2.6 times the undisturbed"),
    ],
)
def test_loads_that_do_not_count_say_why(name, changes, named):
    good = {"ratio": 1.0, "max_rel_error": 0.0, "lost": 0}
    assert speedup.faults({**document(), name: {"m": good}}) == []
    (fault,) = speedup.faults({**document(), name: {"m": good | changes}})
    assert fault.startswith("m")
    assert named in fault


def test_a_lab_that_was_off_is_a_fault():
    assert speedup.faults({**document(), "faults": ["Mbps is 80"]}) == ["p: Mbps is 80"]


def test_strategy_without_a_plan_is_no_fault():
    found = document()
    found["models"]["m"]["strategies"]["halo"] = {"reason": "no memory"}
    assert speedup.faults(found) == []


def test_resuming_keeps_what_is_there(tmp_path, monkeypatch):
    wish = speedup.Wish(("m",), ("halo",), 5, tmp_path, resume=True)
    (tmp_path / "speedup-pi3-1ghz-star-2.json").write_text(json.dumps(document()))
    monkeypatch.setattr(speedup, "bench", None)  # nothing must be started
    assert speedup.run(Setting("pi3-1ghz", 2), wish) == document()


def test_faults_stay_in_a_resumed_run(tmp_path, monkeypatch):
    class Calm:
        lab = None

        def about(self):
            return document()

        def lines(self):
            return []

    wish = speedup.Wish(("m", "n"), ("halo",), 5, tmp_path, resume=True)
    before = {**document(), "faults": ["Mbps is 80"]}
    (tmp_path / "speedup-pi3-1ghz-star-2.json").write_text(json.dumps(before))
    monkeypatch.setattr(speedup, "bench", lambda *_: nullcontext(Calm()))
    monkeypatch.setattr(speedup, "_measured", lambda *_: document()["models"]["m"])
    assert speedup.run(Setting("pi3-1ghz", 2), wish)["faults"] == ["Mbps is 80"]


def test_the_picture_is_well_formed_and_has_every_bar():
    groups = {"a<b": {"halo": Bar(6.5, 7.0), "aofl": Bar(4.0, 4.2)}, "c": {"halo": Bar(5.0, 5.5)}}
    root = ET.fromstring(bars_svg("title & more", 8, groups))
    titles = [each for each in root.iter() if each.tag.endswith("text")]
    assert {"6.5", "4.0", "5.0", "a<b", "title & more"} <= {each.text for each in titles}


def test_a_run_is_shown_with_what_disturbed_it():
    found = document(
        latency_s=0.5,
        prediction_error=0.04,
        bytes={"scatter": 10**6, "gather": 0, "halo": 500_000},
        coordinator_cpu_ms=12.0,
        machine_busy_share=0.25,
        packets_dropped=[0, 3],
        where_s=dict.fromkeys(tables.PARTS, 0.1),
        samples_s=[0.5, 0.4],
    )
    found |= {"scale": 2.0, "machine_busy_before": 0.9}
    found["models"]["m"]["repeat"] = 5
    made = tables.document(found)
    assert "| `halo` | 0.500 | **2.00** | 2.50 | +4% | 1.5 | 12 ms |" in made
    assert "under load" in made
    assert "25% of the time" in made
    assert "3 packets" in made


def test_the_summary_is_in_the_devices_own_time(monkeypatch):
    monkeypatch.setattr(tables, "_CLUSTERS", (("p", "star"),))
    monkeypatch.setattr(tables, "_NETWORKS", {"m": "auto"})
    parts = dict.fromkeys(tables.PARTS, 0.1)
    found = document(latency_s=0.5, where_s=parts | {"ideal": 0.5}) | {"scale": 0.5}
    strategies = found["models"]["m"]["strategies"]
    strategies["auto"] = strategies.pop("halo")
    row = "| 2 x p | `m` | 500 ms |  | 250 ms | 2.00 | 50% | 20% | 30% |"
    assert [*tables.summary([found])][2:] == [row]
    assert [*tables.summary([found | {"clocks": [1.0, 2.0]}])][2:] == []


@pytest.mark.parametrize(("wanted", "rate"), [(0.925, ""), (0.5, "1 GFLOP/s")])
def test_a_run_with_an_older_preset_says_its_rate(wanted, rate):
    emulated = {tables.RATES: {"wanted": wanted}}
    found = document() | {"preset": "pi3-1ghz", "scale": 0.5, "emulated": emulated}
    assert tables.older(found) == rate


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--preset", "pi9"], "pi3-1ghz"),
        (["--strategies", "magic"], "magic"),
        (["--devices", "0"], "from 1"),
        (["--repeat", "2"], "from 5"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(flags, named):
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.speedup", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert named in ran.stderr or "root" in ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="only root may make namespaces"
)
def test_a_whole_run(tmp_path):
    """The lab may be off while tests run beside it; answers and bytes may not."""
    flags = ["--devices", "2", "--models", "digits", "--strategies", "aofl,halo,halo+fp16"]
    flags += ["--crowd", "digits", "-o", tmp_path]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.speedup", *map(str, flags)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads((tmp_path / "speedup-pi3-1ghz-star-2.json").read_text())
    assert ran.returncode == (1 if found["faults"] else 0), ran.stderr
    for name, result in found["models"]["digits"]["strategies"].items():
        assert result["max_rel_error"] <= (0.01 if name == "halo+fp16" else 1e-5)
        assert len(result["samples_s"]) == 5
        assert result["bytes"] == result["planned_bytes"]
        assert sum(result["where_s"].values()) == pytest.approx(result["latency_s"], rel=0.2)
    assert (tmp_path / "speedup-pi3-1ghz-star-2.svg").exists()
    assert found["crowd"]["digits"]["ratio"] > 1
    assert found["crowd"]["digits"]["max_rel_error"] <= 1e-5
