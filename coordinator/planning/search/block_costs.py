"""Blocks with tiles as searches handle them: seconds, bytes and boxes, without extents.

A `Stage` is a block with its tiles; a draft is a sequence of stages that covers a network. Loads
are cached, and so are the pieces that one stage passes to another, so that a draft's cost is the
event model of `pipeline` over a few hundred numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import block_of
from coordinator.planning.geometry.layouts import Computing, UnitTile
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.search.tables import Tables
from coordinator.planning.search.tile_costs import BlockLoads, Loads, TileLoad, TileShares
from coordinator.planning.simulate.media import Machines
from coordinator.planning.simulate.pipeline import REQUEST, PipelineTask, latency_s
from coordinator.tasks.plan import Block, Plan, Tile, tile_extent, tile_works
from models.cut.units import Network
from models.tensors.memory import needed_bytes


@dataclass(frozen=True, eq=False)
class Stage:
    """Some `units` of the network on these devices, `between` two marks; None if it is a block of a
    plan, which may lie elsewhere.
    """

    units: range
    between: tuple[Mark, Mark] | None
    shares: TileShares
    block: BlockLoads
    barrier: bool = False
    direct: bool = False

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that compute, in the order of their tiles."""
        return tuple(d for d, _ in self.shares)

    @property
    def loads(self) -> tuple[TileLoad, ...]:
        """What its tiles compute, and the bytes that they read and own."""
        return self.block.tiles

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that its tiles read."""
        return tuple(self.block.reads)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that its tiles own; a small tile may own nothing of some."""
        return tuple(self.block.owns)


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes that a tile takes on its device, as in `memory.Need`."""

    weights: float
    relaid: float
    moved: float
    live: float
    yielded: float


PlanDraft = tuple[Stage, ...]
# A tensor: (tile, bytes) of its makers, whether these are partial sums, its place among outputs.
_Piece = tuple[str, tuple[tuple[int, int], ...], bool, int]

# Pieces that a task usually reads: its own, and of two neighbours.
_PIECES = 3


class Stages:
    """Makes the stages of one network on one cluster, and costs drafts of them."""

    def __init__(self, network: Network, cluster: Cluster, tables: Tables) -> None:
        self.network, self.cluster, self.tables = network, cluster, tables
        self.geometry = tables.geometry
        self.loads = Loads(network, cluster, tables)
        self._machines = Machines(cluster)
        self._stages: dict[object, Stage] = {}
        self._known_tiles: dict[object, tuple[TileShares, BlockLoads]] = {}
        self._blocks_met: dict[int, tuple[Block, Stage]] = {}
        self._pieces: dict[tuple[Stage, Stage], list[list[_Piece]]] = {}
        # Tasks simulated so far; messages beyond the usual few count as tasks that take as long.
        self.simulated = 0
        self._costs: dict[PlanDraft, float] = {}
        self._held: dict[Stage, list[tuple[int, _Held]]] = {}
        self._known: dict[object, Sequence[PipelineTask]] = {}
        # Pieces that the tasks of `_known` read, by their id.
        self._read_pieces: dict[int, int] = {}
        self._capped = any(device.memory_bytes for device in cluster.devices)
        self._outputs = frozenset(network.graph.results)
        self._places = {device.id: d for d, device in enumerate(cluster.devices)}

    def stage(
        self,
        start: Mark,
        end: Mark,
        shares: TileShares,
        *,
        barrier: bool = False,
        direct: bool = False,
    ) -> Stage:
        """The stage with these tiles; the same object for the same arguments."""
        key = (start, end, shares, barrier, direct)
        found = self._stages.get(key)
        if found is None:
            units = range(self.geometry.boundaries[start], self.geometry.boundaries[end])
            block = self._as_measured(units, shares, self.loads.of(start, end, shares))
            found = self._only(Stage(units, (start, end), shares, block, barrier, direct))
        return found

    def _only(self, made: Stage) -> Stage:
        """The one that was made first of equal stages."""
        between = made.between or (made.units,)
        return self._stages.setdefault((*between, made.shares, made.barrier, made.direct), made)

    def of_plan(self, plan: Plan) -> PlanDraft:
        """A plan as a draft: its stages may lie between any units, and their tiles themselves
        determine what they read and compute.
        """
        return tuple(map(self.of_block, plan.blocks))

    def of_block(self, block: Block) -> Stage:
        """A plan's block as a stage; the same object for the same tiles."""
        found = self._blocks_met.get(id(block))
        if found is None:
            # The block is kept, so that its id cannot be reused.
            found = self._blocks_met[id(block)] = block, self._stage_of(block)
        return found[1]

    def _stage_of(self, block: Block) -> Stage:
        tiles = tuple((tile.device, tuple(tile.boxes.items()), tile.part) for tile in block.tiles)
        key = (block.start, block.stop, tiles)
        known = self._known_tiles.get(key)
        if known is None:
            shares = tuple(
                (self._places[tile.device], unit_tile(self.network, block, tile))
                for tile in block.tiles
            )
            known = self._known_tiles[key] = shares, self.loads.of_units(shares)
        units, (tiled, loads) = range(block.start, block.stop), known
        loads = self._as_measured(units, tiled, loads)
        direct = block.exchange == "peer"
        return self._only(Stage(units, None, tiled, loads, block.barrier, direct))

    def _as_measured(self, units: range, shares: TileShares, block: BlockLoads) -> BlockLoads:
        """The loads of a block; of the whole network on one device, as that was measured."""
        (d, _), *others = shares
        unsplit_s = self.cluster.devices[d].unsplit_s
        if others or unsplit_s is None or len(units) < len(self.network.units):
            return block
        (tile,) = block.tiles
        return replace(block, tiles=(replace(tile, compute_s=unsplit_s),))

    def without_barriers(self, draft: PlanDraft) -> PlanDraft:
        """The same tiles without barriers."""
        return tuple(self._only(replace(slot, barrier=False)) for slot in draft)

    def blocks(self, draft: PlanDraft) -> list[Block]:
        """The blocks of a draft, as a plan has them."""
        devices = self.cluster.devices
        return [
            block_of(
                self.network,
                stage.units.start,
                stage.units.stop,
                [(devices[d], part) for d, part in stage.shares],
                barrier=stage.barrier,
                exchange="peer" if stage.direct else "host",
            )
            for stage in draft
        ]

    def latency_s(self, draft: PlanDraft) -> float:
        """The event simulator's prediction for a draft, by the rules of `pipeline`."""
        found = self._costs.get(draft)
        if found is None:
            steps = self._all_steps(draft)
            pieces = sum([self._read_pieces[id(block)] for block in steps])
            self.simulated += max(pieces // _PIECES, sum(map(len, steps)))
            found = self._costs[draft] = latency_s(steps, self._machines)
        return found

    def earliest_s(self, draft: PlanDraft) -> dict[str, float]:
        """The earliest seconds at which each tensor can be complete, if no task or message has to
        wait.
        """
        found: dict[str, float] = {}
        ends: list[float] = []
        for stage, block in zip(draft, self._all_steps(draft), strict=True):
            first = len(ends)
            for step in block:
                sources = (source for source, _, _ in step.pieces if source != REQUEST)
                begin = max((ends[first + k] for k in sources), default=0.0)
                ends.append(begin + step.compute_s)
            last = max(ends[first:])
            found.update((name, last) for name in stage.outputs)
        return found

    def overflow_bytes(self, draft: PlanDraft) -> float:
        """Bytes that a draft needs beyond the memory of its devices, summed: weights and programs
        of all stages, and the activations of the largest task [memory.Need].
        """
        return sum(self.overflows(draft).values()) if self._capped else 0.0

    def overflows(self, draft: PlanDraft) -> dict[int, float]:
        """The same by device, for devices with too little memory."""
        held: dict[int, list[_Held]] = {}
        for stage in draft:
            for d, tile in self._held_by(stage):
                held.setdefault(d, []).append(tile)
        over = {
            d: needed_bytes(
                len(tiles),
                sum(tile.weights for tile in tiles),
                max(tile.relaid for tile in tiles),
                max(tile.moved for tile in tiles),
                max(tile.live for tile in tiles),
                sum(tile.yielded for tile in tiles),
            )
            - self.cluster.devices[d].memory_bytes
            for d, tiles in held.items()
        }
        return {d: size for d, size in over.items() if size > 0}

    def _held_by(self, stage: Stage) -> list[tuple[int, _Held]]:
        """A stage's tiles on devices whose memory is capped."""
        found = self._held.get(stage)
        if found is None:
            found = self._held[stage] = []
            for (d, part), load in zip(stage.shares, stage.loads, strict=True):
                if self.cluster.devices[d].memory_bytes:
                    live = self.loads.live_bytes(stage.between, part, load)
                    yielded = sum(load.own_bytes.values())
                    moved = sum(load.read_bytes.values()) + yielded
                    tile = _Held(load.weight_bytes, load.relaid_bytes, moved, live, yielded)
                    found.append((d, tile))
        return found

    # ------------------------------------------------------------ steps

    def _all_steps(self, draft: PlanDraft) -> list[Sequence[PipelineTask]]:
        blocks: list[Sequence[PipelineTask]] = []
        made: dict[str, tuple[Stage, int]] = {}
        offset = 0
        for stage in draft:
            found = dict.fromkeys(made[name] for name in stage.tensors if name in made)
            sources = tuple((maker, first - offset) for maker, first in sorted(found, key=_first))
            key = (stage, sources)
            steps = self._known.get(key)
            if steps is None:
                steps = self._known[key] = self._steps(stage, sources)
                self._read_pieces[id(steps)] = sum(len(step.pieces) for step in steps)
            blocks.append(steps)
            made.update(dict.fromkeys(stage.outputs, (stage, offset)))
            offset += len(stage.loads)
        return blocks

    def _steps(self, stage: Stage, sources: Sequence[tuple[Stage, int]]) -> list[PipelineTask]:
        """A stage's tasks, given the stages that compute its tensors and the first task of each,
        relative to its own first task.
        """
        steps, outputs = [], [(name, name in self._outputs) for name in stage.outputs]
        for tile, (d, load) in enumerate(zip(stage.devices, stage.loads, strict=True)):
            pieces, sums, found = [], [], set()
            for source, first in sources:
                for name, parts, summed, place in self._passed(source, stage)[tile]:
                    found.add(name)
                    is_whole = summed and not stage.direct
                    if is_whole:
                        sums.append((tuple(first + k for k, _ in parts), load.read_bytes[name]))
                    pieces += [(first + k, place, 0 if is_whole else size) for k, size in parts]
            left = load.read_bytes.items()
            pieces += [(REQUEST, 0, size) for name, size in left if name not in found]
            steps.append(
                PipelineTask(
                    d,
                    load.compute_s,
                    tuple((load.own_bytes.get(name, 0), last) for name, last in outputs),
                    sum(load.read_bytes.values()),
                    tuple(pieces),
                    tuple(sums),
                    stage.barrier,
                    stage.direct,
                )
            )
        return steps

    def _passed(self, source: Stage, stage: Stage) -> list[list[_Piece]]:
        """For each tile of `stage`: the tensors of `source` that it reads, in pieces by
        tile there.
        """
        found = self._pieces.get((source, stage))
        if found is None:
            found = self._pieces[source, stage] = [[] for _ in stage.loads]
            summed = source.loads[0].summed
            for name, wanted in stage.block.reads.items():
                if name in source.block.owns:
                    place, owned = source.outputs.index(name), source.block.owns[name]
                    size = self.loads.common_bytes(name, wanted[:, None], owned[None])
                    for passed, sizes in zip(found, size.tolist(), strict=True):
                        pieces = tuple((k, size) for k, size in enumerate(sizes) if size)
                        if pieces:
                            passed.append((name, pieces, summed, place))
        return found


def _first(source: tuple[Stage, int]) -> int:
    return source[1]


def unit_tile(network: Network, block: Block, tile: Tile) -> UnitTile:
    """A plan's tile of any block, with what it reads and computes."""
    reads = tile_extent(network, block, tile).inputs
    computing = Computing(partial(tile_works, network, block, tile))
    return UnitTile(tile.boxes, reads, computing, tile.part)
