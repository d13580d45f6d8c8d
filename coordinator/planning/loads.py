"""What one tile of a block computes, reads and owns, without computing its extent.

Tiles of maps are computed from the geometry's arrays, other tiles from their `UnitTile`; both are
cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.costs.devices import Cluster
from coordinator.planning.layouts import Computing, UnitTile, divider_of
from coordinator.planning.splits import Splits
from coordinator.planning.sweeps import Floats
from coordinator.planning.tables import Tables
from models.boxes import Box, Span
from models.graph import COLS, ROWS, Graph
from models.tiles import MapTile
from models.units import Network
from models.worked import block_worked

Part = MapTile | UnitTile
# Tiles by device, as an index into the cluster's.
Shares = tuple[tuple[int, Part], ...]
# Ranges of a tensor along every dimension except the first, unless its rows lie there.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What one tile computes, reads and owns; `summed` if it owns a partial sum."""

    compute_s: float
    reads: Mapping[str, Ranges]
    owns: Mapping[str, Ranges]
    read_bytes: Mapping[str, int]
    own_bytes: Mapping[str, int]
    weight_bytes: int
    summed: bool = False


class Loads:
    """The loads of one network's tiles on one cluster's devices."""

    def __init__(self, network: Network, cluster: Cluster, tables: Tables) -> None:
        self.network, self.cluster, self.tables = network, cluster, tables
        self.geometry = tables.geometry
        places = {device.id: d for d, device in enumerate(tables.devices)}
        # Tables have their own order of devices.
        self.rank = [places[device.id] for device in cluster.devices]
        self._loads: dict[object, Load] = {}
        self._left: dict[tuple[int, int], Sequence[int]] = {}
        self._rates: dict[int, tuple[Floats, Floats]] = {}
        self._wholes: dict[tuple[int, int], tuple[UnitTile, int]] = {}
        tensors = network.graph.tensors
        self._itemsize = {n: info.wire_itemsize * info.read_share for n, info in tensors.items()}

    def whole(self, start: int, end: int) -> Part:
        """The tile that is the whole block."""
        splits = self.geometry.splits[end]
        if splits is not None and start >= splits.lowest:
            return MapTile(Span(0, splits.height), Span(0, splits.width))
        return self._whole_tile(start, end)[0]

    def load(self, start: int, end: int, d: int, part: Part) -> Load:
        """The load of a tile of the block between two marks, on device `d`."""
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
        assert splits is not None, "only blocks that can be split have tiles of maps"
        m, kind = start - splits.lowest, self.tables.kind_of(self.rank[d])
        growth, fixed = self.rates_of(end)
        first = splits.firsts[m]
        elements = splits.groups.elements(tile, first)
        compute_s = float(fixed[self.rank[d], m] + (growth[kind, first:] * elements).sum())
        assert compute_s >= 0, "tiles take no negative time"
        reads, owns = {}, {}
        entering = splits.entering[m]
        for t, name in enumerate(splits.input_names[entering], entering.start):
            reads[name] = self._ranges(name, splits.inputs.ranges(t, tile))
        for t in self._leaving(start, end, splits):
            name, (rows, cols) = splits.output_names[t], splits.outputs.ranges(t, tile)
            if rows[1] > rows[0] and cols[1] > cols[0]:
                owns[name] = self._ranges(name, (rows, cols))
        before = self.geometry.weight_bytes_before
        return self._sized(compute_s, reads, owns, int(before[end] - before[start]), summed=False)

    def _leaving(self, start: int, end: int, splits: Splits) -> Sequence[int]:
        """Which of its outputs the block computes, in the order of the network."""
        found = self._left.get((start, end))
        if found is None:
            producer, names = self.network.graph.producer, splits.output_names
            leaving = np.flatnonzero(splits.leaves[start - splits.lowest]).tolist()
            found = sorted(leaving, key=lambda t: producer[names[t]])
            self._left[start, end] = found
        return found

    def rates_of(self, end: int) -> tuple[Floats, Floats]:
        """For blocks that end at a mark: seconds per element by kind of device, and constants by
        device of the tables and mark.
        """
        found = self._rates.get(end)
        if found is None:
            splits = self.geometry.splits[end]
            assert splits is not None
            growth, fixed = self.tables.growth(splits), self.tables.constants(splits, end)
            found = self._rates[end] = (growth, fixed)
        return found

    def _ranges(self, name: str, map_ranges: tuple[tuple[int, int], tuple[int, int]]) -> Ranges:
        graph = self.network.graph
        ranges = [(0, size) for size in graph.shape(name)]
        for which, part in zip((ROWS, COLS), map_ranges, strict=True):
            axis = graph.axis(name, which)
            if axis is not None:
                ranges[axis] = part
        return _shortened(graph, name, ranges)

    def _tile_load(self, start: int, end: int, d: int, tile: UnitTile) -> Load:
        costs = self.cluster.devices[d].costs
        graph = self.network.graph
        reads = {name: _shortened(graph, name, box) for name, box in tile.reads.items()}
        owns = {name: _shortened(graph, name, box) for name, box in tile.boxes.items()}
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
        read_bytes = {name: self.bytes_of(name, each) for name, each in reads.items()}
        own_bytes = {name: self.bytes_of(name, each) for name, each in owns.items()}
        return Load(compute_s, reads, owns, read_bytes, own_bytes, weight_bytes, summed)

    def _whole_tile(self, start: int, end: int) -> tuple[UnitTile, int]:
        found = self._wholes.get((start, end))
        if found is None:
            marks, network = self.geometry.marks, self.network
            names = network.outputs(marks[start], marks[end])
            boxes = {name: Box.whole(network.graph.shape(name)) for name in names}
            worked = block_worked(network, marks[start], marks[end], boxes)
            before = self.geometry.weight_bytes_before
            tile = UnitTile(boxes, worked.reach.inputs, Computing(lambda: worked.works))
            if marks[end] - marks[start] == 1:
                tile = divider_of(network).whole(network.units[marks[start]])
            found = self._wholes[start, end] = (tile, int(before[end] - before[start]))
        return found

    def live_bytes(self, start: int, end: int, part: Part, load: Load) -> float:
        """Bytes that a tile's task reads and yields, and that its largest node needs."""
        moved = sum(load.read_bytes.values()) + sum(load.own_bytes.values())
        if isinstance(part, UnitTile):
            return moved + max(each.input_bytes + each.output_bytes for each in part.work)
        splits = self.geometry.splits[end]
        assert splits is not None
        elements = splits.groups.elements(part)
        nodes, element_bytes = self.geometry.moved
        first, stop = np.searchsorted(nodes, self.geometry.node_marks[start : end + 1])[[0, -1]]
        groups = self.geometry.groups[first:stop] - splits.chosen.start
        size, nodes = element_bytes[first:stop] * elements[groups], nodes[first:stop]
        return moved + float(np.bincount(nodes - nodes[0], size).max())

    def bytes_of(self, name: str, ranges: Ranges) -> int:
        """Bytes of these ranges of a tensor."""
        return self.common_bytes(name, ranges, ranges)

    def common_bytes(self, name: str, one: Ranges, other: Ranges) -> int:
        """Bytes of what two boxes of a tensor have in common."""
        size = self._itemsize[name]
        for (a, b), (c, d) in zip(one, other, strict=True):
            length = (b if b < d else d) - (a if a > c else c)
            if length <= 0:
                return 0
            size *= length
        return int(size)


def _shortened(graph: Graph, name: str, ranges: Iterable[tuple[int, int]]) -> Ranges:
    every = tuple(ranges)
    return every if graph.axis(name, ROWS) == 0 else every[1:] or ((0, 1),)
