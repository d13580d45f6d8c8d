"""A plan's needs of a device's memory: weights, activations, sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.costs.cluster import Cluster, Device
from coordinator.tasks.plan import Block, Plan, Tile, tile_extent, tile_works
from models.cut.units import Network, layers_of
from models.tensors.memory import megabytes, needed_bytes, relaid_room_bytes, weights_room_bytes
from protos.errors import TooLittleMemory
from protos.wire.facts import DeviceId


@dataclass(slots=True)
class Need:
    """Bytes that one device needs for a plan. `largest` is its largest block; `relaid_bytes` are
    the most that the engine lays out anew for one program; `tensor_bytes` are those that its
    largest task reads and yields, `activation_bytes` these and its intermediate maps, `kept_bytes`
    what all tasks of a request yield.
    """

    weights: dict[str, int] = field(default_factory=dict)
    tensor_bytes: int = 0
    activation_bytes: int = 0
    kept_bytes: int = 0
    programs: int = 0
    largest: Block | None = None
    largest_bytes: int = 0
    relaid_bytes: int = 0

    def total_bytes(self, concurrency: int = 1) -> float:
        """Memory that the plan takes; activations are counted for `concurrency` tasks."""
        return needed_bytes(
            self.programs,
            sum(self.weights.values()),
            self.relaid_bytes,
            self.tensor_bytes,
            self.activation_bytes * concurrency,
            self.kept_bytes,
        )


def weight_bytes(network: Network) -> int:
    """Bytes of all weights that the network's nodes read, each counted once."""
    constants = network.graph.constants
    read = {name for node in network.graph.nodes for name in node.inputs} & constants.keys()
    return sum(constants[name].nbytes for name in read)


def weight_room_bytes(device: Device) -> float:
    """The most bytes of weights that a device can hold; a cap of 0 means that it is unknown."""
    return weights_room_bytes(device.memory_bytes) if device.memory_bytes else float("inf")


def larger_than_a_device(network: Network, cluster: Cluster) -> bool:
    """Whether some device has no room for all weights."""
    return weight_bytes(network) > min(map(weight_room_bytes, cluster.devices), default=0.0)


def relaid_room_of(device: Device) -> float:
    """The most of them that its engine can lay out anew for one program."""
    return relaid_room_bytes(device.memory_bytes) if device.memory_bytes else float("inf")


def holds(device: Device, weights: float, relaid: float) -> bool:
    """Whether a device can prepare and hold a program with so many bytes of weights, of which its
    engine lays out `relaid` anew.
    """
    return weights <= weight_room_bytes(device) and relaid <= relaid_room_of(device)


def holds_tile(network: Network, device: Device, block: Block, tile: Tile) -> bool:
    """The same of a tile's program."""
    relaid = sum(work.relaid_bytes for work in tile_works(network, block, tile))
    return holds(device, weights_of(network, block, tile), relaid)


def needs(network: Network, plan: Plan) -> dict[DeviceId, Need]:
    """What each device that takes part holds at once: the weights of all of its programs (each
    constant once), and the activations of its largest task.
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
    held = _weights(network, block, tile)
    for name, size in held.items():
        need.weights[name] = max(need.weights.get(name, 0), size)
    live = max(node.input_bytes + node.output_bytes for node in work)
    read, yielded = (
        sum(box.volume * graph.tensors[name].wire_itemsize for name, box in boxes.items())
        for boxes in (reach.inputs, tile.boxes)
    )
    moved = read + yielded
    need.kept_bytes += yielded
    need.tensor_bytes = max(need.tensor_bytes, moved)
    need.activation_bytes = max(need.activation_bytes, live + moved)
    need.programs += 1
    need.relaid_bytes = max(need.relaid_bytes, sum(node.relaid_bytes for node in work))
    if sum(held.values()) > need.largest_bytes or need.largest is None:
        need.largest, need.largest_bytes = block, sum(held.values())


def weights_of(network: Network, block: Block, tile: Tile) -> int:
    """Bytes of the weights that a tile's program holds."""
    return sum(_weights(network, block, tile).values())


def _weights(network: Network, block: Block, tile: Tile) -> dict[str, int]:
    """The same by constant."""
    reach = tile_extent(network, block, tile)
    graph, nodes = network.graph, network.nodes(block.start, block.stop)
    if tile.part is not None:
        return {nodes[-1].name: sum(work.weight_bytes for work in tile_works(network, block, tile))}
    held: dict[str, int] = {}
    for node, reads in zip(nodes, reach.reads, strict=True):
        for name, box in zip(node.inputs, reads, strict=False):
            if box is not None and name in graph.constants:
                size = box.volume * graph.tensors[name].itemsize
                held[name] = max(held.get(name, 0), size)
    return held


def overfilled(network: Network, cluster: Cluster, plan: Plan) -> dict[DeviceId, Need]:
    """Devices whose memory the plan exceeds."""
    capped = {device.id: device for device in cluster.devices if device.memory_bytes}
    found = needs(network, plan) if capped else {}
    return {
        name: found[name]
        for name, device in capped.items()
        if name in found and found[name].total_bytes(device.concurrency) > device.memory_bytes
    }


def too_little_memory(
    network: Network, cluster: Cluster, over: Mapping[DeviceId, Need]
) -> TooLittleMemory:
    """The error that names the device, the layer, and how much it needs, has and lacks."""
    device = max((cluster.device(name) for name in over), key=lambda device: device.memory_bytes)
    need = over[device.id]
    assert need.largest is not None
    layers = layers_of(network.units[need.largest.start : need.largest.stop])
    span = " to ".join(dict.fromkeys((layers[0], layers[-1]))) if layers else "its block"
    missing = need.total_bytes() - device.memory_bytes
    return TooLittleMemory(
        cause=f"{device.name} would need {megabytes(need.total_bytes())} and has "
        f"{megabytes(device.memory_bytes)}: {megabytes(missing)} are missing; {span} "
        f"holds {megabytes(need.largest_bytes)} of weights",
        cure="Add devices with more memory, or raise the workers' memory limit.",
    )
