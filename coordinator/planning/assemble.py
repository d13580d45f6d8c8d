"""From the tiles that a planner chose to a complete plan: boxes, FLOPs, bytes, predictions.

Everything here is exact, from the final tiles: the tables of the search are not consulted,
except for the one-device baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.costs.devices import Device
from coordinator.planning.layouts import UnitTile
from coordinator.planning.tables import Tables
from coordinator.tasks.plan import (
    Block,
    Exchange,
    Plan,
    Tile,
    TrafficBytes,
    tile_extent,
    tile_works,
)
from models.boxes import Box
from models.tiles import MapTile, tile_boxes
from models.units import Network


@dataclass(frozen=True, slots=True)
class Placed:
    """A block of units [start, stop) with its devices and tiles: of a map, or any of one unit."""

    start: int
    stop: int
    shares: Sequence[tuple[Device, MapTile | UnitTile]]
    barrier: bool = True
    exchange: Exchange = "host"


@dataclass(frozen=True, slots=True)
class _TileCost:
    tile: Tile
    scatter_bytes: int
    gather_bytes: int
    transfer_s: float
    compute_s: float


def assemble(network: Network, tables: Tables, strategy: str, placed: Sequence[Placed]) -> Plan:
    """The plan of these blocks at its published cost [AOFL, Eq. 4], and the bytes of an exchange
    through the host. `unused` and `notes` are the caller's to add.
    """
    blocks, latency_s = [], 0.0
    scatter = gather = flop = 0
    for each in placed:
        costs = [_tile_cost(network, each, device, part) for device, part in each.shares]
        latency_s += sum(cost.transfer_s for cost in costs)
        latency_s += max(cost.compute_s for cost in costs)
        scatter += sum(cost.scatter_bytes for cost in costs)
        gather += sum(cost.gather_bytes for cost in costs)
        flop += sum(cost.tile.flop for cost in costs)
        tiles = tuple(cost.tile for cost in costs)
        blocks.append(Block(each.start, each.stop, tiles, each.barrier, each.exchange))
    baseline, single_s = fastest_alone(tables)
    total_flop = int(tables.geometry.wholes[-1].features[:, 0].sum())
    return Plan(
        model=network.name,
        strategy=strategy,
        blocks=tuple(blocks),
        predicted_latency_s=latency_s,
        single_device_latency_s=single_s,
        baseline_device=baseline.id,
        total_flop=total_flop,
        redundant_flop=flop - total_flop,
        traffic=TrafficBytes(scatter=scatter, gather=gather),
        wire=network.wire,
    )


def fastest_alone(tables: Tables) -> tuple[Device, float]:
    """The device that answers first if it computes everything, and its time. One that can hold
    the network is preferred to one that can't.
    """
    seconds = tables.alone_s[:, 0, -1]
    fits = tables.fits[:, 0, -1]
    order = sorted(
        range(len(tables.devices)),
        key=lambda d: (not fits[d], seconds[d], not tables.devices[d].host),
    )
    return tables.devices[order[0]], float(seconds[order[0]])


def _tile_cost(
    network: Network, placed: Placed, device: Device, part: MapTile | UnitTile
) -> _TileCost:
    whole = Block(placed.start, placed.stop, ())
    if isinstance(part, MapTile):
        tile = Tile(device.id, tile_boxes(network, placed.start, placed.stop, part))
    else:
        tile = Tile(device.id, part.boxes, part=part.part)
    work = tile_works(network, whole, tile)
    scatter = _bytes(network, tile_extent(network, whole, tile).inputs)
    gather = _bytes(network, tile.boxes)
    return _TileCost(
        tile=replace(tile, flop=sum(each.flop for each in work)),
        scatter_bytes=scatter,
        gather_bytes=gather,
        transfer_s=device.link.transfer_s(scatter) + device.link.transfer_s(gather),
        compute_s=device.costs.block_s(work),
    )


def _bytes(network: Network, boxes: Mapping[str, Box]) -> int:
    tensors = network.graph.tensors
    return sum(box.volume * tensors[name].wire_itemsize for name, box in boxes.items())
