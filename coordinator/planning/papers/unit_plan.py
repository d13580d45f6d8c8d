"""From a layout for each unit to a plan: consecutive units on one device become one block."""

from collections.abc import Sequence
from dataclasses import replace

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import block_of, finished
from coordinator.planning.geometry.layouts import Configuration, Layout, divider_of
from coordinator.planning.single_device import best_alone, bytes_alone, bytes_of, whole_works
from coordinator.tasks.plan import Block, Plan, Tile, TrafficBytes, tile_extent
from models.cut.tiles import whole_map
from models.cut.units import Network


def alone_plan(network: Network, cluster: Cluster, strategy: str) -> Plan:
    """Everything in one block on the device that answers first."""
    device = cluster.devices.index(best_alone(network, cluster.devices).device)
    divider = divider_of(network)
    layouts = [Layout(Configuration(), {device: divider.whole(u)}) for u in network.units]
    note = "one device alone is fastest: nothing is split"
    return plan_of(network, cluster, strategy, layouts, 0.0, (note,))


def plan_of(
    network: Network,
    cluster: Cluster,
    strategy: str,
    layouts: Sequence[Layout],
    cost_s: float,
    notes: tuple[str, ...] = (),
) -> Plan:
    """The plan in which unit i has `layouts[i]`; consecutive units on the same device are one
    block. `cost_s` is the additive cost, minus the program runs that joined units save; for the
    whole network on one device it is the cost there, with each input sent once.
    """
    blocks: list[Block] = []
    read = 0
    for start, stop in _runs(layouts):
        shares = [(cluster.devices[d], tile) for d, tile in layouts[start].tiles.items()]
        if stop - start == 1:
            tiles = tuple(Tile(d.id, tile.boxes, tile.flop, tile.part) for d, tile in shares)
            blocks.append(Block(start, stop, tiles))
            read += sum(bytes_of(network, tile.reads) for _, tile in shares)
            continue
        ((device, _),) = shares
        block = block_of(network, start, stop, [(device, whole_map(network, start, stop))])
        blocks.append(block)
        read += bytes_of(network, tile_extent(network, block, block.tiles[0]).inputs)
        cost_s -= (stop - start - 1) * device.costs.engines[0].task_s
    if len(blocks) == 1 and len(blocks[0].tiles) == 1:
        device = cluster.device(blocks[0].tiles[0].device)
        cost_s = device.costs.block_s(whole_works(network))
        cost_s += sum(map(device.link.transfer_s, bytes_alone(network)))
    made = sum(bytes_of(network, tile.boxes) for block in blocks for tile in block.tiles)
    traffic = TrafficBytes(scatter=read, gather=made)
    reason = "no layer is faster with it, transfers included"
    plan = finished(strategy, blocks, network, cluster, (cost_s, traffic), otherwise=reason)
    return replace(plan, notes=notes)


def _runs(layouts: Sequence[Layout]) -> list[tuple[int, int]]:
    """Units [start, stop) of each block."""
    runs: list[tuple[int, int]] = []
    for index, layout in enumerate(layouts):
        joins = index and layout.alone is not None and layout.alone == layouts[index - 1].alone
        if joins:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs
