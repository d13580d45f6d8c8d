"""`imbrex plan`: explained, saved, and executed exactly as saved."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coordinator.costs.cluster import fastest
from coordinator.planning.cluster_file import parse_cluster
from coordinator.planning.planners.propose import propose
from coordinator.plans.named import strategy
from imbrex.cli.plan import Situation, sentences
from imbrex.described import network_of
from imbrex.terminal import duration
from models.onnx_file.builder import NetworkBuilder, square
from protos.errors import BadRequest
from tests.cli.run_cli import imbrex, refused
from tests.commands.conftest import Live
from tests.models.model_files import saved

CLUSTER = """
[host]
computes = false
[network]
mbps = 93.7
message_ms = 1.0
[[device]]
name = "worker-1"
count = 2
gflops = 1.85
[[device]]
name = "slow"
gflops = 0.5
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    file = tmp_path / "three.toml"
    file.write_text(CLUSTER)
    return file


def test_a_device_has_one_line_of_a_block(cluster: Path) -> None:
    pis = Path(__file__).parents[2] / "docs" / "clusters" / "four-pi4.toml"
    ask = ("plan", "digits", "--cluster", pis, "--strategy", "halo")
    short, long = (imbrex(*ask, *more).out.splitlines() for more in ((), ("--verbose",)))
    blocks = json.loads(imbrex(*ask, "--json").out)["blocks"]
    tiles = [len(block["tiles"]) for block in blocks]
    devices = [len({tile["device"] for tile in block["tiles"]}) for block in blocks]
    assert sum(tiles) > sum(devices)
    assert len(long) == 2 + sum(tiles)
    assert len(short) == 2 + sum(devices)
    assert any("in 2 tasks" in line for line in short)


