"""docs/planners.md: its example is short, legal everywhere, and runs on real workers."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.cluster_file import parse_cluster
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.legal import IllegalPlan
from coordinator.planning.planners.propose import propose
from imbrex.described import find_planners_here, network_of
from models.catalogue import catalogue
from protos.errors import Infeasible
from tests.cli.run_cli import Ran, imbrex_process, refused
from tests.commands.conftest import Live

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "strips.py"
CLUSTER = """
[network]
mbps = 93.7
[[device]]
name = "a"
count = 3
gflops = 1.85
[[device]]
name = "b"
gflops = 0.2
"""


def imbrex(*arguments: object) -> Ran:
    return imbrex_process(*arguments, env={"PYTHONPATH": str(EXAMPLE.parent)}, timeout_s=120)


@pytest.fixture(scope="module")
def planner():
    spec = importlib.util.spec_from_file_location("strips", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.plan


def test_example_planner_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40


@pytest.mark.parametrize("model", ["digits", "lenet5", "alexnet", "resnet50"])
def test_plans_of_the_example_are_legal(planner, model: str) -> None:
    network, cluster = network_of(model), parse_cluster(CLUSTER)
    plan = propose(planner, network, cluster)
    assert plan.strategy == "strips"
    assert plan.total_flop > 0
    assert plan.traffic.scatter > 0


def test_example_planner_runs_on_a_real_cluster(live: Live) -> None:
    demo = ("demo", "--model", live.file, "--workers", 2, "--no-profile", "--native", "--json")
    ran = imbrex(*demo, "--strategy", "strips:plan")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["strategy"] == "strips"
    assert found["max_rel_error"] <= 1e-5
    assert found["bytes"] == found["planned_bytes"]
    assert found["bytes"]["scatter"] > 0


def test_example_planner_is_simulated_beside_others(tmp_path: Path) -> None:
    file = tmp_path / "four.toml"
    file.write_text(CLUSTER)
    arguments = ("simulate", "digits", "--cluster", file, "--json")
    found = imbrex(*arguments, "--strategy", "strips:plan,single").json()["strategies"]
    assert found["strips:plan"]["latency_s"] > 0
    missing = refused(*arguments[:-1], "--strategy", "strips_of_nobody:plan")
    assert "strips_of_nobody" in missing.err


def test_modules_of_the_users_folder_are_found_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    find_planners_here()
    find_planners_here()
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[-1] == str(tmp_path)


def test_page_on_planners_refers_to_existing_files_and_models() -> None:
    text = (DOCS / "planners.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (DOCS / link).exists(), link
    for model in re.findall(r"imbrex (?:simulate|plan|bench) ([a-z]\w+)", text):
        assert model in catalogue.names()
    assert "coordinator/planning/finish.py" in text


def test_blocks_that_are_no_plan(planner) -> None:
    network, cluster = network_of("lenet5"), parse_cluster(CLUSTER)
    blocks = planner(network, cluster).blocks
    with pytest.raises(IllegalPlan, match="ends at unit"):
        plan_of_blocks("half", blocks[:-1], network, cluster)
    with pytest.raises(Infeasible, match="no device"):
        plan_of_blocks("nowhere", blocks, network, Cluster(()))
