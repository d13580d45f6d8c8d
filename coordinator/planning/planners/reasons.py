"""Explains a searched plan in sentences with numbers, each from a plan whose cost was computed.

Alternatives are told relative to the plan: its own time is predicted again whenever it is shown.
"""

from collections import Counter
from dataclasses import replace

from coordinator.costs.cluster import Cluster
from coordinator.planning.planners.starts import Starts
from coordinator.planning.search.improve import Search
from coordinator.planning.search.slots import Slots
from coordinator.planning.search.subsets import counts_of
from coordinator.tasks.plan import Plan, Unused, tile_works
from models.cut.units import Network


def engine_notes(plan: Plan, network: Network, cluster: Cluster) -> tuple[str, ...]:
    """With which engines the devices are expected to compute, if they have several."""
    if all(len(device.costs.engines) == 1 for device in cluster.devices):
        return ()
    counts = Counter(
        cluster.device(tile.device).costs.fastest(tile_works(network, block, tile)).engine
        for block in plan.blocks
        for tile in block.tiles
    )
    shares = ", ".join(f"{count} by {engine}" for engine, count in counts.most_common())
    return (f"Its {counts.total()} tiles are expected to be computed: {shares}.",)


class Reasons:
    """Alternatives to the chosen plan, costed by the simulator's rules."""

    def __init__(self, search: Search, starts: Starts, slots: Slots, plan: Plan) -> None:
        self.search, self.starts = search, starts
        self.slots, self.plan = slots, plan
        self.devices = search.stages.cluster.devices

    def notes(self) -> tuple[str, ...]:
        """Why this many devices, and the cost of the alternatives."""
        return tuple(note for note in (self._whole(), self._fewer(), self._blocks()) if note)

    def unused(self) -> tuple[Unused, ...]:
        """For each unused device, what using it would cost."""
        # Compared by equality, since a profile's costs hold dictionaries and cannot be hashed.
        known: list[tuple[object, float | None]] = []
        found = []
        for d, device in enumerate(self.devices):
            if device.id in self.plan.devices:
                continue
            kind = (device.costs, device.link, device.host, device.memory_bytes)
            costs = [latency_s for other, latency_s in known if other == kind]
            if not costs:
                costs = [self._with(d)]
                known.append((kind, costs[0]))
            why = "in no block does a share for it save time and fit in its memory"
            if costs[0] is not None:
                longer = self._longer(costs[0])
                why = f"with it in the block where it helps most, it takes {longer} longer"
            found.append(Unused(device.id, why))
        return tuple(found)

    def _whole(self) -> str:
        plan = self.plan
        alone = next(device for device in self.devices if device.id == plan.baseline_device)
        used, given = len(plan.devices), len(self.devices)
        times = plan.single_device_latency_s / plan.predicted_latency_s
        if used == 1:
            return (
                f"One of {given} devices computes everything, because no division that "
                "was tried is faster, transfers included."
            )
        return (
            f"{used} of {given} devices are {times:.2f} times as fast as the best one alone, "
            f"{alone.name}."
        )

    def _fewer(self) -> str:
        """The best drafts with at most k devices in a block, before their improvement."""
        steps = []
        for count in counts_of(len(self.devices)):
            shared = self.search.forms.serial
            drafts = [self.search.draft(start) for start in self.starts.at_most(count, shared)]
            costs = [self.search.cost(draft) for draft in drafts if draft is not None]
            if costs:
                steps.append(f"{count}: {self._longer(min(costs)[1])}")
        if len(steps) < 2:
            return ""
        return (
            "With at most this many devices in any block the best plan, before its cuts and "
            f"tiles are adjusted, takes longer than this one by {', '.join(steps)}."
        )

    def _blocks(self) -> str:
        """The cost of the chosen blocks with barriers."""
        if len(self.slots) < 2:
            return ""
        behind = tuple(replace(slot, barrier=True) for slot in self.slots)
        draft = self.search.draft(behind)
        if draft is None:
            return ""
        seconds = self.search.cost(draft)[1]
        return (
            f"Its {len(self.slots)} blocks would take {self._longer(seconds)} longer if each "
            "waited until the one before it was merged."
        )

    def _with(self, d: int) -> float | None:
        """The least time found with this device added to one block."""
        costs = []
        for index, slot in enumerate(self.slots):
            form = replace(slot.form, devices=(*slot.form.devices, d), shape=None)
            if form.how == "bands":
                form = replace(form, how="together")
            added = replace(slot, form=form, shares=None)
            draft = self.search.draft((*self.slots[:index], added, *self.slots[index + 1 :]))
            if draft is not None and any(d in stage.devices for stage in draft):
                costs.append(self.search.cost(draft))
        fitting = [cost[1] for cost in costs if cost[0] == 0]
        return min(fitting, default=None)

    def _longer(self, seconds: float) -> str:
        return f"{seconds / self.plan.predicted_latency_s - 1:.1%}"
