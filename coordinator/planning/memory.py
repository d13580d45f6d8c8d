"""What a plan needs of a device's memory: weights, activations, sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.planning.devices import Device
from coordinator.planning.plan import Block, DeviceId, Plan, Tile, tile_extent, tile_works
from models.geometry import Extent
from models.units import Network

# A worker process before it holds anything (measured on x86-64: 108 MB resident, of which 48 MB
# are pages of libraries that the kernel can drop).
PROCESS_BYTES = 60_000_000
# One loaded program beyond its weights: graph, kernels, buffers of the runtime (measured: 6 MB
# for VGG-16's blocks, 10 MB for ResNet-50's).
PROGRAM_BYTES = 8_000_000


@dataclass(slots=True)
class Need:
    """Bytes that one device needs for a plan. `largest` names its largest block."""

    weights: dict[str, int] = field(default_factory=dict)
    activation_bytes: int = 0
    programs: int = 0
    largest: Block | None = None
    largest_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Everything together; activations of one task at a time."""
        return (
            PROCESS_BYTES
            + self.programs * PROGRAM_BYTES
            + sum(self.weights.values())
            + self.activation_bytes
        )


def weight_room_bytes(device: Device) -> float:
    """Bytes of weights that a device can hold at best; a cap of 0 means that none is known."""
    if not device.memory_bytes:
        return float("inf")
    return float(device.memory_bytes - PROCESS_BYTES - PROGRAM_BYTES)


def needs(network: Network, plan: Plan) -> dict[DeviceId, Need]:
    """Per device that takes part, what it holds at once: the weights of all of its programs
    (each constant once), and the activations of its largest task.
    """
    network = network.wired(plan.wire)
    found: dict[DeviceId, Need] = {}
    for block in plan.blocks:
        for tile in block.tiles:
            _add(found.setdefault(tile.device, Need()), network, block, tile)
    return found


def _add(need: Need, network: Network, block: Block, tile: Tile) -> None:
    graph = network.graph
    reach = tile_extent(network, block, tile)
    work = tile_works(network, block, tile)
    held = _weights(network, block, tile, reach)
    for name, size in held.items():
        need.weights[name] = max(need.weights.get(name, 0), size)
    live = max(each.input_bytes + each.output_bytes for each in work)
    passed = [*reach.inputs.items(), *tile.boxes.items()]
    moved = sum(box.volume * graph.tensors[name].wire_itemsize for name, box in passed)
    need.activation_bytes = max(need.activation_bytes, live + moved)
    need.programs += 1
    if sum(held.values()) > need.largest_bytes or need.largest is None:
        need.largest, need.largest_bytes = block, sum(held.values())


def _weights(network: Network, block: Block, tile: Tile, reach: Extent) -> dict[str, int]:
    """Bytes of each constant that a tile's program holds."""
    graph, nodes = network.graph, network.nodes(block.start, block.stop)
    if tile.part is not None:
        return {nodes[-1].name: sum(each.weight_bytes for each in tile_works(network, block, tile))}
    held: dict[str, int] = {}
    for node, reads in zip(nodes, reach.reads, strict=True):
        for name, box in zip(node.inputs, reads, strict=False):
            if box is not None and name in graph.constants:
                size = box.volume * graph.tensors[name].itemsize
                held[name] = max(held.get(name, 0), size)
    return held
