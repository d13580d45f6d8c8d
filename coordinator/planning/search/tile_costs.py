"""What the tiles of a block compute, read and own, without computing their extents.

Tiles of maps are computed from the geometry's arrays, all of a block at once; other tiles from
their `UnitTile`. Both are cached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.costs.cluster import Cluster
from coordinator.planning.geometry.box_arrays import common, stacked
from coordinator.planning.geometry.layouts import Computing, UnitTile, divider_of
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.splits import Splits
from coordinator.planning.search.tables import Rank, Tables
from models.cut.tile_work import block_work
from models.cut.tiles import MapTile
from models.cut.units import Network
from models.graph.graph import COLS, ROWS
from models.tensors.arrays import Floats, Ints
from models.tensors.boxes import Box, Span

AnyTile = MapTile | UnitTile
# Tiles by device, as an index into the cluster's.
TileShares = tuple[tuple[int, AnyTile], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TileLoad:
    """What one tile computes, and the bytes that it reads and owns, and of its weights, of which
    engines lay out `relaid_bytes` anew; `summed` if it owns a partial sum.
    """

    compute_s: float
    read_bytes: Mapping[str, int]
    own_bytes: Mapping[str, int]
    weight_bytes: int
    relaid_bytes: int
    summed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class BlockLoads:
    """The loads of a block's tiles, and the boxes of tensors that they read and own: [tile, axis,
    start or stop], all zeros where a tile has none.
    """

    tiles: tuple[TileLoad, ...]
    reads: Mapping[str, Ints]
    owns: Mapping[str, Ints]


class Loads:
    """The loads of one network's tiles on one cluster's devices."""

    def __init__(self, network: Network, cluster: Cluster, tables: Tables) -> None:
        self.network, self.cluster, self.tables = network, cluster, tables
        self.geometry = tables.geometry
        ranks = {device.id: Rank(d) for d, device in enumerate(tables.devices)}
        self.rank = [ranks[device.id] for device in cluster.devices]
        self._loads: dict[object, BlockLoads] = {}
        self._left: dict[tuple[Mark, Mark], Sequence[int]] = {}
        self._constants: dict[Mark, Floats] = {}
        self._wholes: dict[tuple[Mark, Mark], UnitTile] = {}
        tensors = network.graph.tensors
        self._itemsize = {n: info.wire_itemsize * info.read_share for n, info in tensors.items()}

    def whole(self, start: Mark, end: Mark) -> AnyTile:
        """The tile that is the whole block."""
        splits = self.geometry.splits[end]
        if splits is not None and start >= splits.lowest:
            return MapTile(Span(0, splits.height), Span(0, splits.width))
        return self._whole_tile(start, end)

    def of(self, start: Mark, end: Mark, shares: TileShares) -> BlockLoads:
        """The loads of these tiles of the block between two marks."""
        key = (start, end, shares)
        found = self._loads.get(key)
        if found is None:
            devices = [d for d, _ in shares]
            maps = [part for _, part in shares if isinstance(part, MapTile)]
            units = [(d, part) for d, part in shares if isinstance(part, UnitTile)]
            assert not maps or not units, "a block is divided in one way"
            whole = self._wholes.get((start, end))
            found = self._loads[key] = (
                self._of_maps(start, end, devices, maps)
                if maps
                else self.of_units(
                    units,
                    [
                        self._held_bytes(start, end)
                        if tile is whole
                        else (tile.weight_bytes, tile.relaid_bytes)
                        for _, tile in units
                    ],
                )
            )
        return found

    def _of_maps(
        self, start: Mark, end: Mark, devices: Sequence[int], tiles: Sequence[MapTile]
    ) -> BlockLoads:
        splits = self.geometry.splits[end]
        assert splits is not None, "only blocks that can be split have tiles of maps"
        m, rank = start - splits.lowest, [self.rank[d] for d in devices]
        first, places = splits.firsts[m], splits.places(tiles)
        growth = self.tables.growth(start, end, rank)
        work = growth.T * splits.groups.tiles(places, first)
        compute_s = self.constants(end)[rank, m] + work.sum(axis=0)
        assert (compute_s >= 0).all(), "tiles take no negative time"
        entering = splits.entering[m]
        read = range(entering.start, entering.stop)
        left = self._leaving(start, end, splits)
        names = [splits.output_names[t] for t in left]
        reads = self._boxes(splits.input_names[entering], splits.inputs.ranges(read, places))
        owns = self._boxes(names, splits.outputs.ranges(left, places))
        held = [self._held_bytes(start, end)] * len(tiles)
        return self._sized(compute_s.tolist(), reads, owns, held)

    def _held_bytes(self, start: Mark, end: Mark) -> tuple[int, int]:
        """Bytes of all weights of a block, and of those that engines lay out anew."""
        geometry = self.geometry
        both = (geometry.weight_bytes_before, geometry.relaid_bytes_before)
        weights, relaid = (int(before[end] - before[start]) for before in both)
        return weights, relaid

    def _boxes(self, names: Sequence[str], ranges: Ints) -> dict[str, Ints]:
        """Boxes of tensors, given the rows and columns of each, [tensor, tile, 2, 2]."""
        graph, found = self.network.graph, {}
        for name, parts in zip(names, ranges, strict=True):
            boxes = np.empty((len(parts), max(1, len(graph.shape(name))), 2), dtype=np.int64)
            boxes[:, :, 0] = 0
            boxes[:, :, 1] = graph.shape(name) or 1
            for part, which in enumerate((ROWS, COLS)):
                axis = graph.axis(name, which)
                if axis is not None:
                    boxes[:, axis] = parts[:, part]
            # A tile too small for a smaller tensor has none of it.
            boxes[(parts[:, :, 0] >= parts[:, :, 1]).any(axis=1)] = 0
            found[name] = boxes
        return found

    def of_units(
        self, shares: Sequence[tuple[int, UnitTile]], held: Sequence[tuple[int, int]] | None = None
    ) -> BlockLoads:
        """The loads of tiles that know themselves what they read and compute; `held` are the bytes
        of their weights, if that is known for less than by asking each.
        """
        tiles = [tile for _, tile in shares]
        known: dict[tuple[int, int], float] = {}
        compute_s = []
        for d, tile in shares:
            costs = self.cluster.devices[d].costs
            key = (id(costs), id(tile))
            if key not in known:
                known[key] = costs.block_s(tile.work)
            compute_s.append(known[key])
        return self._sized(
            compute_s,
            self._stacked([tile.reads for tile in tiles]),
            self._stacked([tile.boxes for tile in tiles]),
            held or [(tile.weight_bytes, tile.relaid_bytes) for tile in tiles],
            [tile.part is not None for tile in tiles],
        )

    def _stacked(self, boxes: Sequence[Mapping[str, Box]]) -> dict[str, Ints]:
        names = dict.fromkeys(name for box in boxes for name in box)
        axes = {name: max(1, len(self.network.graph.shape(name))) for name in names}
        return {name: stacked([box.get(name) for box in boxes], axes[name]) for name in names}

    def _sized(
        self,
        compute_s: Sequence[float],
        reads: Mapping[str, Ints],
        owns: Mapping[str, Ints],
        held: Sequence[tuple[int, int]],
        summed: Sequence[bool] = (),
    ) -> BlockLoads:
        read_bytes, own_bytes = self._by_tile(reads), self._by_tile(owns)
        none: Mapping[str, int] = {}
        tiles = tuple(
            TileLoad(
                seconds,
                read_bytes.get(k, none),
                own_bytes.get(k, none),
                *held[k],
                bool(summed and summed[k]),
            )
            for k, seconds in enumerate(compute_s)
        )
        return BlockLoads(tiles, reads, owns)

    def _by_tile(self, boxes: Mapping[str, Ints]) -> dict[int, dict[str, int]]:
        """Bytes of tensors by tile, of those that it has."""
        found: dict[int, dict[str, int]] = {}
        for name, box in boxes.items():
            sizes = self.common_bytes(name, box, box).tolist()
            for k in np.flatnonzero(box[:, :, 1].any(axis=1)).tolist():
                found.setdefault(k, {})[name] = sizes[k]
        return found

    def _leaving(self, start: Mark, end: Mark, splits: Splits) -> Sequence[int]:
        """Which of its outputs the block computes, in the order of the network."""
        found = self._left.get((start, end))
        if found is None:
            producer, names = self.network.graph.producer, splits.output_names
            leaving = np.flatnonzero(splits.leaves[start - splits.lowest]).tolist()
            found = sorted(leaving, key=lambda t: producer[names[t]])
            self._left[start, end] = found
        return found

    def constants(self, end: Mark) -> Floats:
        """`Tables.constants` of the blocks that end at a mark."""
        constants = self._constants.get(end)
        if constants is None:
            splits = self.geometry.splits[end]
            assert splits is not None
            constants = self._constants[end] = self.tables.constants(splits, end)
        return constants

    def _whole_tile(self, start: Mark, end: Mark) -> UnitTile:
        found = self._wholes.get((start, end))
        if found is None:
            network = self.network
            first, stop = (self.geometry.boundaries[mark] for mark in (start, end))
            names = network.outputs(first, stop)
            boxes = {name: Box.whole(network.graph.shape(name)) for name in names}
            tile_work = block_work(network, first, stop, boxes)
            tile = UnitTile(boxes, tile_work.reach.inputs, Computing(lambda: tile_work.works))
            if stop - first == 1:
                tile = divider_of(network).whole(network.units[first])
            found = self._wholes[start, end] = tile
        return found

    def live_bytes(self, between: tuple[Mark, Mark] | None, part: AnyTile, load: TileLoad) -> float:
        """Bytes that the task of a tile reads and yields, and that its largest node needs; tiles of
        maps are of a block between marks.
        """
        moved = sum(load.read_bytes.values()) + sum(load.own_bytes.values())
        if isinstance(part, UnitTile):
            return moved + max(work.input_bytes + work.output_bytes for work in part.work)
        assert between is not None
        start, end = between
        splits = self.geometry.splits[end]
        assert splits is not None
        elements = splits.groups.tiles(splits.places([part]))[:, 0]
        nodes, element_bytes = self.geometry.moved
        first, stop = np.searchsorted(nodes, self.geometry.nodes[start : end + 1])[[0, -1]]
        groups = self.geometry.groups[first:stop] - splits.chosen.start
        size, nodes = element_bytes[first:stop] * elements[groups], nodes[first:stop]
        return moved + float(np.bincount(nodes - nodes[0], size).max())

    def common_bytes(self, name: str, one: Ints, other: Ints) -> Ints:
        """Bytes of what boxes of a tensor have in common, broadcast together."""
        size: Ints = (common(one, other) * self._itemsize[name]).astype(np.int64)
        return size
