"""Stages on groups of devices, for networks that the devices hold together but not each.

Every group holds a run of the network's blocks, divided into tiles as its planner divides them for
the group alone. Between the tiles of one stage, weights are held as often as the group has devices;
groups of half the devices, of a quarter and so on lie between tiles on all of them, which each hold
everything, and stages on one device each (`placing`), which hold nothing twice.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coordinator.costs.cluster import Cluster, Device, Planner
from coordinator.planning.finish import finished
from coordinator.planning.groups import divided
from coordinator.planning.plan_memory import holds_tile, overfilled, weights_of
from coordinator.tasks.plan import Block, ExchangeMode, Plan
from models.cut.units import Network
from protos.errors import Infeasible
from protos.wire.facts import DeviceId

# The most that a stage may hold, in equal shares.
LEVELS = (1.05, 1.2, 1.5, 2.0, float("inf"))


def staged_in_groups(planner: Planner, network: Network, cluster: Cluster) -> Iterator[Plan]:
    """One plan for each number of groups whose devices have room for their stages."""
    free = tuple(replace(device, memory_bytes=0) for device in cluster.devices)
    count = 2
    while count <= len(free) // 2:
        groups = divided(replace(cluster, devices=free), count)
        try:
            plans = _plans(planner, network, groups)
        except Infeasible:
            return
        made = _Stages(plans, network, cluster).plan()
        if made is not None:
            note = f"Stages on {count} groups of devices, each of which holds only its share."
            yield replace(made, notes=(*made.notes, note))
        count *= 2


def _plans(planner: Planner, network: Network, groups: Sequence[Cluster]) -> list[Plan]:
    """The planner's plan for each group; that of another group whose devices cost the same."""
    made: list[tuple[Cluster, Plan]] = []
    for group in groups:
        found = next((known for known in made if _unnamed(known[0]) == _unnamed(group)), None)
        if found is None:
            made.append((group, planner(network, group)))
        else:
            pairs = zip(found[0].devices, group.devices, strict=True)
            names = {before.id: now.id for before, now in pairs}
            made.append((group, replace(found[1], blocks=_renamed(found[1].blocks, names))))
    return [plan for _, plan in made]


def _unnamed(group: Cluster) -> list[Device]:
    return [replace(device, id=DeviceId(""), name="") for device in group.devices]


def _renamed(blocks: Sequence[Block], names: Mapping[DeviceId, DeviceId]) -> tuple[Block, ...]:
    return tuple(
        replace(
            block, tiles=tuple(replace(tile, device=names[tile.device]) for tile in block.tiles)
        )
        for block in blocks
    )


class _Stages:
    """One number of groups, with a plan for each."""

    def __init__(self, plans: Sequence[Plan], network: Network, cluster: Cluster) -> None:
        self._plans, self._network, self._cluster = plans, network, cluster
        self._devices = {device.id: device for device in cluster.devices}

    def plan(self) -> Plan | None:
        """Stages of about equal weight if possible; None if there is no room."""
        shares = [self._held(plan.blocks) / len(self._plans) for plan in self._plans]
        for level in LEVELS:
            blocks = self._blocks([share * level for share in shares])
            if blocks is not None:
                return finished(self._plans[0].strategy, blocks, self._network, self._cluster)
        return None

    def _blocks(self, most: Sequence[float]) -> list[Block] | None:
        """Every group's blocks, one stage after the other, each with at most so many bytes."""
        found: list[Block] = []
        units = len(self._network.units)
        for plan, limit in zip(self._plans, most, strict=True):
            start = found[-1].stop if found else 0
            if start == units:
                break
            left = [block for block in plan.blocks if block.stop > start]
            if found:
                left[0] = self._after(found[-1], left[0])
            count = bisect.bisect_left(
                range(1, len(left) + 1), True, key=lambda k: not self._fits(left[:k], limit)
            )
            found += left[:count]
        return found if found and found[-1].stop == units else None

    def _after(self, before: Block, block: Block) -> Block:
        """What is left of a block after another group's last one, from which its input comes:
        through the host if partial sums are added, or devices cannot reach each other.
        """
        through_host = self._cluster.apart or any(tile.reduce for tile in before.tiles)
        exchange: ExchangeMode = "peer" if block.exchange == "peer" and not through_host else "host"
        names = self._network.outputs(before.stop, block.stop)
        tiles = []
        for tile in block.tiles:
            boxes = {name: box for name, box in tile.boxes.items() if name in names}
            if boxes:
                tiles.append(replace(tile, boxes=boxes, flop=0))
        return replace(block, start=before.stop, tiles=tuple(tiles), exchange=exchange)

    def _fits(self, blocks: Sequence[Block], limit: float) -> bool:
        """Whether a group's devices can hold these blocks."""
        if self._held(blocks) > limit:
            return False
        plan = replace(self._plans[0], blocks=tuple(blocks))
        return not overfilled(self._network, self._cluster, plan) and all(
            holds_tile(self._network, self._devices[tile.device], block, tile)
            for block in blocks
            for tile in block.tiles
        )

    def _held(self, blocks: Sequence[Block]) -> int:
        """Bytes of weights that the blocks' tiles hold."""
        return sum(weights_of(self._network, b, tile) for b in blocks for tile in b.tiles)
