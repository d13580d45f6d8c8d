"""Our strategies by name: a row for each."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.costs.devices import Planner
from coordinator.planning.aofl import aofl
from coordinator.planning.auto import auto
from coordinator.planning.branches import branches
from coordinator.planning.efl import efl
from coordinator.planning.elimination import elimination
from coordinator.planning.fused import fused
from coordinator.planning.halo import halo
from coordinator.planning.kcut import kcut
from coordinator.planning.lw import lw
from coordinator.planning.ofl import ofl
from coordinator.planning.single import single

STRATEGIES: Mapping[str, Planner] = {
    "single": single,
    "lw": lw,
    "efl": efl,
    "ofl": ofl,
    "aofl": aofl,
    "fused": fused,
    "elimination": elimination,
    "kcut": kcut,
    "halo": halo,
    "branches": branches,
    "auto": auto,
}
