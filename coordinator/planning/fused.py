"""`fused`: fused blocks as AOFL has them, with everything searched that AOFL assumes.

Which devices, in which order, in which shape (strips that finish together, uneven grids, bands),
fully connected layers over their output or their input, with or without barriers. Drafts by the
dynamic program of Eq. 5, AOFL's own and each device alone are costed by the rules of the event
simulator, the best are improved under these, and the simulator itself chooses among the last.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.costs.devices import Cluster
from coordinator.planning.assemble import assemble
from coordinator.planning.decide import check_room, no_room
from coordinator.planning.forms import Forms
from coordinator.planning.improve import Cost, Improver, Slots
from coordinator.planning.reasons import Reasons
from coordinator.planning.simulator import simulate
from coordinator.planning.stages import Draft, Stages
from coordinator.planning.starts import Starts
from coordinator.planning.tables import tables_of
from coordinator.planning.unit_plan import overfilled, too_little_memory
from coordinator.tasks.plan import Plan
from models.units import Network

# Simulated tasks per search: about 0.3 s for eight devices.
EFFORT = 12_000
# Drafts that are improved, the best first, as long as effort is left.
_STARTS = 3
# Plans that the simulator itself compares, and how much worse than the best draft they may be.
_FINALISTS = 4
_CLOSE = 1.03


def fused(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency that was found.

    Raises:
        Infeasible: no device, or none with enough memory for some layer.
    """
    return _Search(network, cluster).plan()


class _Search:
    """One search: drafts, improvements, the plan."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        self.tables = tables_of(network, cluster)
        self.stages = Stages(network, cluster, self.tables)
        forms = Forms(self.stages)
        check_room(network, self.tables, forms.connected)
        self.improver = Improver(forms, EFFORT)
        places = {device.id: d for d, device in enumerate(cluster.devices)}
        self.starts = Starts(network, self.tables, places)

    def plan(self) -> Plan:
        """The best of the improved drafts, by the simulator itself."""
        pool: dict[Draft, Cost] = {}
        slots_of: dict[Draft, Slots] = {}
        for slots in self.starts.all():
            self._add(pool, slots_of, slots)
        if not pool:
            raise no_room(self.network, self.tables, self.starts.unplaced())
        self.improver.left = EFFORT
        for draft in sorted(pool, key=pool.__getitem__)[:_STARTS]:
            if self.improver.left > 0:
                better, _ = self.improver.improve(slots_of[draft])
                self._add(pool, slots_of, better)
        ranked = sorted(pool, key=pool.__getitem__)
        best = pool[ranked[0]]
        if best[0] > 0:
            over = overfilled(self.network, self.cluster, self._plan(ranked[0]))
            raise too_little_memory(self.network, self.cluster, over)
        close = [draft for draft in ranked if pool[draft] <= (0.0, best[1] * _CLOSE)]
        plans = {draft: self._plan(draft) for draft in close[:_FINALISTS]}
        chosen = min(plans, key=lambda draft: plans[draft].predicted_latency_s)
        reasons = Reasons(self.improver, self.starts, slots_of[chosen], plans[chosen])
        return replace(plans[chosen], notes=reasons.notes(), unused=reasons.unused())

    def _add(self, pool: dict[Draft, Cost], slots_of: dict[Draft, Slots], slots: Slots) -> None:
        draft = self.improver.draft(slots)
        if draft is not None and draft not in pool:
            pool[draft], slots_of[draft] = self.improver.cost(draft), slots

    def _plan(self, draft: Draft) -> Plan:
        plan = assemble(self.network, self.tables, "fused", self.stages.placed(draft))
        simulation = simulate(plan, self.network, self.cluster)
        return replace(plan, predicted_latency_s=simulation.latency_s, traffic=simulation.traffic)
