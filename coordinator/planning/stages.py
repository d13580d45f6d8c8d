"""Blocks with tiles as a search handles them: seconds, bytes and boxes, without extents.

A `Stage` is a block between two marks with the tiles that run it; a draft is a sequence of stages
that make a network. What tiles of maps read and compute comes from the geometry's arrays, what
other tiles do from their `UnitTile`; both are remembered, and so are the pieces that one stage
passes to another. A draft's cost is then the event model of `pipeline` over a few hundred numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.devices import Cluster
from coordinator.planning.layouts import UnitTile, divider_of
from coordinator.planning.memory import PROCESS_BYTES, PROGRAM_BYTES
from coordinator.planning.pipeline import REQUEST, Read, Step, latency_s
from coordinator.planning.sweeps import Floats
from coordinator.planning.tables import Tables
from models.boxes import Box, Span
from models.geometry import extent
from models.tiles import MapTile
from models.units import Network
from models.work import Work, works

Part = MapTile | UnitTile
# Tiles by device, as an index into the cluster's.
Shares = tuple[tuple[int, Part], ...]
# Ranges of a tensor along every dimension but the batch.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What one tile computes, reads and owns; `summed` if what it owns is a partial sum."""

    compute_s: float
    reads: Mapping[str, Ranges]
    owns: Mapping[str, Ranges]
    read_bytes: Mapping[str, int]
    own_bytes: int
    weight_bytes: int
    summed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The block between marks `start` and `end` on these devices."""

    start: int
    end: int
    shares: Shares
    loads: tuple[Load, ...]
    barrier: bool = False
    direct: bool = False

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that compute, in the order of their tiles."""
        return tuple(d for d, _ in self.shares)

    @property
    def tensors(self) -> set[str]:
        """What its tiles read."""
        return {name for load in self.loads for name in load.reads}


Draft = tuple[Stage, ...]
# A tensor, (tile, bytes) of those that make it, whether they are sums, its place among outputs.
_Piece = tuple[str, tuple[tuple[int, int], ...], bool, int]


