"""Whether a plan is legal for a network and cluster. Every plan is checked before it is executed,
whether it comes from a built-in planner, a plug-in, or a file.
"""

from collections.abc import Mapping, Sequence

from coordinator.costs.cluster import Cluster
from coordinator.planning.plan_memory import overfilled
from coordinator.tasks.plan import Block, Plan, Tile, tile_extent
from coordinator.tasks.task_graph import outline_plan
from models.cut.partial import summed_input
from models.cut.program import NetworkKey
from models.cut.units import Network
from models.graph.graph import COLS, ROWS
from models.tensors.boxes import Box, covers_exactly
from models.tensors.memory import megabytes
from protos.errors import Infeasible
from protos.wire.facts import DeviceId


class IllegalPlan(Infeasible):
    """A plan that can't be executed. `block` and `tile` are the indices of what is wrong, None if
    it is the plan as a whole.
    """

    code = "illegal_plan"

    def __init__(self, *, cause: str, block: int | None = None, tile: int | None = None) -> None:
        super().__init__(
            cause=f"the plan is not legal: {cause}",
            cure="Make a new plan for this network and these devices with `imbrex plan`.",
        )
        self.block = block
        self.tile = tile

    def by(self, where: str) -> "IllegalPlan":
        """The same of a planner that is defined there."""
        found = IllegalPlan(cause="", block=self.block, tile=self.tile)
        found.cause = f"{self.cause} (its planner: {where})"
        found.cure = "Correct the planner, or use another strategy; docs/planners.md has the rules"
        return found


def check_plan(plan: Plan, network: Network, cluster: Cluster, *, memory: bool = True) -> None:
    """Accepts a plan that can be executed and yields the network's outputs.

    Raises:
        IllegalPlan: with the first block and tile that are wrong.
    """
    if plan.model != network.name:
        raise IllegalPlan(cause=f"it is for {plan.model!r}, not for {network.name!r}")
    _check_sequence(plan.blocks, network)
    known = {device.id for device in cluster.devices}
    for index, block in enumerate(plan.blocks):
        _check_block(index, block, network, known)
    _check_exchange(plan.blocks, network)
    if cluster.apart:
        _check_reach(plan, network, cluster)
    _check_limits(plan, network, cluster)
    if memory:
        _check_memory(plan, network, cluster)


def _check_sequence(blocks: Sequence[Block], network: Network) -> None:
    expected = 0
    for index, block in enumerate(blocks):
        if block.start != expected or block.stop <= block.start:
            raise IllegalPlan(
                cause=f"block {index} is units [{block.start}, {block.stop}), but unit "
                f"{expected} is next",
                block=index,
            )
        expected = block.stop
    if expected != len(network.units):
        raise IllegalPlan(
            cause=f"it ends at unit {expected} of {len(network.units)}", block=len(blocks) - 1
        )


def _check_block(index: int, block: Block, network: Network, known: set[DeviceId]) -> None:
    if not block.tiles:
        raise IllegalPlan(cause=f"block {index} has no tile", block=index)
    for k, tile in enumerate(block.tiles):
        if tile.device not in known:
            raise _wrong(index, k, f"is on {tile.device!r}, which is not in the cluster")
    outputs = network.outputs(block.start, block.stop)
    if any(tile.part is not None for tile in block.tiles):
        _check_sums(index, block, network, outputs)
        return
    for k, tile in enumerate(block.tiles):
        _check_boxes(index, k, tile, network, outputs)
    _check_rows(index, block, network)
    for name in outputs:
        whole = Box.whole(network.graph.shape(name))
        parts = [tile.boxes[name] for tile in block.tiles if name in tile.boxes]
        if not covers_exactly(parts, whole):
            raise IllegalPlan(
                cause=f"the tiles of block {index} do not cover {name!r} exactly once", block=index
            )


def _check_boxes(index: int, k: int, tile: Tile, network: Network, outputs: Sequence[str]) -> None:
    if not any(not box.is_empty for box in tile.boxes.values()):
        raise _wrong(index, k, "is empty")
    for name, box in tile.boxes.items():
        if name not in outputs:
            raise _wrong(index, k, f"has {name!r}, which its block does not yield")
        shape = network.graph.shape(name)
        if len(box) != len(shape) or box.is_empty or not Box.whole(shape).contains(box):
            raise _wrong(index, k, f"has {box} of {name!r}, whose shape is {shape}")


def _check_rows(index: int, block: Block, network: Network) -> None:
    """No tile is a part of the rows or columns of a map that can't be divided."""
    whole = [unit.name for unit in network.units[block.start : block.stop] if not unit.is_divisible]
    for k, tile in enumerate(block.tiles if whole else ()):
        for name, box in tile.boxes.items():
            axes = (network.graph.axis(name, which) for which in (ROWS, COLS))
            sizes = network.graph.shape(name)
            if any(len(box[axis]) != sizes[axis] for axis in axes if axis is not None):
                raise _wrong(
                    index, k, f"has a part of the map of {whole[0]!r}, which can't be split"
                )


