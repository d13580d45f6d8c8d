"""What somebody else's planner does wrong is told with its file and line."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.cluster_file import parse_cluster
from coordinator.planning.legal import IllegalPlan
from coordinator.planning.papers.ofl import ofl
from coordinator.planning.planners.propose import propose
from coordinator.planning.plugin_errors import BrokenPlanner
from coordinator.plans.named import strategy
from coordinator.tasks.plan import Plan
from imbrex.described import network_of
from models.cut.units import Network
from protos.errors import BadConfiguration, Infeasible
from tests.cli.run_cli import imbrex, refused

NETWORK = network_of("digits")
DEVICE = "[[device]]\nname = 'a'\ncount = 2\ngflops = 1.0\n"
CLUSTER = parse_cluster(f"[network]\nmbps = 100.0\n{DEVICE}")
TWO_AT_ONCE = parse_cluster(f"[network]\nmbps = 100.0\n{DEVICE}concurrency = 2\n")
HERE = Path(__file__)


def line_of(text: str) -> str:
    lines = HERE.read_text().splitlines()
    return f"{HERE}, line {1 + next(k for k, each in enumerate(lines) if each.startswith(text))}"


def raising(network: Network, cluster: Cluster) -> Plan:
    numbers = {}
    return numbers["cut"]  # the key is missing


def deeper(network: Network, cluster: Cluster) -> Plan:
    return replace(ofl(network, cluster), colour="red")  # type: ignore[call-arg]


def nothing(network: Network, cluster: Cluster) -> Plan:
    ofl(network, cluster)  # type: ignore[return]


def seconds(network: Network, cluster: Cluster) -> float:
    return 0.1


def half(network: Network, cluster: Cluster) -> Plan:
    plan = ofl(network, cluster)
    return replace(plan, blocks=plan.blocks[1:])


def hollow(network: Network, cluster: Cluster) -> Plan:
    return replace(ofl(network, cluster), blocks=(None,))  # type: ignore[arg-type]


def too_few(network: Network) -> Plan:
    raise AssertionError("never called")


def refusing(network: Network, cluster: Cluster) -> Plan:
    raise Infeasible(cause="these devices are too few", cure="Add one")


class Callable:
    def __call__(self, network: Network, cluster: Cluster) -> Plan:
        raise OSError("no such file")


@pytest.mark.parametrize("cluster", [CLUSTER, TWO_AT_ONCE])
@pytest.mark.parametrize(
    ("planner", "told", "line"),
    [
        (raising, "'raising' fails: KeyError: 'cut'", '    return numbers["cut"]'),
        (deeper, "unexpected keyword argument 'colour'", "    return replace(ofl"),
        (nothing, "'nothing' returns None instead of a Plan", "def nothing"),
        (seconds, "'seconds' returns an object of type float", "def seconds"),
        (too_few, "takes 1 positional argument", "def too_few"),
        (functools.partial(raising), "'raising' fails", '    return numbers["cut"]'),
        (Callable(), "'Callable' fails: OSError", '        raise OSError("no'),
    ],
)
def test_mistake_of_a_planner_is_named_with_its_line(
    planner, told: str, line: str, cluster: Cluster
) -> None:
    with pytest.raises(BrokenPlanner) as caught:
        propose(planner, NETWORK, cluster)
    assert told in caught.value.cause
    assert f"({line_of(line)})" in caught.value.cause


@pytest.mark.parametrize("planner", [half, hollow])
def test_a_plan_that_is_illegal_names_its_planner(planner) -> None:
    with pytest.raises((IllegalPlan, BrokenPlanner)) as caught:
        propose(planner, NETWORK, CLUSTER)
    assert line_of(f"def {planner.__name__}") in caught.value.cause
    assert "orrect" in caught.value.cure


def test_refusal_of_a_planner_is_passed_on() -> None:
    with pytest.raises(Infeasible, match="too few"):
        propose(refusing, NETWORK, CLUSTER)


def test_a_module_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text, line in (("wrong_name", "a = 1\nb = c\n", 2), ("unclosed", "a = 1\n(\n", 2)):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        with pytest.raises(BadConfiguration) as caught:
            strategy(f"{name}:plan")
        assert f"({file}, line {line})" in caught.value.cause


def test_mistake_of_a_planner_is_named_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(f"[network]\nmbps = 100.0\n{DEVICE}")
    name = "tests.planning.test_mistakes:nothing"
    found = refused("plan", "lenet5", "--cluster", file, "--strategy", name)
    assert line_of("def nothing") in found.err
    compared = imbrex("simulate", "lenet5", "--cluster", file, "--strategy", f"{name},lw")
    assert compared.code == 0
    assert line_of("def nothing") in compared.out
