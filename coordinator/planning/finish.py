"""From blocks alone to a complete plan: for planners that decide who computes what, and plans
that somebody wrote by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.costs.devices import Cluster
from coordinator.planning.legal import check_plan
from coordinator.planning.simulator import simulate
from coordinator.planning.unit_plan import best_alone
from coordinator.tasks.plan import Block, DeviceId, Plan, Tile, TrafficBytes, Unused, tile_works
from models.boxes import Box
from models.units import Network
from protos.errors import Infeasible


def plan_of_blocks(
    strategy: str,
    blocks: Sequence[Block],
    network: Network,
    cluster: Cluster,
    unused: str = "this strategy does not use it",
) -> Plan:
    """The plan that executes these blocks, with exact FLOPs and bytes, and its latency from the
    simulator. `flop` of the tiles need not be known. `unused` says why devices are left out.

    Raises:
        IllegalPlan: the blocks can't be executed, or don't give the network's answer.
        Infeasible: there is no device.
    """
    if not cluster.devices:
        raise Infeasible(cause="there is no device to plan for", cure="Add one.")
    alone = best_alone(network, cluster.devices)
    plan = Plan(
        model=network.name,
        strategy=strategy,
        blocks=tuple(blocks),
        predicted_latency_s=0.0,
        single_device_latency_s=alone.seconds,
        baseline_device=alone.device.id,
        total_flop=_whole_flop(network),
        redundant_flop=0,
        traffic=TrafficBytes(),
        wire=network.wire,
    )
    check_plan(plan, network, cluster)
    plan = replace(plan, blocks=tuple(_with_flop(block, network) for block in blocks))
    simulation = simulate(plan, network, cluster)
    flop = sum(tile.flop for block in plan.blocks for tile in block.tiles)
    return replace(
        plan,
        predicted_latency_s=simulation.latency_s,
        redundant_flop=max(0, flop - plan.total_flop),
        traffic=simulation.traffic,
        unused=tuple(
            Unused(device.id, unused) for device in cluster.devices if device.id not in plan.devices
        ),
    )


def _with_flop(block: Block, network: Network) -> Block:
    tiles = tuple(replace(tile, flop=_flop(block, tile, network)) for tile in block.tiles)
    return replace(block, tiles=tiles)


def _whole_flop(network: Network) -> int:
    block = Block(0, len(network.units), ())
    graph = network.graph
    outputs = network.outputs(block.start, block.stop)
    everything = Tile(DeviceId(""), {name: Box.whole(graph.shape(name)) for name in outputs})
    return _flop(block, everything, network)


def _flop(block: Block, tile: Tile, network: Network) -> int:
    return sum(work.flop for work in tile_works(network, block, tile))
