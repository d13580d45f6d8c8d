"""Plans for devices that compute several tasks at once.

Planners assume one task per device at a time. So they are given a device that computes n at once as
one that is n times as fast, and their plan is then spread: the device's part of a block's map is
divided into n tiles on the same device, along the longer side. Blocks that the device computes
alone are also cut into shorter ones, whose tiles exchange halos within the device: in long blocks
most rows would be computed n times.

Each tile is another program in the device's memory and another task, so it has to be worth it.
Several thresholds are tried: the event simulator judges them by the true costs, and the original
plan is among the candidates.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Cluster, Device, Planner
from coordinator.costs.corrections import CorrectedCosts
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.placing import placed, within_memory
from coordinator.planning.single_device import best_alone, everything
from coordinator.tasks.plan import Block, Plan, Tile, tile_works
from models.cut.tiles import MapTile, even_spans, tile_boxes, whole_map
from models.cut.units import Network
from models.graph.graph import COLS, ROWS
from models.tensors.boxes import Span
from protos.errors import Infeasible

# The most units in blocks inside one device: the search for cuts grows with it.
_LONGEST = 8
# What a tile has to gain, as shares of the plan's latency.
_GAINS = (0.0, 0.003, 0.01, 0.03, 0.1)


def planned(
    planner: Planner, network: Network, cluster: Cluster, *, in_groups: bool = True
) -> Plan:
    """The planner's plan, spread over the tasks that devices compute at once; `in_groups` as for
    `within_memory`.

    Raises:
        Infeasible: no device, or none with enough memory; the plan is not legal.
    """
    planner = within_memory(planner, in_groups=in_groups)
    if all(device.concurrency == 1 for device in cluster.devices):
        return planner(network, cluster)
    plan = placed(planner(network, _one_at_a_time(cluster)), network, cluster)
    ways = [_Spreading(network, cluster, plan.predicted_latency_s * gain) for gain in _GAINS]
    found: list[Plan] = []
    refused: Infeasible | None = None
    tried: list[Sequence[Block]] = []
    starts: list[tuple[Block, ...]] = [plan.blocks]
    if plan.strategy in ("auto", "single"):
        # What cannot be divided is no faster on a device that computes several tasks at once.
        quickest = best_alone(network, cluster.devices).device.id
        starts.append((everything(network, quickest),))
    for made in starts:
        tried.append(made)
        tried += [tuple(part for block in made for part in way.spread(block)) for way in ways]
    for k, blocks in enumerate(tried):
        if blocks in tried[:k]:
            continue
        try:
            found.append(plan_of_blocks(plan.strategy, blocks, network, cluster))
        except Infeasible as error:
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    best = min(found, key=lambda plan: plan.predicted_latency_s)
    return replace(
        plan,
        blocks=best.blocks,
        predicted_latency_s=best.predicted_latency_s,
        redundant_flop=best.redundant_flop,
        traffic=best.traffic,
    )


def _one_at_a_time(cluster: Cluster) -> Cluster:
    """The cluster as planners see it. Devices with the same costs keep sharing them."""
    faster: dict[tuple[int, int], Costs] = {}
    devices = []
    for device in cluster.devices:
        if device.concurrency > 1:
            key = (id(device.costs), device.concurrency)
            costs = faster.setdefault(key, CorrectedCosts(device.costs, 1.0 / device.concurrency))
            devices.append(replace(device, costs=costs, concurrency=1))
        else:
            devices.append(device)
    return replace(cluster, devices=tuple(devices))


class _Spreading:
    """Divides blocks if each additional tile gains at least `gain_s`."""

    def __init__(self, network: Network, cluster: Cluster, gain_s: float) -> None:
        self._network, self._gain_s = network, gain_s
        self._devices = {device.id: device for device in cluster.devices}

    def spread(self, block: Block) -> Sequence[Block]:
        """The block with its tiles divided, or the blocks that it is cut into."""
        if not self._devices.keys() >= set(block.devices):
            return (block,)  # the planner's error, which the check of the plan reports
        if len(block.tiles) == 1 and block.tiles[0].part is None:
            return self._inside(block, self._devices[block.tiles[0].device])
        return (self._divided(block)[0],)

    def _divided(self, block: Block) -> tuple[Block, float]:
        """The block, divided if that pays, and its seconds including the required gains."""
        tiles: list[Tile] = []
        slowest_s = 0.0
        for device_id in block.devices:
            device = self._devices[device_id]
            own = [tile for tile in block.tiles if tile.device == device_id]
            more = self._apart(block, own, device)
            ways = [(self._seconds(block, way, device), way) for way in (own, more)]
            seconds, chosen = min(ways, key=lambda way: way[0])
            slowest_s = max(slowest_s, seconds)
            tiles += chosen
        return replace(block, tiles=tuple(tiles)), slowest_s

    def _apart(self, block: Block, tiles: Sequence[Tile], device: Device) -> list[Tile]:
        """One device's tiles of a block, in about as many parts as it computes at once, each tile
        by its share of the map.
        """
        whole = [self._map_tile(block, tile) for tile in tiles]
        sizes = [len(tile.rows) * len(tile.cols) if tile else 0 for tile in whole]
        found: list[Tile] = []
        for tile, part, size in zip(tiles, whole, sizes, strict=True):
            count = max(1, round(device.concurrency * size / max(1, sum(sizes))))
            cut = parts(part, count) if part else []
            boxes = [tile_boxes(self._network, block.start, block.stop, piece) for piece in cut]
            found += [Tile(device.id, box) for box in boxes if box] or [tile]
        return found

    def _map_tile(self, block: Block, tile: Tile) -> MapTile | None:
        """A tile's rows and columns, if these describe it completely and it can be divided."""
        network, start, stop = self._network, block.start, block.stop
        name = network.outputs(start, stop)[-1]
        main = tile.boxes.get(name)
        rows, cols = (network.graph.axis(name, which) for which in (ROWS, COLS))
        if tile.part is not None or main is None or rows is None:
            return None
        if not network.is_divisible(start, stop):
            return None
        found = MapTile(main[rows], Span(0, 1) if cols is None else main[cols])
        return found if tile.boxes == tile_boxes(network, start, stop, found) else None

    def _seconds(self, block: Block, tiles: Sequence[Tile], device: Device) -> float:
        """Seconds of one device's tiles of a block, including the required gains; each tile goes to
        the slot that is free first.
        """
        free = [0.0] * device.concurrency
        for tile in tiles:
            works = tile_works(self._network, block, tile)
            heapq.heapreplace(free, free[0] + device.costs.block_s(works))
        return max(free) + len(tiles) * (device.link.far.task_s + self._gain_s)

    def _inside(self, block: Block, device: Device) -> Sequence[Block]:
        """A block that one device computes alone, cut so that it finishes soonest: a shortest path
        over its units.
        """
        if device.concurrency == 1:
            return (block,)
        soonest: dict[int, tuple[float, Sequence[Block]]] = {block.start: (0.0, ())}
        for stop in range(block.start + 1, block.stop + 1):
            ways = []
            for start in range(max(block.start, stop - _LONGEST), stop):
                before_s, blocks = soonest[start]
                whole = whole_map(self._network, start, stop)
                tile = Tile(device.id, tile_boxes(self._network, start, stop, whole))
                part = replace(block, start=start, stop=stop, tiles=(tile,))
                if start > block.start:
                    part = replace(part, barrier=False, exchange="peer")
                made, seconds = self._divided(part)
                ways.append((before_s + seconds, (*blocks, made)))
            soonest[stop] = min(ways, key=lambda way: way[0])
        return soonest[block.stop][1]


def parts(tile: MapTile, count: int) -> list[MapTile]:
    """`count` parts along the longer side, which gives the smallest halos; fewer if the side is too
    short.
    """
    by_rows = len(tile.rows) >= len(tile.cols)
    side = tile.rows if by_rows else tile.cols
    found = []
    for piece in even_spans(len(side), min(len(side), count)):
        span = Span(side.start + piece.start, side.start + piece.stop)
        found.append(MapTile(span, tile.cols) if by_rows else MapTile(tile.rows, span))
    return found
