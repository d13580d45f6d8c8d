"""`kcut`: SOYBEAN's tilings, for inference.

The devices are divided into two groups, each unit and tensor is tiled so that the cut moves the
fewest bytes, and each group is cut again, until every device is alone. Groups may be uneven in
number and in rate: their shares are proportional to their devices' rates. As published, every unit
that can be divided runs on all devices; the number of devices is chosen here, from one to all, by
the cost of the plan as `elimination` computes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.layouts import Configuration, Layout, Layouts
from coordinator.planning.papers.kcut_search import CutTable, k_cut
from coordinator.planning.papers.layered import LayerWire, UnitGraph, compute_s
from coordinator.planning.papers.unit_cut import Setting
from coordinator.planning.papers.unit_flow import UnitFlow
from coordinator.planning.papers.unit_plan import alone_plan, plan_of
from coordinator.planning.plan_memory import overfilled, too_little_memory
from coordinator.planning.single_device import fastest_first, shares_of
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from models.tensors.memory import megabytes


def kcut(network: Network, cluster: Cluster) -> Plan:
    """The plan that cuts the fastest k devices, for the best k.

    Raises:
        Infeasible: no device, or none of these plans fits in memory.
    """
    ranked = replace(cluster, devices=fastest_first(network, cluster.devices))
    search = _Search(network, ranked)
    best: Plan | None = None
    seconds = []
    for count in range(1, len(ranked.devices) + 1):
        for plan in search.plans(count):
            over = overfilled(network, cluster, plan)
            if not over:
                break
        seconds.append(plan.predicted_latency_s)
        if not over and (best is None or plan.predicted_latency_s < best.predicted_latency_s):
            best = plan
    if best is None:
        raise too_little_memory(network, cluster, over)
    steps = ", ".join(
        f"{k}: {each / best.predicted_latency_s:.2f}" for k, each in enumerate(seconds, start=1)
    )
    note = f"Cut over the fastest k devices, by its time, k = {steps}."
    return replace(best, notes=(*best.notes, note))


class _Search:
    """Plans for some of the devices, the fastest first. Cuts that several of them share are
    cached.
    """

    def __init__(self, network: Network, ranked: Cluster) -> None:
        self.network, self.cluster = network, ranked
        self._flow = UnitFlow.of(Setting.of(network))
        self._known: CutTable = {}

    def plans(self, count: int) -> Iterator[Plan]:
        """Plans for the first `count` devices; later ones balance memory."""
        if count == 1:
            yield alone_plan(self.network, self.cluster, "kcut")
        else:
            for weights in shares_of(self.network, self.cluster.devices[:count]):
                yield self._cut(weights)

    def _cut(self, weights: Sequence[float]) -> Plan:
        tree, leaves = k_cut(self._flow, weights, known=self._known)
        layouts = [
            Layout(
                Configuration(
                    inputs=1 + sum(tile is not None and tile.part is not None for tile in tiles)
                ),
                {device: tile for device, tile in enumerate(tiles) if tile is not None},
            )
            for tiles in zip(*(leaf.tiles for leaf in leaves), strict=True)
        ]
        count = len(weights)
        note = (
            f"{count} devices, cut in {count - 1} steps, move {megabytes(tree.total_bytes, 3)} "
            "between layers, halos included"
        )
        return plan_of(self.network, self.cluster, "kcut", layouts, self._cost_s(layouts), (note,))

    def _cost_s(self, layouts: Sequence[Layout]) -> float:
        """Equation 1 of Jia et al. for a strategy."""
        devices = self.cluster.devices
        every = [*map(Layouts.only, layouts)]
        graph = UnitGraph.of(self.network, every, len(devices), credit=True)
        wire = LayerWire.of(devices)
        moved_s = sum(float(each.seconds(wire)[0, 0]) for each in graph.transfers)
        return float(compute_s(layouts, devices).sum()) + moved_s
