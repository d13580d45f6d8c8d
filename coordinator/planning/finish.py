"""Completes plans: the one way from blocks to a plan, for all planners."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coordinator.costs.cluster import Cluster, Device
from coordinator.planning.geometry.layouts import UnitTile
from coordinator.planning.legal import check_plan
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.single_device import best_alone, bytes_of, whole_works
from coordinator.tasks.plan import (
    Block,
    ExchangeMode,
    Plan,
    Tile,
    TrafficBytes,
    Unused,
    tile_extent,
    tile_works,
)
from models.cut.tiles import MapTile, tile_boxes
from models.cut.units import Network
from protos.wire.facts import DeviceId

NOT_USED = "this strategy does not use it"
# A planner's own prediction, and the bytes that it counts.
PredictedCosts = tuple[float, TrafficBytes]


def plan_of_blocks(
    strategy: str,
    blocks: Sequence[Block],
    network: Network,
    cluster: Cluster,
    unused: str = NOT_USED,
) -> Plan:
    """The plan that executes these blocks, with exact FLOPs and bytes, and the simulator's latency.
    FLOPs given with their tiles are ignored. `unused` says why devices are left out.

    Raises:
        IllegalPlan: the blocks can't be executed, or do not yield the network's outputs.
        Infeasible: there is no device.
    """
    bare = [
        replace(block, tiles=tuple(replace(tile, flop=0) for tile in block.tiles))
        for block in blocks
    ]
    check_plan(_plan(strategy, bare, network, cluster), network, cluster)
    return finished(strategy, bare, network, cluster, otherwise=unused)


def finished(
    strategy: str,
    blocks: Sequence[Block],
    network: Network,
    cluster: Cluster,
    predicted: PredictedCosts | None = None,
    *,
    unused: Mapping[DeviceId, str] | None = None,
    otherwise: str = NOT_USED,
) -> Plan:
    """The plan of blocks that can be executed. FLOPs are counted for tiles without them. Latency
    and bytes are as `predicted`, or simulated. The reasons of unused devices are in `unused`, by
    device; `otherwise` is that of the rest.
    """
    plan = _plan(strategy, [_counted(network, block) for block in blocks], network, cluster)
    if predicted is None:
        simulation = simulate(plan, network, cluster)
        predicted = simulation.latency_s, simulation.traffic
    reasons = unused or {}
    left_out = [device.id for device in cluster.devices if device.id not in plan.devices]
    return replace(
        plan,
        predicted_latency_s=predicted[0],
        traffic=predicted[1],
        unused=tuple(Unused(device, reasons.get(device, otherwise)) for device in left_out),
    )


def block_of(
    network: Network,
    start: int,
    stop: int,
    shares: Sequence[tuple[Device, MapTile | UnitTile]],
    *,
    barrier: bool = True,
    exchange: ExchangeMode = "host",
) -> Block:
    """A block of units [start, stop) with these tiles: of a map, or any tiles of one unit."""
    tiles = []
    for device, part in shares:
        if isinstance(part, MapTile):
            tiles.append(Tile(device.id, tile_boxes(network, start, stop, part)))
        else:
            tiles.append(Tile(device.id, part.boxes, part=part.part))
    return _counted(network, Block(start, stop, tuple(tiles), barrier, exchange))


def published(network: Network, cluster: Cluster, blocks: Sequence[Block]) -> PredictedCosts:
    """The published cost of blocks [AOFL, Eq. 4]: for each, its transfers through the host one
    after the other, and the slowest device's computation.
    """
    seconds, scatter, gather = 0.0, 0, 0
    for block in blocks:
        slowest_s = 0.0
        for tile in block.tiles:
            device = cluster.device(tile.device)
            read = bytes_of(network, tile_extent(network, block, tile).inputs)
            made = bytes_of(network, tile.boxes)
            seconds += device.link.transfer_s(read) + device.link.transfer_s(made)
            slowest_s = max(slowest_s, device.costs.block_s(tile_works(network, block, tile)))
            scatter, gather = scatter + read, gather + made
        seconds += slowest_s
    return seconds, TrafficBytes(scatter=scatter, gather=gather)


def _plan(strategy: str, blocks: Sequence[Block], network: Network, cluster: Cluster) -> Plan:
    alone = best_alone(network, cluster.devices)
    total = sum(work.flop for work in whole_works(network))
    flop = sum(tile.flop for block in blocks for tile in block.tiles)
    return Plan(
        model=network.name,
        strategy=strategy,
        blocks=tuple(blocks),
        predicted_latency_s=0.0,
        single_device_latency_s=alone.seconds,
        baseline_device=alone.device.id,
        total_flop=total,
        redundant_flop=max(0, flop - total),
        traffic=TrafficBytes(),
        wire=network.wire,
    )


def _counted(network: Network, block: Block) -> Block:
    if all(tile.flop for tile in block.tiles):
        return block
    tiles = tuple(
        replace(tile, flop=sum(work.flop for work in tile_works(network, block, tile)))
        for tile in block.tiles
    )
    return replace(block, tiles=tiles)
