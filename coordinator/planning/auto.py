"""`auto`: the best of the other strategies, each as published and without its barriers.

All are ranked by the rules of the event simulator, the best of them by the simulator itself.
`single` is always among these, so a plan is never predicted slower than one device. What searches
long is tried only where it can win: `halo` unless a plan is close to what all devices together
could do at best; `elimination` and `kcut`, which divide every layer and exchange through the host,
only where the simpler strategy of that family, `lw`, is not far behind the best. The best plans are
also tried with branches on different devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coordinator.costs.devices import Cluster
from coordinator.planning.branches import by_branches
from coordinator.planning.candidates import CANDIDATES, When
from coordinator.planning.simulator import simulate
from coordinator.planning.stages import Stages
from coordinator.planning.tables import tables_of
from coordinator.tasks.plan import Plan
from models.units import Network
from protos.errors import Infeasible

# How far behind the best `lw` may be for better divisions of single layers to make up for it. Where
# it was up to 2.5 times as slow as `fused`, they took at least 0.76 of its time (digits and VGG-16,
# 2 and 8 devices, three media, 20 to 1000 Mbps).
_BEHIND = 1.5
# Plans that the simulator itself compares, and how much worse than the best they may seem.
_FINALISTS = 3
_CLOSE = 1.03
# Plans that are tried with branches on different devices.
_BRANCHED = 2
# A plan this near to the sum of all devices' rates leaves nothing to gain that shows.
_IDEAL = 1.03


def auto(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency; the first of the candidates among equals."""
    candidates = _Candidates(network, cluster)
    candidates.add("always")
    if candidates.best_s > candidates.ideal_s * _IDEAL:
        candidates.add("below ideal")
    if candidates.per_layer_s <= candidates.best_s * _BEHIND:
        candidates.add("near lw")
    candidates.add_branches()
    return candidates.chosen()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan and what the rules of the simulator say of it."""

    name: str
    plan: Plan
    latency_s: float


class _Candidates:
    """Plans by how they were made, ranked alike."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        self.tables = tables_of(network, cluster)
        self.stages = Stages(network, cluster, self.tables)
        self.found: list[_Candidate] = []
        self.tried: set[str] = set()
        self.refused: Infeasible | None = None

    def add(self, when: When) -> None:
        """Tries some more; of equals the latest row's comes first."""
        for name, each in [*CANDIDATES.items()][::-1]:
            if each.tried != when:
                continue
            self.tried.add(name)
            try:
                self.found += self._variants(name, each.planner(self.network, self.cluster))
            except Infeasible as error:
                self.refused = self.refused or error

    def _variants(self, name: str, plan: Plan) -> Iterator[_Candidate]:
        """The plan as published and, if it has barriers between its blocks, without them."""
        draft = self.stages.of_plan(plan)
        yield _Candidate(name, plan, self.stages.latency_s(draft))
        if any(block.barrier for block in plan.blocks[1:]):
            blocks = tuple(replace(block, barrier=False) for block in plan.blocks)
            latency_s = self.stages.latency_s(self.stages.without_barriers(draft))
            yield _Candidate(f"{name} without barriers", replace(plan, blocks=blocks), latency_s)

    def add_branches(self) -> None:
        """The best so far, with branches on different devices, as far as that is faster."""
        for each in sorted(self.found, key=lambda each: each.latency_s)[:_BRANCHED]:
            plan = by_branches(each.plan, self.network, self.cluster, self.stages)
            if plan is not None:
                name = f"{each.name} with branches"
                self.found.append(_Candidate(name, plan, plan.predicted_latency_s))

    @property
    def best_s(self) -> float:
        """The least latency so far."""
        return min((each.latency_s for each in self.found), default=float("inf"))

    @property
    def per_layer_s(self) -> float:
        """What `lw` takes; infinite where it can't be."""
        found = (each.latency_s for each in self.found if each.name.startswith("lw"))
        return min(found, default=float("inf"))

    @property
    def ideal_s(self) -> float:
        """What all devices would take together if nothing had to be moved or computed twice."""
        alone_s = self.tables.compute_s[:, 0, -1]
        return float(1.0 / (1.0 / alone_s).sum())

    def chosen(self) -> Plan:
        """The best of them, which tells what the others would take.

        Raises:
            Infeasible: there is none.
        """
        if not self.found:
            assert self.refused is not None
            raise self.refused
        best = min(self._finalists(), key=lambda each: each.plan.predicted_latency_s)
        compared = ", ".join(f"{each.name} {each.latency_s:.3f} s" for each in self.found)
        note = f"Chosen: {best.name}. In the same simulation the strategies take: {compared}."
        left = [other for other in CANDIDATES if other not in self.tried]
        notes = (
            (note, f"Skipped because they cannot win here: {', '.join(left)}.") if left else (note,)
        )
        return replace(best.plan, strategy="auto", notes=(*notes, *best.plan.notes))

    def _finalists(self) -> Iterator[_Candidate]:
        """The best few, and one device alone, as the simulator itself predicts them."""
        ranked = sorted(self.found, key=lambda each: each.latency_s)
        close = [each for each in ranked if each.latency_s <= self.best_s * _CLOSE][:_FINALISTS]
        alone = [each for each in self.found if each.name == "single" and each not in close]
        for each in (*close, *alone):
            seconds = simulate(each.plan, self.network, self.cluster).latency_s
            yield replace(each, plan=replace(each.plan, predicted_latency_s=seconds))
