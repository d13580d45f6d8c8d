"""Places weights: what is too heavy for the devices that a plan gives it goes to others.

Tiles of a map all hold the weights of their block, so these are held as often as there are tiles.
Blocks stay as planned as long as their devices have room. Otherwise one block after the other
becomes *stages*, first those that are too heavy for a device, then those of which most is held more
than once: runs of units on one device each, the one with the most room. A unit that is too heavy
for it is cut into slices of its channels, in proportion to the room that is left. At the end
nothing is held twice.

Devices hold about equal shares if they can, since requests that follow each other keep all stages
busy.
"""

import bisect
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache

from coordinator.costs.cluster import Cluster, Planner
from coordinator.planning.finish import finished
from coordinator.planning.geometry.layouts import Configuration, UnitTile, divider_of
from coordinator.planning.legal import check_plan
from coordinator.planning.plan_memory import (
    Need,
    holds_tile,
    larger_than_a_device,
    needs,
    overfilled,
    relaid_room_of,
    too_little_memory,
    weight_bytes,
    weight_room_bytes,
    weights_of,
)
from coordinator.planning.stage_groups import LEVELS, staged_in_groups
from coordinator.tasks.plan import Block, Plan, Tile
from models.cut.units import Network
from models.graph.graph import CHANNELS
from models.tensors.boxes import Box
from models.tensors.memory import (
    PEAK_OVER_WEIGHTS,
    PROCESS_BYTES,
    PROGRAM_BYTES,
    megabytes,
    memory_for_bytes,
)
from protos.errors import TooLittleMemory
from protos.wire.facts import DeviceId

# What programs need beside weights is estimated: by what is too much for a device, all get less, so
# many times.
_CORRECTIONS = 4


@dataclass(slots=True)
class _Room:
    """What is left on a device while weights are placed: bytes for `weights`, and of `memory` for
    everything. `relaid` is what its engine can lay out anew for one program, `activations` the most
    of any so far.
    """

    weights: float
    memory: float
    relaid: float
    activations: float = 0.0

    @property
    def left(self) -> float:
        """Bytes of weights that another program can have."""
        return max(0.0, min(self.weights, self.memory - PROGRAM_BYTES))

    def takes(self, tile: UnitTile, program: Sequence[UnitTile] = ()) -> bool:
        """Whether it has room for a tile as part of a program with others, or in its own."""
        relaid = sum(part.relaid_bytes for part in (*program, tile))
        fits = tile.weight_bytes <= self.weights and relaid <= self.relaid
        return fits and self._memory_for(tile, begins=not program) <= self.memory

    def take(self, tile: UnitTile, *, begins: bool) -> None:
        """Gives it the room."""
        self.memory -= self._memory_for(tile, begins=begins)
        self.weights -= tile.weight_bytes
        self.activations = max(self.activations, _activation_bytes(tile))

    def _memory_for(self, tile: UnitTile, *, begins: bool) -> float:
        more = max(0.0, _activation_bytes(tile) - self.activations)
        return tile.weight_bytes + more + begins * PROGRAM_BYTES


_Rooms = dict[DeviceId, _Room]


def within_memory(planner: Planner, *, in_groups: bool = True) -> Planner:
    """The planner, whose plans respect the devices' memory wherever weights can be placed so. What
    is too heavy is tried `in_groups` of devices, too.
    """

    def plan(network: Network, cluster: Cluster) -> Plan:
        _require_room(network, cluster)
        try:
            made = planner(network, cluster)
        except TooLittleMemory:
            free = tuple(replace(device, memory_bytes=0) for device in cluster.devices)
            made = planner(network, replace(cluster, devices=free))
        fitting = placed(made, network, cluster)
        found = [fitting]
        if in_groups and (fitting is not made or larger_than_a_device(network, cluster)):
            found += staged_in_groups(planner, network, cluster)
        return min(found, key=lambda plan: plan.predicted_latency_s)

    return plan


def _require_room(network: Network, cluster: Cluster) -> None:
    """Refuses what no plan can place, before one is searched for.

    Raises:
        TooLittleMemory: the weights are larger than what all devices have room for.
    """
    if not all(device.memory_bytes for device in cluster.devices):
        return
    held = weight_bytes(network)
    room = sum(max(0.0, weight_room_bytes(device)) for device in cluster.devices)
    if held > room:
        raise _missing(f"{network.name} has", held, "its devices have", room)


