"""Everything about a network's blocks that does not depend on the cluster, computed once.

A block is [i, end): `i` and `end` index the network's *marks*, the boundaries outside residual
blocks. For each end, one backward sweep gives the ranges of every block that ends there.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coordinator.planning.axes import COLS, ROWS, Ranges, axis_size
from coordinator.planning.sweeps import (
    AxisSweep,
    Floats,
    Quantity,
    WholeSweep,
    node_index,
    weight_bytes_before,
)
from models.boxes import Box, Span
from models.graph import Graph
from models.operators import splits_along
from models.tiles import MapTile, map_size
from models.units import Network


@dataclass(frozen=True, eq=False)
class Growth:
    """How n things grow with a tile: thing k has, for the tile of rows [a, b) and columns [c, d),
    (row_last[k, b] - row_first[k, a]) x (col_last[k, d] - col_first[k, c]) elements.
    """

    row_first: Floats
    row_last: Floats
    col_first: Floats
    col_last: Floats

    @classmethod
    def of(cls, rows: Sequence[Ranges], cols: Sequence[Ranges]) -> Growth:
        """One thing per pair of ranges."""
        return cls(
            np.array([each.first for each in rows], dtype=np.float64),
            np.array([each.last for each in rows], dtype=np.float64),
            np.array([each.first for each in cols], dtype=np.float64),
            np.array([each.last for each in cols], dtype=np.float64),
        )

    @cached_property
    def _widths(self) -> Floats:
        return self.col_last[:, -1:] - self.col_first[:, :1]

    @cached_property
    def begins(self) -> Floats:
        """(n, height + 1): what a full-width tile lacks by beginning at row a."""
        return self.row_first * self._widths

    @cached_property
    def ends(self) -> Floats:
        """(n, height + 1): what a full-width tile has by ending at row b; less `begins`."""
        return self.row_last * self._widths

    def tiles(self, tiles: Sequence[MapTile]) -> Floats:
        """(n, tiles): elements of every tile; none in empty ones."""
        tall = _lengths(self.row_first, self.row_last, [tile.rows for tile in tiles])
        wide = _lengths(self.col_first, self.col_last, [tile.cols for tile in tiles])
        elements: Floats = tall * wide
        return elements

    def elements(self, tile: MapTile) -> Floats:
        """(n,): elements of one tile, which is not empty."""
        rows, cols = tile.rows, tile.cols
        tall = self.row_last[:, rows.stop] - self.row_first[:, rows.start]
        elements: Floats = tall * (self.col_last[:, cols.stop] - self.col_first[:, cols.start])
        return elements

    def ranges(self, thing: int, tile: MapTile) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of one thing that a tile has."""
        rows, cols = tile.rows, tile.cols
        return (
            (int(self.row_first[thing, rows.start]), int(self.row_last[thing, rows.stop])),
            (int(self.col_first[thing, cols.start]), int(self.col_last[thing, cols.stop])),
        )


def _lengths(first: Floats, last: Floats, spans: Sequence[Span]) -> Floats:
    starts = np.array([span.start for span in spans])
    stops = np.array([span.stop for span in spans])
    lengths: Floats = (last[:, stops] - first[:, starts]) * (stops > starts)
    return lengths


@dataclass(frozen=True, eq=False)
class Splits:
    """Blocks [i, end) that can be split into rows, for i from mark `lowest` on (into columns
    too, from `lowest_cols` on).

    `quantities` grow as the network's `quantities[chosen]`, and `within[m, q]` is 1 where a
    quantity belongs to the block that begins at mark `lowest + m`. `enters[m, t]` and
    `leaves[m, t]` are the bytes per element of the live tensors `inputs` and `outputs` that the
    block reads and yields; `input_names` and `output_names` are those tensors.
    """

    lowest: int
    lowest_cols: int
    height: int
    width: int
    chosen: slice
    quantities: Growth
    within: Floats
    inputs: Growth
    enters: Floats
    outputs: Growth
    leaves: Floats
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


class Geometry:
    """The blocks of one network. It refers to no network, so that a cache can forget it."""

    def __init__(self, network: Network) -> None:
        self.marks = network.marks
        self.node_marks = tuple(node_index(network, mark) for mark in self.marks)
        self.sizes = ((1, 1), *(map_size(network, 0, mark) for mark in self.marks[1:]))
        sweep = WholeSweep(network)
        self.wholes = tuple(sweep.until(end) for end in range(len(self.marks)))
        self.node_works = dict(sweep.node_works)
        self.weight_bytes_before = weight_bytes_before(network)
        self.quantities = _quantities(network.graph, sweep)
        self.splits = tuple(self._splits(network, end) for end in range(len(self.marks)))

    def _splits(self, network: Network, end: int) -> Splits | None:
        lowest = _lowest(network, self.marks, end, ROWS)
        if lowest == end:
            return None
        return _Ends(self, network, lowest, end).splits()


_CACHE: weakref.WeakKeyDictionary[Network, Geometry] = weakref.WeakKeyDictionary()


def geometry_of(network: Network) -> Geometry:
    """The geometry of a network, kept as long as the network is."""
    geometry = _CACHE.get(network)
    if geometry is None:
        geometry = _CACHE[network] = Geometry(network)
    return geometry


def _lowest(network: Network, marks: Sequence[int], end: int, axis: int) -> int:
    """The earliest mark from which every node up to `end` can be split along `axis`."""
    lowest = end
    while lowest > 0 and all(
        splits_along(network.graph, node, axis)
        for node in network.nodes(marks[lowest - 1], marks[lowest])
    ):
        lowest -= 1
    return lowest


class _Ends:
    """Gathers the splittable blocks that end at one mark."""

    def __init__(self, geometry: Geometry, network: Network, lowest: int, end: int) -> None:
        self.geometry, self.network = geometry, network
        self.lowest, self.end = lowest, end
        marks = geometry.marks
        self.rows = AxisSweep(network, marks[lowest], marks[end], ROWS)
        self.cols = AxisSweep(network, marks[lowest], marks[end], COLS)
        self.begins = np.array(geometry.node_marks[lowest:end])[:, None]

    def splits(self) -> Splits:
        network, geometry = self.network, self.geometry
        nodes = np.array([quantity.node for quantity in geometry.quantities])
        first, last = geometry.node_marks[self.lowest], geometry.node_marks[self.end]
        chosen = slice(*(int(q) for q in np.searchsorted(nodes, (first, last))))
        places = [(each.node, each.place) for each in geometry.quantities[chosen]]
        inputs, enters, input_names = self._inputs()
        outputs, leaves = self._outputs()
        height, width = map_size(network, 0, geometry.marks[self.end])
        return Splits(
            self.lowest,
            max(self.lowest, _lowest(network, geometry.marks, self.end, COLS)),
            height,
            width,
            chosen,
            Growth.of(
                [self.rows.of(*each) for each in places], [self.cols.of(*each) for each in places]
            ),
            (nodes[chosen][None, :] >= self.begins).astype(np.float64),
            inputs,
            enters,
            outputs,
            leaves,
            input_names,
            tuple(self.rows.own),
        )

    def _inputs(self) -> tuple[Growth, Floats, tuple[str, ...]]:
        marks = self.geometry.marks[self.lowest : self.end]
        reads = [
            (m, mark, name) for m, mark in enumerate(marks) for name in self.rows.entering[mark]
        ]
        sizes = np.array([_element_bytes(self.network.graph, name) for _, _, name in reads])
        growth = Growth.of(
            [self.rows.entering[mark][name] for _, mark, name in reads],
            [self.cols.entering[mark][name] for _, mark, name in reads],
        )
        at = np.array([m for m, _, _ in reads])
        enters = (at[None, :] == np.arange(len(marks))[:, None]) * sizes
        return growth, enters, tuple(name for _, _, name in reads)

    def _outputs(self) -> tuple[Growth, Floats]:
        graph, names = self.network.graph, list(self.rows.own)
        sizes = np.array([_element_bytes(graph, name) for name in names])
        growth = Growth.of(
            [self.rows.own[name] for name in names], [self.cols.own[name] for name in names]
        )
        made_at = np.array([graph.producer[name] for name in names])
        return growth, (made_at[None, :] >= self.begins) * sizes


def _element_bytes(graph: Graph, name: str) -> float:
    """Bytes on the wire per element (row x column) of a map."""
    elements = axis_size(graph, name, ROWS) * axis_size(graph, name, COLS)
    return graph.tensors[name].on_wire.nbytes / elements


def _quantities(graph: Graph, sweep: WholeSweep) -> tuple[Quantity, ...]:
    """Per node: its output (FLOPs and bytes written), then each input that it reads."""
    found = []
    for index, work in sorted(sweep.node_works.items()):
        area = _area(sweep.computed[index])
        found.append(Quantity(index, -1, work.flop / area, 0.0, work.output_bytes / area))
        node = graph.nodes[index]
        for place, (name, box) in enumerate(zip(node.inputs, sweep.reads[index], strict=False)):
            if box is not None and name and name not in graph.constants:
                size = box.volume * graph.tensors[name].itemsize
                found.append(Quantity(index, place, 0.0, size / _area(box), 0.0))
    return tuple(found)


def _area(box: Box) -> int:
    return max(1, math.prod(box.shape[ROWS : COLS + 1]))
