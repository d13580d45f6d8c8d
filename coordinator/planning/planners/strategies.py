"""The built-in strategies by name: the planners of `candidates`, and those that build on them."""

from collections.abc import Mapping

from coordinator.costs.cluster import Planner
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.branches import branches
from coordinator.planning.planners.candidates import CANDIDATES

STRATEGIES: Mapping[str, Planner] = {
    **{name: candidate.planner for name, candidate in CANDIDATES.items()},
    "branches": branches,
    "auto": auto,
}
