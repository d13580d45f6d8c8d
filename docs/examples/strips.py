"""A planner of your own: blocks of up to four layers, in strips as high as devices are fast."""

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import plan_of_blocks
from coordinator.tasks.plan import Block, Plan, Tile
from models.cut.tiles import MapTile, map_size, tile_boxes, weighted_spans, whole_map
from models.cut.units import Network
from models.tensors.boxes import Span

MOST_LAYERS = 4


def plan(network: Network, cluster: Cluster) -> Plan:
    """What every planner is: a function of the network and the cluster."""
    fastest = max(cluster.devices, key=lambda device: device.speed)
    blocks, start = [], 0
    while start < len(network.units):
        stop = start + 1
        if network.units[start].splits:
            while stop < len(network.units) and stop - start < MOST_LAYERS:
                if not network.units[stop].splits:
                    break
                stop += 1
            rows, cols = map_size(network, start, stop)
            spans = weighted_spans(rows, [device.speed for device in cluster.devices])
            parts = [MapTile(span, Span(0, cols)) for span in spans]
            placed = list(zip(cluster.devices, parts, strict=True))
        else:  # rows can't be computed apart: a fully connected layer, an unknown operator
            placed = [(fastest, whole_map(network, start, stop))]
        tiles = tuple(
            Tile(device.id, tile_boxes(network, start, stop, part))
            for device, part in placed
            if not part.is_empty
        )
        blocks.append(Block(start, stop, tiles, barrier=False))
        start = stop
    return plan_of_blocks("strips", blocks, network, cluster)
