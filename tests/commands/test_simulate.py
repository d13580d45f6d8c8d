"""`imbrex simulate`: every strategy side by side, and what it says of bad input."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from coordinator.plans.named import names
from imbrex.cli import ranges
from imbrex.cli.chart import speedup_svg
from tests.cli.run_cli import imbrex, refused

CLUSTER = """
[host]
computes = false
[network]
mbps = 93.7
message_ms = 1.0
[[device]]
name = "pi-1"
count = 3
gflops = 1.85
memory_mb = 700
"""
KEYS = {"latency_s", "speedup", "bytes", "search_s", "devices"}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    file = tmp_path / "three.toml"
    file.write_text(CLUSTER)
    return file


def test_strategies_are_simulated_side_by_side(cluster: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "speedup.svg"
    ran = imbrex("simulate", "lenet5", "--cluster", cluster, "--json", "--plot", drawn)
    assert ran.code == 0, ran.err
    found = ran.json()
    assert set(found) == {"model", "strategies"}
    assert set(found["strategies"]) == set(names())
    for each in found["strategies"].values():
        assert set(each) == KEYS
        assert set(each["bytes"]) == {"scatter", "gather", "halo"}
        assert set(each["devices"]) <= {"pi-1", "pi-2", "pi-3"}
    auto, alone = (found["strategies"][name]["latency_s"] for name in ("auto", "single"))
    assert auto <= alone
    root = ET.parse(drawn).getroot()
    assert "lenet5" in "".join(root.itertext())


def test_numbers_of_devices_for_people(cluster: Path) -> None:
    arguments = ("digits", "--cluster", cluster, "--strategy", "aofl,single", "--devices", "1..3")
    found = imbrex("simulate", *arguments, "--json").json()
    lines = found["by_devices"]
    assert [each["count"] for each in lines["aofl"]] == [1, 2, 3]
    faster = [each["latency_s"] for each in lines["aofl"]]
    assert faster == sorted(faster, reverse=True)
    assert lines["aofl"][-1]["latency_s"] == found["strategies"]["aofl"]["latency_s"]
    people = imbrex("simulate", *arguments).out
    assert people.count("\naofl") == 3
    assert "█" in people


def test_an_infeasible_strategy_says_why(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(CLUSTER.replace("700", "100"))
    ran = imbrex("simulate", "alexnet", "--cluster", file, "--strategy", "single,aofl", "--json")
    assert ran.code == 1
    single = ran.json()["strategies"]["single"]
    assert single["latency_s"] is None
    assert "memory" in single["reason"] or "MB" in single["reason"]
    assert (
        single["reason"]
        in imbrex("simulate", "alexnet", "--cluster", file, "--strategy", "single").out
    )


def test_failing_planner_of_somebody_else_is_named_beside_others(cluster: Path) -> None:
    broken = "tests.serving.test_choice:broken"
    ran = imbrex("simulate", "lenet5", "--cluster", cluster, "--strategy", f"{broken},lw", "--json")
    assert ran.code == 0
    assert "a fault in it" in ran.json()["strategies"][broken]["reason"]


def test_simulate_refuses_missing_clusters_models_and_devices(
    cluster: Path, tmp_path: Path
) -> None:
    without = imbrex("simulate", "lenet5")
    assert without.code == 2
    assert "imbrex status --save" in without.err
    here = ("simulate", "lenet5", "--cluster")
    assert "none.toml" in refused(*here, tmp_path / "none.toml").err
    assert "aofl" in refused(*here, cluster, "--strategy", "aolf").err
    assert "there are 3" in refused(*here, cluster, "--devices", "4").err
    assert "lenet5" in refused("simulate", "lenet", "--cluster", cluster).err
    nowhere = tmp_path / "missing" / "a.svg"
    ran = imbrex(*here, cluster, "--strategy", "single", "--plot", nowhere)
    assert (ran.code, str(nowhere) in ran.err) == (1, True)


@pytest.mark.parametrize("text", ["", "0", "3..1", "1..", "a", "1..2..3", "-1", "1,,2", "1..99999"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        ranges.counts(text)


def test_lists_and_ranges_of_options_are_read() -> None:
    assert ranges.counts("4,1..2, 2") == [1, 2, 4]
    assert ranges.listed("lw, aofl,lw") == ["lw", "aofl"]
    with pytest.raises(ValueError, match="empty"):
        ranges.listed("lw,")


def test_a_chart_of_names_that_need_care() -> None:
    many = {f"<{index}>": [(1, 1.0), (2, index / 4)] for index in range(12)}
    assert "&lt;11&gt;" in speedup_svg('a "title" & more', many)
    ET.fromstring(speedup_svg('a "title" & more', many))
    ET.fromstring(speedup_svg("nothing", {}))
