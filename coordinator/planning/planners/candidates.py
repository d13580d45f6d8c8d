"""The table of all planners that decide who computes what: one row for each. Those that are named
in it are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coordinator.costs.cluster import Planner
from coordinator.planning.planners.aofl import aofl
from coordinator.planning.planners.fused import fused
from coordinator.planning.planners.halo import halo
from coordinator.planning.planners.lw import lw
from coordinator.planning.planners.single import single
from protos.rooms import imported, is_installed

When = Literal["always", "below ideal", "near lw"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A planner, and when `auto` tries it: always; if the best plan so far leaves something to
    gain; or if `lw` is not far behind the best.
    """

    planner: Planner
    tried: When = "always"


_ROWS: tuple[tuple[str, Planner | str, When], ...] = (
    ("single", single, "always"),
    ("lw", lw, "always"),
    ("efl", "coordinator.planning.papers.efl:efl", "always"),
    ("ofl", "coordinator.planning.papers.ofl:ofl", "always"),
    ("aofl", aofl, "always"),
    ("fused", fused, "always"),
    ("elimination", "coordinator.planning.papers.elimination:elimination", "near lw"),
    ("kcut", "coordinator.planning.papers.kcut:kcut", "near lw"),
    ("halo", halo, "below ideal"),
)
CANDIDATES: Mapping[str, Candidate] = {
    name: Candidate(imported(planner) if isinstance(planner, str) else planner, tried)
    for name, planner, tried in _ROWS
    if not isinstance(planner, str) or is_installed(planner)
}