def placed(plan: Plan, network: Network, cluster: Cluster) -> Plan:
    """The plan if it fits; otherwise with as many of its blocks as there is room for, and stages in
    place of the others.

    Raises:
        IllegalPlan: it cannot be executed, whatever the memory.
        TooLittleMemory: how much is missing.
    """
    if not any(device.memory_bytes for device in cluster.devices):
        return plan
    check_plan(plan, network, cluster, memory=False)
    if not overfilled(network, cluster, plan):
        return plan
    blocks, changed = _Placing(plan, network, cluster).blocks()
    note = (
        f"{changed} of {len(plan.blocks)} blocks became stages and slices, so that every device "
        "holds only its share of the weights."
    )
    made = finished(plan.strategy, blocks, network, cluster, otherwise="no block needs its memory")
    return replace(made, notes=(*plan.notes, note))


class _Placing:
    """One plan's blocks on one cluster's devices."""

    def __init__(self, plan: Plan, network: Network, cluster: Cluster) -> None:
        self.plan, self.network, self.cluster = plan, network, cluster
        self._devices = {device.id: device for device in cluster.devices}
        self._divider = divider_of(network)
        self._wholes = [self._divider.whole(unit) for unit in network.units]
        self._held = [
            sum(weights_of(network, block, tile) for tile in block.tiles) for block in plan.blocks
        ]

    def blocks(self) -> tuple[list[Block], int]:
        """Blocks that fit, and how many of the plan's were changed: few."""
        every = range(len(self.plan.blocks))
        heavy = [k for k in every if self._is_too_heavy(self.plan.blocks[k])]
        others = [k for k in every if k not in set(heavy)]
        order = heavy + sorted(others, key=self._copied_bytes, reverse=True)

        @cache
        def fitting(count: int) -> list[Block] | None:
            # No device holds much more than an equal share if that is possible.
            staged = frozenset(order[:count])
            held = sum(size for k, size in enumerate(self._held) if k not in staged)
            held += sum(self._once_bytes(self.plan.blocks[k]) for k in staged)
            share = held / len(self._devices)
            fits = (self._corrected(staged, share * level) for level in LEVELS)
            return next((blocks for blocks in fits if blocks is not None), None)

        # The more blocks are stages, the less is held twice, but the worse stages may fit.
        counts = range(len(heavy), len(order) + 1)
        place = bisect.bisect_left(counts, True, key=lambda count: fitting(count) is not None)
        for count in counts[place:] or counts:
            if (blocks := fitting(count)) is not None:
                return blocks, count
        raise self._refusal()

    def _is_too_heavy(self, block: Block) -> bool:
        return not all(
            holds_tile(self.network, self._devices[tile.device], block, tile)
            for tile in block.tiles
        )

    def _copied_bytes(self, index: int) -> tuple[int, int]:
        """Bytes of a block that are held more than once, and all that are held."""
        held = self._held[index]
        return held - self._once_bytes(self.plan.blocks[index]), held

    def _once_bytes(self, block: Block) -> int:
        return sum(whole.weight_bytes for whole in self._wholes[block.start : block.stop])

    def _corrected(self, staged: Collection[int], most: float) -> list[Block] | None:
        """The same, if no device holds more than `most` bytes of weights."""
        margin = 0.0
        for _ in range(_CORRECTIONS):
            blocks = self._made(staged, self._rooms(staged, most, margin))
            if blocks is None:
                return None
            over = self._too_much_bytes(blocks)
            if not over:
                return blocks
            margin += over
        return None

    def _too_much_bytes(self, blocks: Sequence[Block]) -> float:
        made = replace(self.plan, blocks=tuple(blocks))
        over = overfilled(self.network, self.cluster, made)
        devices = ((need, self._devices[name]) for name, need in over.items())
        return max(
            (
                need.total_bytes(device.concurrency) - device.memory_bytes
                for need, device in devices
            ),
            default=0.0,
        )

    def _rooms(self, staged: Collection[int], most: float, margin: float) -> _Rooms:
        """What the blocks that stay as they are leave."""
        kept = tuple(block for k, block in enumerate(self.plan.blocks) if k not in staged)
        needed = needs(self.network, replace(self.plan, blocks=kept))
        rooms: _Rooms = {}
        for name, device in self._devices.items():
            need = needed.get(name, Need())
            held, activations = sum(need.weights.values()), need.activation_bytes
            used = held + activations + need.programs * PROGRAM_BYTES + PROCESS_BYTES + margin
            rooms[name] = _Room(
                min(weight_room_bytes(device), most) - held,
                device.memory_bytes - used if device.memory_bytes else float("inf"),
                relaid_room_of(device) - margin / PEAK_OVER_WEIGHTS,
                activations,
            )
        return rooms

    def _made(self, staged: Collection[int], rooms: _Rooms) -> list[Block] | None:
        """The same in these rooms."""
        kept = {
            name
            for k in range(len(self._held))
            if k not in staged
            for name in self.plan.blocks[k].devices
        }
        if any(min(rooms[name].weights, rooms[name].memory) < 0 for name in kept):
            return None
        found: list[Block] = []
        numbered = enumerate(self.plan.blocks)
        for changes, run in itertools.groupby(numbered, lambda pair: pair[0] in staged):
            blocks = [block for _, block in run]
            if not changes:
                # What a block reads may have moved to a device that others cannot reach.
                moved = ("none", "peer") if self.cluster.apart else ("none",)
                found += (
                    replace(block, exchange="host") if block.exchange in moved else block
                    for block in blocks
                )
                continue
            stages = self._stages(blocks[0].start, blocks[-1].stop, rooms)
            if stages is None:
                return None
            found += stages
        return found

    def _stages(self, start: int, stop: int, rooms: _Rooms) -> list[Block] | None:
        """Units on one device after the other; what they need is taken from `rooms`."""
        found: list[Block] = []
        home: DeviceId | None = None
        held: list[UnitTile] = []
        for unit in range(start, stop):
            whole = self._wholes[unit]
            if home is not None and not rooms[home].takes(whole, held):
                found.append(self._alone(unit - len(held), unit, home))
                home = None
            if home is None:
                held = []
                home = max(rooms, key=lambda name: rooms[name].left)
            if rooms[home].takes(whole, held):
                rooms[home].take(whole, begins=not held)
                held.append(whole)
                continue
            sliced = self._sliced(unit, rooms)
            if sliced is None:
                return None
            found.append(sliced)
            home = None
        return found if home is None else [*found, self._alone(stop - len(held), stop, home)]

    def _alone(self, start: int, stop: int, name: DeviceId) -> Block:
        shape, outputs = self.network.graph.shape, self.network.outputs(start, stop)
        tile = Tile(name, {output: Box.whole(shape(output)) for output in outputs})
        return Block(start, stop, (tile,), barrier=False)

    def _sliced(self, index: int, rooms: _Rooms) -> Block | None:
        """A unit in slices of its channels, on as many devices as possible."""
        unit, weights = self.network.units[index], self._wholes[index].weight_bytes
        if CHANNELS not in self._divider.splits(unit):
            return None
        left = {name: min(room.left, weights) for name, room in rooms.items() if room.left > 0}
        roomy = sorted(left, key=left.__getitem__, reverse=True)
        for count in range(len(roomy), 1, -1):
            shares = [left[name] for name in roomy[:count]]
            boxes = self._divider.divided(unit, Configuration(channels=count), shares) or ()
            tiles = [self._divider.tile(unit, box) for box in boxes]
            slices = [*zip(roomy, tiles, strict=False)]
            if slices and all(rooms[name].takes(tile) for name, tile in slices):
                for name, tile in slices:
                    rooms[name].take(tile, begins=True)
                made = tuple(Tile(name, tile.boxes) for name, tile in slices)
                return Block(index, index + 1, made, barrier=False)
        return None

    def _refusal(self) -> TooLittleMemory:
        """The error that says how much memory is missing, by the first reason that holds."""
        _require_room(self.network, self.cluster)
        name, every = self.network.name, range(len(self.plan.blocks))
        rooms = [max(0.0, weight_room_bytes(device)) for device in self.cluster.devices]
        sizes = [whole.weight_bytes for whole in self._wholes]
        for level in LEVELS:
            # As if weights were all that needs memory.
            most = level * sum(sizes) / len(rooms)
            made = self._made(every, self._rooms(every, most, -float("inf")))
            if made is not None:
                plan = replace(self.plan, blocks=tuple(made))
                over = overfilled(self.network, self.cluster, plan)
                return too_little_memory(self.network, self.cluster, over)
        unit = self.network.units[sizes.index(max(sizes))]
        if max(sizes) > max(rooms):
            return _missing(f"{unit.name} has", max(sizes), "the largest device has", max(rooms))
        listed = ", ".join(megabytes(room) for room in rooms)
        return _refused(f"the layers of {name} cannot be divided among rooms of {listed}")


def _missing(what: str, weights: float, where: str, room: float) -> TooLittleMemory:
    return _refused(
        f"{what} {megabytes(weights)} of weights, and {where} room for {megabytes(room)}: at least "
        f"{megabytes(memory_for_bytes(weights - room))} of memory are missing"
    )


def _refused(cause: str) -> TooLittleMemory:
    cure = "Add devices, or raise the workers' memory limit."
    return TooLittleMemory(cause=cause, cure=cure)


def _activation_bytes(tile: UnitTile) -> int:
    return max((work.input_bytes + work.output_bytes for work in tile.work), default=0)
