"""`fused`: fused blocks as in AOFL, with a search over everything that AOFL fixes.

It searches which devices to use, in which order, in which shape (strips that finish together,
uneven grids, bands), fully connected layers over their output or input, with or without barriers.
Drafts from the dynamic program of Eq. 5, AOFL's own blocks, and each device alone are costed by the
event simulator's rules; the best are improved by the same rules, and the simulator itself chooses
among the results.
"""

from dataclasses import replace
from functools import partial

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import finished
from coordinator.planning.plan_memory import overfilled, too_little_memory
from coordinator.planning.planners.reasons import Reasons
from coordinator.planning.planners.starts import Starts
from coordinator.planning.search.block_costs import PlanDraft, Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.decide import check_room, no_room
from coordinator.planning.search.improve import Cost, Search, is_better
from coordinator.planning.search.moves import borders, cuts, devices, shapes
from coordinator.planning.search.slots import Slots
from coordinator.planning.search.tables import tables_of
from coordinator.tasks.plan import Plan
from models.cut.units import Network

# Simulated tasks per search: about 0.3 s for eight devices.
EFFORT = 12_000
# Drafts that are improved, the best first, until the budget is used.
_STARTS = 3
# Plans that the simulator itself compares, and by how much they may be worse than the best draft.
_FINALISTS = 4
_CLOSE = 1.03
# A smaller gain is not worth another round.
_WORTHWHILE = 1e-4


def fused(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency that the search finds.

    Raises:
        Infeasible: no device, or none with enough memory for some layer.
    """
    return _Fused(network, cluster).plan()


class _Fused:
    """One search: drafts, their improvement, and the plan."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        self.tables = tables_of(network, cluster)
        self.stages = Stages(network, cluster, self.tables)
        forms = Forms(self.stages)
        check_room(network, self.tables, forms.connected)
        self.search = Search(forms, EFFORT)
        places = {device.id: d for d, device in enumerate(cluster.devices)}
        self.starts = Starts(network, self.tables, places)

    def plan(self) -> Plan:
        """The best of the improved drafts, by the simulator itself."""
        pool: dict[PlanDraft, Cost] = {}
        slots_of: dict[PlanDraft, Slots] = {}
        for slots in self.starts.all():
            self._add(pool, slots_of, slots)
        if not pool:
            raise no_room(self.network, self.tables, self.starts.unplaced())
        self.search.left = EFFORT
        for draft in sorted(pool, key=pool.__getitem__)[:_STARTS]:
            if self.search.left > 0:
                better = self._improved(slots_of[draft])
                self._add(pool, slots_of, better)
        ranked = sorted(pool, key=pool.__getitem__)
        excess, best_s = pool[ranked[0]]
        # What a draft takes is an estimate, what its plan takes is known.
        if excess and (over := overfilled(self.network, self.cluster, self._plan(ranked[0]))):
            raise too_little_memory(self.network, self.cluster, over)
        close = [draft for draft in ranked if pool[draft] <= (excess, best_s * _CLOSE)]
        plans = {draft: self._plan(draft) for draft in close[:_FINALISTS]}
        chosen = min(plans, key=lambda draft: plans[draft].predicted_latency_s)
        reasons = Reasons(self.search, self.starts, slots_of[chosen], plans[chosen])
        return replace(plans[chosen], notes=reasons.notes(), unused=reasons.unused())

    def _improved(self, slots: Slots) -> Slots:
        """Improves slots in rounds of moves, until none helps or the budget is used."""
        best = self.search.cost_of(slots)
        while True:
            before = best
            for moves in (cuts, devices, shapes, borders):
                slots, best = self.search.climb(slots, best, partial(moves, self.search))
            if self.search.left <= 0 or not is_better(best, before, _WORTHWHILE):
                return slots

    def _add(
        self, pool: dict[PlanDraft, Cost], slots_of: dict[PlanDraft, Slots], slots: Slots
    ) -> None:
        draft = self.search.draft(slots)
        if draft is not None and draft not in pool:
            pool[draft], slots_of[draft] = self.search.cost(draft), slots

    def _plan(self, draft: PlanDraft) -> Plan:
        return finished("fused", self.stages.blocks(draft), self.network, self.cluster)