class Stages:
    """Makes the stages of one network on one cluster, and costs drafts of them."""

    def __init__(self, network: Network, cluster: Cluster, tables: Tables) -> None:
        self.network, self.cluster, self.tables = network, cluster, tables
        self.geometry = tables.geometry
        places = {device.id: d for d, device in enumerate(tables.devices)}
        # Tables have their own order of devices.
        self.rank = [places[device.id] for device in cluster.devices]
        self._stages: dict[object, Stage] = {}
        self._loads: dict[object, Load] = {}
        self._pieces: dict[tuple[Stage, Stage], list[list[_Piece]]] = {}
        self._costs: dict[Draft, float] = {}
        self._rates: dict[int, tuple[Floats, Floats, list[int]]] = {}
        self._wholes: dict[tuple[int, int], tuple[UnitTile, int]] = {}
        self._known: dict[object, list[Step]] = {}
        self._outputs = frozenset(network.graph.outputs)
        self._itemsize = {name: info.itemsize for name, info in network.graph.tensors.items()}
        self.evaluations = 0

    def stage(
        self, start: int, end: int, shares: Shares, *, barrier: bool = False, direct: bool = False
    ) -> Stage:
        """The stage of these tiles; the same object for the same arguments."""
        key = (start, end, shares, barrier, direct)
        found = self._stages.get(key)
        if found is None:
            loads = tuple(self._load(start, end, d, part) for d, part in shares)
            found = self._stages[key] = Stage(start, end, shares, loads, barrier, direct)
        return found

    def latency_s(self, draft: Draft) -> float:
        """What the event simulator predicts of a draft."""
        found = self._costs.get(draft)
        if found is None:
            self.evaluations += 1
            steps, last = self._steps(draft)
            found = self._costs[draft] = latency_s(steps, self.cluster, last)
        return found

    def overflow_bytes(self, draft: Draft) -> float:
        """Bytes beyond the memory of devices that a draft asks for, summed over devices: weights
        and programs of all stages, and what lives in the largest task [memory.Need].
        """
        return sum(self.overflows(draft).values())

    def overflows(self, draft: Draft) -> dict[int, float]:
        """The same by device; only those with too little memory."""
        held: dict[int, float] = {}
        most: dict[int, float] = {}
        for stage in draft:
            for (d, part), load in zip(stage.shares, stage.loads, strict=True):
                if self.cluster.devices[d].memory_bytes:
                    held[d] = held.get(d, PROCESS_BYTES) + load.weight_bytes + PROGRAM_BYTES
                    live = self._live_bytes(stage, part, load)
                    most[d] = max(most.get(d, 0.0), live)
        over = {d: held[d] + most[d] - self.cluster.devices[d].memory_bytes for d in held}
        return {d: size for d, size in over.items() if size > 0}

    def whole(self, start: int, end: int) -> Part:
        """The tile that is all of a block."""
        splits = self.geometry.splits[end]
        if splits is not None and start >= splits.lowest:
            return MapTile(Span(0, splits.height), Span(0, splits.width))
        return self._whole_tile(start, end)[0]

    # ------------------------------------------------------------ loads

    def _load(self, start: int, end: int, d: int, part: Part) -> Load:
        key = (start, end, d, part)
        found = self._loads.get(key)
        if found is None:
            if isinstance(part, MapTile):
                found = self._map_load(start, end, d, part)
            else:
                found = self._tile_load(start, end, d, part)
            self._loads[key] = found
        return found

    def _map_load(self, start: int, end: int, d: int, tile: MapTile) -> Load:
        splits = self.geometry.splits[end]
        assert splits is not None, "only maps have tiles of maps"
        m, kind = start - splits.lowest, self.tables.kind_of(self.rank[d])
        growth, fixed, firsts = self.rates_of(end)
        elements = splits.quantities.elements(tile)[firsts[m] :]
        compute_s = float(fixed[self.rank[d], m] + growth[kind, firsts[m] :] @ elements)
        reads, owns = {}, {}
        for t in np.flatnonzero(splits.enters[m]):
            reads[splits.input_names[t]] = self._ranges(
                splits.input_names[t], splits.inputs.ranges(int(t), tile)
            )
        producer = self.network.graph.producer
        leaving = np.flatnonzero(splits.leaves[m])
        for t in sorted(leaving, key=lambda t: producer[splits.output_names[t]]):
            name, (rows, cols) = splits.output_names[t], splits.outputs.ranges(int(t), tile)
            if rows[1] > rows[0] and cols[1] > cols[0]:
                owns[name] = self._ranges(name, (rows, cols))
        before = self.geometry.weight_bytes_before
        return self._sized(compute_s, reads, owns, int(before[end] - before[start]), summed=False)

    def rates_of(self, end: int) -> tuple[Floats, Floats, list[int]]:
        """Of blocks that end at a mark: seconds per element by kind, constants by device of the
        tables and mark, and each mark's first quantity."""
        found = self._rates.get(end)
        if found is None:
            splits = self.geometry.splits[end]
            assert splits is not None
            firsts = [int(q) for q in splits.within.argmax(axis=1)]
            growth, fixed = self.tables.growth(splits), self.tables.constants(splits, end)
            found = self._rates[end] = (growth, fixed, firsts)
        return found

    def _ranges(self, name: str, map_ranges: tuple[tuple[int, int], tuple[int, int]]) -> Ranges:
        shape = self.network.graph.shape(name)
        every = ((0, shape[1]) if len(shape) > 1 else (0, 1), *map_ranges)
        return every[: max(1, len(shape) - 1)]

    def _tile_load(self, start: int, end: int, d: int, tile: UnitTile) -> Load:
        costs = self.cluster.devices[d].costs
        reads = {name: _ranges_of(box) for name, box in tile.reads.items()}
        owns = {name: _ranges_of(box) for name, box in tile.boxes.items()}
        whole, weights = self._wholes.get((start, end), (None, 0))
        held = weights if whole is tile else tile.weight_bytes
        summed = tile.part is not None
        return self._sized(costs.block_s(tile.work), reads, owns, held, summed=summed)

    def _sized(
        self,
        compute_s: float,
        reads: Mapping[str, Ranges],
        owns: Mapping[str, Ranges],
        weight_bytes: int,
        *,
        summed: bool,
    ) -> Load:
        read_bytes = {name: self._bytes(name, each) for name, each in reads.items()}
        own_bytes = sum(self._bytes(name, each) for name, each in owns.items())
        return Load(compute_s, reads, owns, read_bytes, own_bytes, weight_bytes, summed)

    def _whole_tile(self, start: int, end: int) -> tuple[UnitTile, int]:
        found = self._wholes.get((start, end))
        if found is None:
            marks, network = self.geometry.marks, self.network
            nodes = network.nodes(marks[start], marks[end])
            names = network.outputs(marks[start], marks[end])
            boxes = {name: Box.whole(network.graph.shape(name)) for name in names}
            reach = extent(network.graph, nodes, boxes)
            work: Sequence[Work] = works(network.graph, nodes, reach)
            before = self.geometry.weight_bytes_before
            tile = UnitTile(boxes, reach.inputs, tuple(work))
            if marks[end] - marks[start] == 1:
                tile = divider_of(network).whole(network.units[marks[start]])
            found = self._wholes[start, end] = (tile, int(before[end] - before[start]))
        return found

    def _live_bytes(self, stage: Stage, part: Part, load: Load) -> float:
        """What a tile's task reads and yields, and what its largest node does."""
        moved = sum(load.read_bytes.values()) + load.own_bytes
        if isinstance(part, UnitTile):
            return moved + max(each.input_bytes + each.output_bytes for each in part.work)
        splits = self.geometry.splits[stage.end]
        assert splits is not None
        first = self.rates_of(stage.end)[2][stage.start - splits.lowest]
        every = self.geometry.quantities[splits.chosen][first:]
        size = np.array([each.input_bytes + each.output_bytes for each in every])
        size *= splits.quantities.elements(part)[first:]
        nodes = np.array([each.node for each in every])
        return moved + float(np.bincount(nodes - nodes[0], size).max())

    # ------------------------------------------------------------ steps

    def _steps(self, draft: Draft) -> tuple[list[Step], list[int]]:
        steps: list[Step] = []
        last: list[int] = []
        made: dict[str, tuple[Stage, int]] = {}
        outputs = self._outputs
        for index, stage in enumerate(draft):
            offset = len(steps)
            tensors = stage.loads[0].reads if len(stage.loads) == 1 else stage.tensors
            found = dict.fromkeys(made[name] for name in tensors if name in made)
            sources = tuple(sorted(found, key=lambda each: each[1]))
            key = (stage, index, sources)
            if key not in self._known:
                self._known[key] = self._stage_steps(index, stage, sources)
            steps += self._known[key]
            for tile, load in enumerate(stage.loads):
                if not outputs.isdisjoint(load.owns):
                    last.append(offset + tile)
                for name in load.owns:
                    made[name] = (stage, offset)
        return steps, last

    def _stage_steps(
        self, index: int, stage: Stage, sources: Sequence[tuple[Stage, int]]
    ) -> list[Step]:
        """A stage's tasks, given the stages that make its tensors and the first task of each."""
        steps = []
        for tile, (d, load) in enumerate(zip(stage.devices, stage.loads, strict=True)):
            reads, found = [], set()
            for source, first in sources:
                for name, pieces, sums, place in self._passed(source, stage)[tile]:
                    found.add(name)
                    moved = tuple((first + k, size) for k, size in pieces)
                    reads.append(Read(load.read_bytes[name], moved, sums, place))
            for name, size in load.read_bytes.items():
                if name not in found:
                    reads.append(Read(size, ((REQUEST, size),)))
            steps.append(
                Step(
                    index,
                    d,
                    load.compute_s,
                    load.own_bytes,
                    tuple(reads),
                    stage.barrier,
                    stage.direct,
                )
            )
        return steps

    def _passed(self, source: Stage, stage: Stage) -> list[list[_Piece]]:
        """Per tile of `stage`: the tensors of `source` that it reads, in pieces by tile there."""
        found = self._pieces.get((source, stage))
        if found is None:
            found = [self._pieces_for(source, load) for load in stage.loads]
            self._pieces[source, stage] = found
        return found

    def _pieces_for(self, source: Stage, load: Load) -> list[_Piece]:
        found: list[_Piece] = []
        for name, wanted in load.reads.items():
            pieces = []
            for place, other in enumerate(source.loads):
                own = other.owns.get(name)
                size = 0 if own is None else self._bytes(name, _common(own, wanted))
                if size:
                    pieces.append((place, size))
            if pieces:
                place = list(source.loads[pieces[0][0]].owns).index(name)
                found.append((name, tuple(pieces), source.loads[0].summed, place))
        return found

    def _bytes(self, name: str, ranges: Ranges) -> int:
        size = self._itemsize[name]
        for start, stop in ranges:
            if stop <= start:
                return 0
            size *= stop - start
        return size


def _common(one: Ranges, other: Ranges) -> Ranges:
    return tuple(
        (a if a > c else c, b if b < d else d) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def _ranges_of(box: Box) -> Ranges:
    return tuple((span.start, span.stop) for span in box.spans[1:]) or ((0, 1),)
