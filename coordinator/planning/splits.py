"""How the work, inputs and outputs of splittable blocks grow with their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coordinator.planning.sweeps import Floats
from models.boxes import Span
from models.tiles import MapTile


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """Something that grows with a tile: FLOPs and bytes per element (row x column) of a node's
    output (`place` -1), or of its input at `place`.
    """

    node: int
    place: int
    flop: float
    input_bytes: float
    output_bytes: float


@dataclass(frozen=True, eq=False)
class Growth:
    """How n things grow with a tile. For the tile of rows [a, b) and columns [c, d), thing k has
    (row_last[k, b] - row_first[k, a]) x (col_last[k, d] - col_first[k, c]) elements, if a place is
    one row and one column; `grains` are the rows and columns between the places of longer maps.
    """

    row_first: Floats
    row_last: Floats
    col_first: Floats
    col_last: Floats
    grains: tuple[int, int] = (1, 1)

    @cached_property
    def _widths(self) -> Floats:
        return self.col_last[:, -1:] - self.col_first[:, :1]

    @cached_property
    def begins(self) -> Floats:
        """(n, places + 1): to be subtracted for a full-width tile that begins at a place."""
        return self.row_first * self._widths

    @cached_property
    def ends(self) -> Floats:
        """(n, places + 1): for a full-width tile that ends at a place, less `begins`."""
        return self.row_last * self._widths

    def tiles(self, tiles: Sequence[MapTile]) -> Floats:
        """(n, tiles): elements of every tile; 0 for empty ones."""
        rows, cols = self.grains
        tall = _lengths(self.row_first, self.row_last, [tile.rows for tile in tiles], rows)
        wide = _lengths(self.col_first, self.col_last, [tile.cols for tile in tiles], cols)
        elements: Floats = tall * wide
        return elements

    def elements(self, tile: MapTile, first: int = 0) -> Floats:
        """(n,): elements of one non-empty tile, from the `first` thing on."""
        rows, cols = self._places(tile)
        tall = self.row_last[first:, rows.stop] - self.row_first[first:, rows.start]
        wide = self.col_last[first:, cols.stop] - self.col_first[first:, cols.start]
        elements: Floats = tall * wide
        return elements

    def ranges(self, thing: int, tile: MapTile) -> tuple[tuple[int, int], tuple[int, int]]:
        """The rows and columns of one thing that a tile has."""
        rows, cols = self._places(tile)
        return (
            (int(self.row_first[thing, rows.start]), int(self.row_last[thing, rows.stop])),
            (int(self.col_first[thing, cols.start]), int(self.col_last[thing, cols.stop])),
        )

    def _places(self, tile: MapTile) -> tuple[Span, Span]:
        rows, cols = self.grains
        if rows == cols == 1:
            return tile.rows, tile.cols
        return _in_places(tile.rows, rows), _in_places(tile.cols, cols)


def _in_places(span: Span, grain: int) -> Span:
    """The same span of a map's places; a map's last place may be shorter."""
    return Span(-(-span.start // grain), -(-span.stop // grain))


def _lengths(first: Floats, last: Floats, spans: Sequence[Span], grain: int) -> Floats:
    starts = -(-np.array([span.start for span in spans]) // grain)
    stops = -(-np.array([span.stop for span in spans]) // grain)
    lengths: Floats = (last[:, stops] - first[:, starts]) * (stops > starts)
    return lengths


@dataclass(frozen=True, eq=False)
class Splits:
    """Blocks [i, end) that can be split into rows, for i from mark `lowest` on (and into columns
    from `lowest_cols` on).

    `groups` are the network's groups `chosen` of quantities that grow alike; those from `firsts[m]`
    on belong to the block that begins at mark `lowest + m`. That block reads the live tensors
    `inputs[entering[m]]`, of `input_bytes[t]` bytes per element; `leaves[m, t]` are the bytes per
    element of the tensors `outputs` that it yields. `input_names` and `output_names` are those
    tensors' names.
    """

    lowest: int
    lowest_cols: int
    height: int
    width: int
    chosen: slice
    groups: Growth
    firsts: tuple[int, ...]
    inputs: Growth
    entering: tuple[slice, ...]
    input_bytes: Floats
    outputs: Growth
    leaves: Floats
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    # Explicit sums: numpy spreads matrix products over all cores, where threads spin.

    def over_blocks(self, values: Floats) -> Floats:
        """[m, x]: sums of [g, x] over the groups of each block."""
        sums = _sums_until(values[::-1])[::-1]
        blocks: Floats = sums[list(self.firsts)]
        return blocks

    def bytes_moved(self, inputs: Floats, outputs: Floats) -> Floats:
        """[m, x]: bytes that each block reads and yields, given the elements [t, x] of its inputs
        and outputs.
        """
        sums = _sums_until(inputs * self.input_bytes[:, None])
        moved: Floats = np.einsum("mt,tx->mx", self.leaves, outputs)
        moved += sums[[each.stop for each in self.entering]]
        moved -= sums[[each.start for each in self.entering]]
        return moved


def _sums_until(values: Floats) -> Floats:
    """[k, x]: sums of [n, x] before each k, and over all."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums
