"""The table of all planners that decide who computes what: one row for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coordinator.costs.devices import Planner
from coordinator.planning.papers.aofl import aofl
from coordinator.planning.papers.efl import efl
from coordinator.planning.papers.elimination import elimination
from coordinator.planning.papers.kcut import kcut
from coordinator.planning.papers.lw import lw
from coordinator.planning.papers.ofl import ofl
from coordinator.planning.planners.fused import fused
from coordinator.planning.planners.halo import halo
from coordinator.planning.planners.single import single

When = Literal["always", "below ideal", "near lw"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A planner, and when `auto` tries it: always; if the best plan so far leaves something to
    gain; or if `lw` is not far behind the best.
    """

    planner: Planner
    tried: When = "always"


CANDIDATES: Mapping[str, Candidate] = {
    "single": Candidate(single),
    "lw": Candidate(lw),
    "efl": Candidate(efl),
    "ofl": Candidate(ofl),
    "aofl": Candidate(aofl),
    "fused": Candidate(fused),
    "elimination": Candidate(elimination, "near lw"),
    "kcut": Candidate(kcut, "near lw"),
    "halo": Candidate(halo, "below ideal"),
}