def test_a_plan_for_a_described_cluster_uses_what_the_model_allows(tmp_path: Path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text("[network]\nmbps = 5\n[[device]]\nname = 'pi'\ncount = 2\ngflops = 0.01\n")
    net = NetworkBuilder("deep", seed=1)
    x = net.input("x", (1, 3, 32, 32))
    for number in range(3):
        x = x.conv(f"conv{number}", 16, square(3)).relu()
    home = {"IMBREX_MODELS": str(tmp_path / "models")}
    told = ("--name", "deep", "--task", "tensor", "--precision", "fp16")
    added = imbrex("models", "add", saved(tmp_path, net.model(x)), *told, env=home)
    assert added.code == 0, added.err
    ask = ("plan", "deep", "--cluster", file, "--strategy", "lw", "--devices", 2, "--json")
    wires = [
        imbrex(*ask, *more, env=home).json()["wire"]
        for more in ((), ("--wire", "fp16"), ("--wire", "exact"))
    ]
    assert wires == ["fp16", "fp16", "exact"]


def test_a_plan_has_one_predicted_time() -> None:
    pis = Path(__file__).parents[2] / "docs" / "clusters" / "four-pi4.toml"
    explained = imbrex("plan", "digits", "--cluster", pis, "--explain").out
    told = re.search(r"predicted ([\d.]+ ms)", explained)
    assert told is not None
    assert f"it takes {told[1]};" in explained
    simulated = imbrex("simulate", "digits", "--cluster", pis, "--strategy", "auto").out
    assert f" {told[1].removesuffix(' ms')} " in simulated
    notes = [line for line in explained.splitlines() if line.startswith("Note: ")]
    assert notes
    assert not any(re.search(r"\d m?s\b", note) for note in notes)


def test_alternatives_are_told_in_the_seconds_of_the_plan() -> None:
    network, cluster = network_of("digits"), parse_cluster(CLUSTER)
    planner = strategy("aofl")
    plan = propose(planner, network, cluster)
    usual, doubled = (
        next(sentences(Situation(network, cluster, plan, planner, scale), lambda what: None))
        for scale in (1.0, 2.0)
    )
    assert f"it takes {duration(2 * plan.predicted_latency_s)};" in doubled
    assert re.findall(r"[+-]\d+%", usual) == re.findall(r"[+-]\d+%", doubled)


def test_a_strategy_that_beats_the_plan_is_named() -> None:
    network, cluster = network_of("digits"), parse_cluster(CLUSTER)
    slow, fast = (propose(strategy(each), network, cluster) for each in ("lw", "fused"))
    assert fast.predicted_latency_s < slow.predicted_latency_s
    told = list(sentences(Situation(network, cluster, slow, strategy("lw")), lambda what: None))
    (named,) = (each for each in told if "would be faster here" in each)
    assert named.endswith(f"plan with --strategy {named.split()[0]}.")
    best = propose(strategy("auto"), network, cluster)
    told = list(sentences(Situation(network, cluster, best, strategy("auto")), lambda what: None))
    assert not any("would be faster here" in each for each in told)


def test_sentences_with_what_everything_else_would_cost() -> None:
    network, cluster = network_of("digits"), parse_cluster(CLUSTER)
    planner = strategy("aofl")
    plan = propose(planner, network, cluster)
    steps: list[str] = []
    found = list(sentences(Situation(network, cluster, plan, planner), steps.append))
    text = "\n".join(found)
    used = len(plan.devices)
    assert f"Why {used} of 3 devices" in text
    assert "1 device would take" in text
    if "slow" in plan.devices:
        assert "without slow, the slowest, it would take" in text
    for name in ("lw", "efl", "ofl", "elimination", "kcut", "single"):
        assert name in steps
        assert f"{name} " in text
    assert "aofl" not in steps
    assert "times as fast would make it" in text
    assert "16-bit floats on the wire" in text
    alone = propose(planner, network, fastest(cluster, 1)).predicted_latency_s
    assert f"{alone * 1000:.0f} ms" in text


def test_the_fastest_devices() -> None:
    cluster = parse_cluster(CLUSTER)
    assert [each.name for each in fastest(cluster, 2).devices] == ["worker-1", "worker-2"]
    assert fastest(cluster, 0) == cluster
    for count in (-1, 4):
        with pytest.raises(BadRequest, match="there are 3"):
            fastest(cluster, count)


def test_a_described_cluster_explained(cluster: Path) -> None:
    asked = ("plan", "lenet5", "--cluster", cluster, "--strategy", "single")
    ran = imbrex(*asked, "--explain")
    assert ran.code == 0, ran.err
    for wanted in ("Why ", "Other strategies would take", "slow left out: "):
        assert wanted in ran.out
    told = imbrex(*asked, "--explain", "--json").json()["explanation"]
    assert any(sentence.startswith("Other strategies would take: ") for sentence in told)
    assert "explanation" not in imbrex(*asked, "--json").json()
    fewer = ("plan", "lenet5", "--cluster", cluster, "--devices", 1)
    assert imbrex(*fewer, "--json").json()["devices_used"] == ["worker-1"]
    assert (
        "slow left out: a plan for the fastest 1 was requested" in imbrex(*fewer, "--explain").out
    )
    assert "there are 3" in refused("plan", "lenet5", "--cluster", cluster, "--devices", 4).err


def test_a_plan_of_a_coordinator_is_saved_by_names_and_executed(live: Live, tmp_path: Path) -> None:
    kept, drawn = tmp_path / "plan.json", tmp_path / "plan.svg"
    ask = ("plan", live.file, "--strategy", "lw", "--save")
    ran = live.ask(*ask, kept, "--explain")
    assert ran.code == 0, ran.err
    assert "Why " in ran.out
    assert "Other strategies would take" in ran.out
    saved = json.loads(kept.read_text())
    assert saved["strategy"] == "lw"
    assert set(saved["devices_used"]) == {"worker-1", "worker-2"}
    assert live.ask(*ask, drawn).code == 0
    assert "worker-2" in drawn.read_text()
    infer = ("infer", live.tensors, "--model", "tiny", "--plan")
    answer = live.ask(*infer, kept, "--json").json()
    assert len(answer["devices"]) == 2
    assert answer["bytes"] == saved["bytes"]
    saved["blocks"][0]["tiles"][0]["device"] = "worker-9"
    kept.write_text(json.dumps(saved))
    assert "worker-9" in live.refuses(*infer, kept)
    assert "aolf" in live.refuses("plan", live.file, "--strategy", "aolf")


@pytest.mark.needs_room("imbrex/demo")
def test_a_demo_executes_exactly_a_plan(live: Live, cluster: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        imbrex(
            "plan", live.file, "--cluster", cluster, "--strategy", "lw", "--devices", 2, "--json"
        ).out
    )
    demo = (
        "demo",
        "--model",
        live.file,
        "--workers",
        2,
        "--native",
        "--no-profile",
        "--plan",
        plan,
    )
    found = imbrex(*demo, "--json", timeout_s=120).json()
    assert found["strategy"] == "lw"
    assert found["max_rel_error"] <= 1e-5
    assert found["bytes"] == found["planned_bytes"] == json.loads(plan.read_text())["bytes"]


@pytest.mark.needs_room("imbrex/demo")
def test_a_demo_refuses_a_plan_before_anything_starts(
    live: Live, cluster: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    demo = ("demo", "--model", live.file, "--plan", plan)
    assert "no file" in refused(*demo).err
    plan.write_text("nonsense")
    assert "not a plan" in refused(*demo).err
    plan.write_text(
        imbrex("plan", live.file, "--cluster", cluster, "--strategy", "lw", "--json").out
    )
    ran = refused(*demo, "--workers", 1)
    assert "worker-1" in ran.err
    assert "starting" not in ran.err
    assert imbrex(*demo, "--strategy", "lw").code == 2
