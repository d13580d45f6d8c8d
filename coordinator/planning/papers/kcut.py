"""`kcut`: SOYBEAN's tilings, for inference.

The devices are divided into two groups, each unit and tensor is tiled so that the cut moves the
fewest bytes, and each group is cut again, until every device is alone. Groups may be uneven in
number and in rate: their shares are proportional to their devices' rates. As published, every unit
that can be divided runs on all devices; the number of devices is chosen here, from one to all, by
the cost of the plan as `elimination` computes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.layouts import Configuration, Layout, Layouts, UnitTile
from coordinator.planning.papers.kcut_search import CutTable, Operation, k_cut
from coordinator.planning.papers.layered import LayerWire, UnitGraph, compute_s
from coordinator.planning.papers.unit_cut import TILINGS, Cut, Setting
from coordinator.planning.papers.unit_plan import alone_plan, plan_of
from coordinator.planning.plan_memory import overfilled, too_little_memory
from coordinator.planning.single_device import fastest_first, shares_of
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from models.tensors.boxes import Box
from models.tensors.memory import megabytes


class UnitFlow:
    """The units, SOYBEAN's dataflow graph, as one group of devices sees them.

    `tiles[u]` is what the group computes of unit u, None for nothing; `own[t]` is the box of a
    tensor that it owns after its tilings so far.
    """

    def __init__(
        self, setting: Setting, tiles: Sequence[UnitTile | None], own: Mapping[str, Box]
    ) -> None:
        self.setting = setting
        self.tiles = tuple(tiles)
        self.own = own
        self._cuts: dict[tuple[float, ...], Cut] = {}
        self._parts: dict[object, UnitFlow] = {}

    @classmethod
    def of(cls, setting: Setting) -> "UnitFlow":
        """The group before any cut, which computes and owns everything."""
        graph = setting.network.graph
        return cls(
            setting,
            [setting.divider.whole(unit) for unit in setting.network.units],
            {name: Box.whole(graph.shape(name)) for name in setting.makers},
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every tensor has the same number of tilings; some have the same effect."""
        return (TILINGS,) * len(self.own)

    def operations(self, shares: Sequence[float]) -> list[Operation]:
        """The bytes of its conversions, for every unit of which this group computes something."""
        cut = self._cut(shares)
        index = {name: place for place, name in enumerate(self.own)}
        found = []
        for unit in cut.active:
            names, (fixed, *moved), least = cut.operation(unit)
            tensors = tuple(map(index.__getitem__, names))
            found.append(Operation(tensors, tuple(moved), fixed[:, 0], least))
        return found

    def part(self, tilings: Sequence[int], shares: Sequence[float], index: int) -> "UnitFlow":
        """One half of the group, each unit in its cheapest form; the same object for the same
        tilings and shares.
        """
        key = tuple(tilings), tuple(shares), index
        if key not in self._parts:
            self._parts[key] = self._part(tilings, shares, index)
        return self._parts[key]

    def _part(self, tilings: Sequence[int], shares: Sequence[float], index: int) -> "UnitFlow":
        cut = self._cut(shares)
        chosen = dict(zip(self.own, tilings, strict=True))
        tiles: list[UnitTile | None] = [None] * len(self.tiles)
        for unit in cut.active:
            tiles[unit] = cut.halves(unit, cut.cheapest(unit, chosen))[index]
        own = {name: cut.owned(name, tiling)[index] for name, tiling in chosen.items()}
        return UnitFlow(self.setting, tiles, own)

    def _cut(self, shares: Sequence[float]) -> Cut:
        key = tuple(shares)
        if key not in self._cuts:
            self._cuts[key] = Cut(self.setting, self.tiles, self.own, shares)
        return self._cuts[key]


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
        f"{k}: {latency_s / best.predicted_latency_s:.2f}"
        for k, latency_s in enumerate(seconds, start=1)
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
        moved_s = sum(float(transfer.seconds(wire)[0, 0]) for transfer in graph.transfers)
        return float(compute_s(layouts, devices).sum()) + moved_s
