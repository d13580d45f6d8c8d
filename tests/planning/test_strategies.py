"""Strategies by name, by package and by path."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest

from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.plans import named as planners
from coordinator.plans.named import names, strategy
from protos.errors import BadRequest, NotFound
from tests.planning.support import CLUSTERS, small


def test_built_in_strategies_are_callable() -> None:
    assert {"single", "lw", "aofl", "fused", "auto"} <= set(names())
    for name in STRATEGIES:
        assert callable(strategy(name))


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(NotFound, match="'aofll'") as caught:
        strategy("aofll")
    assert "'aofl'" in caught.value.cure


def test_a_function_by_its_path() -> None:
    planner = strategy("coordinator.planning.planners.single:single")
    assert planner(small(), CLUSTERS["one"]).strategy == "single"


@pytest.mark.parametrize(
    "path",
    [
        *("nowhere.to_be_found:plan", "coordinator.planning.planners.single:none"),
        *("a:", ":plan", "x y:z", ":"),
    ],
)
def test_paths_that_lead_nowhere(path: str) -> None:
    with pytest.raises(NotFound, match="can't be loaded"):
        strategy(path)


def test_strategy_that_is_no_function_is_refused() -> None:
    with pytest.raises(BadRequest, match="not a function"):
        strategy("coordinator.plans.named:ENTRY_POINTS")


def test_strategies_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_planner")
    module.plan = strategy("single")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_planner", module)
    found = EntryPoints(
        EntryPoint(name, value, planners.ENTRY_POINTS)
        for name, value in (
            ("theirs", "their_planner:plan"),
            ("broken", "their_planner:none"),
            ("aofl", "their_planner:plan"),
        )
    )
    monkeypatch.setattr(planners, "entry_points", found.select)
    assert strategy("theirs") is module.plan
    assert "theirs" in names()
    assert strategy("aofl") is STRATEGIES["aofl"], "our names can't be taken"
    with pytest.raises(NotFound, match="broken"):
        strategy("broken")
