"""The benchmarks of faults, shortly: they run, and what must never happen doesn't."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.soak.steady import growth


def result_of(module: str, *arguments: str) -> dict:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout, done.stderr[-4000:]
    return json.loads(done.stdout) | {"exit": done.returncode}


@pytest.mark.slow
@pytest.mark.parametrize("place", [[], ["--lab"], ["--lab", "--engines"]])
def test_a_minute_of_chaos_costs_no_request(place: list[str]) -> None:
    if "--engines" in place:
        pytest.importorskip("ncnn", reason="needs the extra ncnn")
    if place and os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    result = result_of("chaos", "--minutes", "1", "--seed", "7", *place)
    assert "--engines" not in place or result["engines"] == {"onnxruntime": 3, "ncnn": 3}
    assert result["requests"] > 40
    assert result["faults"] > 5
    assert (result["lost"], result["wrong"]) == (0, 0), result["losses"]
    assert result["exit"] == 0


@pytest.mark.slow
def test_devices_that_lie_are_found() -> None:
    result = result_of("chaos", "--liars", "4")
    assert [each["kind"] for each in result["tries"]] == ["noise", "zeroed"] * 2
    assert all(each["found"] for each in result["doctor"])
    assert 0 < result["worst_tasks"] <= 400
    assert result["exit"] == 0, result


@pytest.mark.slow
def test_killed_and_slowed() -> None:
    result = result_of("faults", "--kills", "2", "--times", "1", "--strategies", "auto")
    (killed,), (slowed,) = result["killed"], result["slowed"]
    assert len(killed["samples"]["harmed_s"]) == 2
    assert killed["ratio"] > 0
    assert slowed["after_s"] < slowed["stuck_s"]


@pytest.mark.slow
def test_a_short_soak() -> None:
    result = result_of("soak", "--minutes", "0.5", "--pace", "0.1")
    assert set(result["processes"]) == {*(f"worker-{i}" for i in range(4)), "coordinator"}
    assert (result["errors"], result["wrong"]) == (0, 0)
    assert result["answers"] > 10
    assert result["models"] == ["digits", "resnet50"]


@pytest.mark.slow
def test_plans_that_change_leave_nothing_behind() -> None:
    result = result_of("soak", "--model", "vgg16-conv", "--replan", "--pace", "0.5")
    assert len(result["samples"]) == 21
    assert sorted(set(result["plan_versions"])) == result["plan_versions"]
    assert result["exit"] == 0, result


def test_growth_leaves_out_the_warming_up() -> None:
    steady = [(float(at), 50 if at < 10 else 100) for at in range(101)]
    assert growth(steady) == 0.0
    leaking = [(at, round(size * (1 + at / 1000))) for at, size in steady]
    assert growth(leaking) == pytest.approx(0.08, abs=0.02)