def _check_sums(index: int, block: Block, network: Network, outputs: Sequence[str]) -> None:
    """Partial sums: every tile owns the whole output, and together their parts cover the input."""
    nodes = network.nodes(block.start, block.stop)
    tensor = summed_input(network.graph, nodes)
    if tensor is None:
        raise IllegalPlan(
            cause=f"block {index} sums parts, but is not a fully connected layer", block=index
        )
    for k, tile in enumerate(block.tiles):
        whole = {name: Box.whole(network.graph.shape(name)) for name in outputs}
        if tile.part is None or dict(tile.boxes) != whole:
            raise _wrong(index, k, "is not a partial sum of the whole output, as others are")
    parts = [tile.part for tile in block.tiles if tile.part is not None]
    if not covers_exactly(parts, Box.whole(network.graph.shape(tensor))):
        raise IllegalPlan(
            cause=f"the parts of block {index} do not cover {tensor!r} exactly once", block=index
        )


def _check_exchange(blocks: Sequence[Block], network: Network) -> None:
    """Inputs are where the block's exchange expects them: with `none` on the device itself, with
    `peer` on the devices that computed them, without partial sums, which only the host adds up (the
    request's inputs always come from the host). Data from peers is not merged, so such a block
    can't have a barrier.
    """
    owned: dict[str, list[tuple[DeviceId, Box]]] = {}
    sums: set[str] = set()
    for index, block in enumerate(blocks):
        if block.exchange == "peer" and block.barrier:
            raise IllegalPlan(
                cause=f"block {index} has a barrier, which blocks with peer exchange cannot have",
                block=index,
            )
        for k, tile in enumerate(block.tiles if block.exchange != "host" else ()):
            reads = tile_extent(network, block, tile).inputs
            if block.exchange == "peer":
                _check_peers(index, k, reads, sums)
            else:
                _check_own(index, k, tile, reads, owned)
        for tile in block.tiles:
            for name, box in tile.boxes.items():
                owned.setdefault(name, []).append((tile.device, box))
            if tile.reduce:
                sums.update(tile.boxes)


def _check_peers(index: int, k: int, reads: Mapping[str, Box], sums: set[str]) -> None:
    if index == 0:
        raise _wrong(index, k, "gets its input from peers, but no block comes before it")
    for name in reads:
        if name in sums:
            raise _wrong(index, k, f"gets partial sums of {name!r} from peers: no task adds them")


def _check_own(
    index: int,
    k: int,
    tile: Tile,
    reads: Mapping[str, Box],
    owned: Mapping[str, list[tuple[DeviceId, Box]]],
) -> None:
    for name, box in reads.items():
        held = [own for device, own in owned.get(name, ()) if device == tile.device]
        if sum(own.intersect(box).volume for own in held) < box.volume:
            raise _wrong(
                index, k, f"exchanges nothing, but {box} of {name!r} is not all on {tile.device!r}"
            )


def _check_reach(plan: Plan, network: Network, cluster: Cluster) -> None:
    """No device sends anything to one that it cannot reach."""
    tasks = outline_plan(plan, network).tasks
    for task in tasks:
        for route in (route for output in task.outputs for route in output.routes):
            reader = tasks[route.reader]
            if frozenset((task.device, reader.device)) in cluster.apart:
                raise IllegalPlan(
                    cause=f"block {reader.block} gets halos on {reader.device!r} from "
                    f"{task.device!r}, which cannot reach each other",
                    block=reader.block,
                )


def _check_limits(plan: Plan, network: Network, cluster: Cluster) -> None:
    """Devices with limits compute a whole network that they take, or nothing."""
    is_whole = len(plan.blocks) == 1 and len(plan.blocks[0].tiles) == 1
    for device in cluster.devices:
        if device.limits is None or device.id not in plan.devices:
            continue
        if not is_whole or not device.limits.take(*NetworkKey.of(network.graph)):
            raise IllegalPlan(
                cause=f"{device.name!r} takes {device.limits}",
                block=next(k for k, b in enumerate(plan.blocks) if device.id in b.devices),
            )


def _check_memory(plan: Plan, network: Network, cluster: Cluster) -> None:
    for name, need in overfilled(network, cluster, plan).items():
        assert need.largest is not None
        device = cluster.device(name)
        raise IllegalPlan(
            cause=f"it needs {megabytes(need.total_bytes(device.concurrency))} on {name!r}, "
            f"which has {megabytes(device.memory_bytes)}",
            block=plan.blocks.index(need.largest),
        )


def _wrong(block: int, tile: int, what: str) -> IllegalPlan:
    return IllegalPlan(cause=f"tile {tile} of block {block} {what}", block=block, tile=tile)
