"""`kcut`: SOYBEAN's tilings, for inference.

The devices are cut in two groups, each unit and tensor is tiled so that the cut moves the fewest
bytes, and each group is cut again, until every device is alone. Groups may be uneven in number
and in rate: each part's share is its devices' share of the rate. Every unit that can be split
runs on all devices, as published; how many devices to cut is ours to choose: the number whose
plan costs least, with the costs of `elimination`, from one device alone to all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from coordinator.costs.devices import Cluster, Device
from coordinator.planning.baseline import fastest_first, shares_of
from coordinator.planning.graphsearch.kcut import Group, k_cut
from coordinator.planning.layered import UnitGraph, Wire, compute_s
from coordinator.planning.layouts import Configuration, Layout, Layouts, UnitTile
from coordinator.planning.memory import overfilled, too_little_memory
from coordinator.planning.unit_cut import Setting
from coordinator.planning.unit_flow import UnitFlow
from coordinator.planning.unit_plan import alone_plan, plan_of
from coordinator.tasks.plan import Plan
from models.memory import megabytes
from models.units import Network
from protos.errors import Infeasible


def kcut(network: Network, cluster: Cluster) -> Plan:
    """The plan that cuts the fastest k devices, for the best k.

    Raises:
        Infeasible: no device, or none of these plans fits in memory.
    """
    if not cluster.devices:
        raise Infeasible(cause="there is no device", cure="Start a worker.")
    ranked = replace(cluster, devices=fastest_first(network, cluster.devices))
    best: Plan | None = None
    seconds = []
    for count in range(1, len(ranked.devices) + 1):
        for plan in _plans(network, ranked, count):
            over = overfilled(network, cluster, plan)
            if not over:
                break
        seconds.append(plan.predicted_latency_s)
        if not over and (best is None or plan.predicted_latency_s < best.predicted_latency_s):
            best = plan
    if best is None:
        raise too_little_memory(network, cluster, over)
    steps = ", ".join(f"{k}: {each:.3f} s" for k, each in enumerate(seconds, start=1))
    return replace(best, notes=(*best.notes, f"cut over the fastest k devices, k = {steps}"))


def cut_devices(
    network: Network, weights: Sequence[float]
) -> tuple[Group, tuple[tuple[UnitTile | None, ...], ...]]:
    """SOYBEAN's cuts over devices with these rates; then what each device computes of each unit."""
    tree, leaves = k_cut(UnitFlow.of(Setting.of(network)), weights)
    return tree, tuple(leaf.tiles for leaf in leaves)


def _plans(network: Network, cluster: Cluster, count: int) -> Iterator[Plan]:
    """Plans for the first `count` devices, the fastest first; later ones even out memory."""
    if count == 1:
        yield alone_plan(network, cluster, "kcut")
    else:
        for weights in shares_of(network, cluster.devices[:count]):
            yield _cut(network, cluster, weights)


def _cut(network: Network, cluster: Cluster, weights: Sequence[float]) -> Plan:
    tree, leaves = cut_devices(network, weights)
    layouts = [
        Layout(
            Configuration(
                inputs=1 + sum(tile is not None and tile.part is not None for tile in tiles)
            ),
            {device: tile for device, tile in enumerate(tiles) if tile is not None},
        )
        for tiles in zip(*leaves, strict=True)
    ]
    count = len(weights)
    note = (
        f"{count} devices, cut in {count - 1} steps, move {megabytes(tree.total_bytes, 3)} between "
        "layers, halos included"
    )
    cost_s = _cost_s(network, cluster.devices, layouts)
    return plan_of(network, cluster, "kcut", layouts, cost_s, (note,))


def _cost_s(network: Network, devices: Sequence[Device], layouts: Sequence[Layout]) -> float:
    """Equation 1 of Jia et al. for one strategy."""
    graph = UnitGraph.of(network, [*map(Layouts.only, layouts)], len(devices), credit=True)
    wire = Wire.of(devices)
    moved_s = sum(float(each.seconds(wire)[0, 0]) for each in graph.transfers)
    return float(compute_s(layouts, devices).sum()) + moved_s
