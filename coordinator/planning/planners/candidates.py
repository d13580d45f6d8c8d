"""The table of all planners that decide who computes what: one row for each. Those that are named
in it are optional.
"""

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

When = Literal["always", "below ideal", "never"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A planner, and when `auto` tries it: always; if the best plan so far leaves something to
    gain; or never, since others are as good wherever they were compared (docs/adr/0015-column.md).
    """

    planner: Planner
    tried: When = "always"


_ROWS: tuple[tuple[str, Planner | str, When], ...] = (
    ("single", single, "always"),
    ("lw", lw, "never"),
    ("efl", "coordinator.planning.papers.efl:efl", "never"),
    ("ofl", "coordinator.planning.papers.ofl:ofl", "never"),
    ("aofl", aofl, "never"),
    ("fused", fused, "always"),
    ("elimination", "coordinator.planning.papers.elimination:elimination", "never"),
    ("kcut", "coordinator.planning.papers.kcut:kcut", "never"),
    ("halo", halo, "below ideal"),
)
CANDIDATES: Mapping[str, Candidate] = {
    name: Candidate(imported(planner) if isinstance(planner, str) else planner, tried)
    for name, planner, tried in _ROWS
    if not isinstance(planner, str) or is_installed(planner)
}
