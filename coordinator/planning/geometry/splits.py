"""How the work, inputs and outputs of splittable blocks grow with their tiles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.geometry.axes import Positions
from coordinator.planning.geometry.marks import Mark
from models.cut.tiles import MapTile, grain
from models.tensors.arrays import Floats, Ints


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
    """How n things grow with a tile. For the tile between places a and b of the rows and c and d of
    the columns, thing k has (row_last[k, b] - row_first[k, a]) x (col_last[k, d] - col_first[k, c])
    elements.
    """

    row_first: Positions
    row_last: Positions
    col_first: Positions
    col_last: Positions

    @property
    def _widths(self) -> Floats:
        widths = self.col_last[:, -1:] - self.col_first[:, :1]
        return widths.astype(np.float64)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes."""
        every = (self.row_first, self.row_last, self.col_first, self.col_last)
        return sum(array.nbytes for array in every)

    @property
    def begins(self) -> Floats:
        """(n, places + 1): to be subtracted for a full-width tile that begins at a place."""
        return self.row_first * self._widths

    @property
    def ends(self) -> Floats:
        """(n, places + 1): for a full-width tile that ends at a place, less `begins`."""
        return self.row_last * self._widths

    def tiles(self, places: Ints, first: int = 0) -> Floats:
        """(n, tiles): elements of every tile [Splits.places], from the `first` thing on; 0 for
        empty ones.
        """
        top, bottom, left, right = places
        tall = self.row_last[first:, bottom] - self.row_first[first:, top]
        wide = self.col_last[first:, right] - self.col_first[first:, left]
        full = (bottom > top) & (right > left)
        elements: Floats = (tall * full).astype(np.float64) * wide
        return elements

    def ranges(self, things: Sequence[int], places: Ints) -> Ints:
        """(things, tiles, 2, 2): the rows and columns of some things that tiles have, from start to
        stop.
        """
        top, bottom, left, right = places
        which = np.array(things, dtype=np.int64)[:, None]
        found = np.empty((len(things), len(top), 2, 2), dtype=np.int64)
        found[:, :, 0, 0], found[:, :, 0, 1] = (
            self.row_first[which, top],
            self.row_last[which, bottom],
        )
        found[:, :, 1, 0], found[:, :, 1, 1] = (
            self.col_first[which, left],
            self.col_last[which, right],
        )
        return found


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

    lowest: Mark
    lowest_cols: Mark
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

    def places(self, tiles: Sequence[MapTile]) -> Ints:
        """(4, tiles): the places of the map where tiles begin and end, along rows and columns."""
        edges = np.array([(*tile.rows, *tile.cols) for tile in tiles]).T
        grains = np.repeat([grain(self.height), grain(self.width)], 2)
        places: Ints = -(-edges // grains[:, None])
        return places

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
        moved: Floats = np.einsum("mt,tx->mx", self.leaves, outputs)
        moved += self.bytes_read(inputs)
        return moved

    def bytes_read(self, inputs: Floats) -> Floats:
        """[m, x]: bytes that each block reads, given the elements [t, x] of its inputs."""
        sums = _sums_until(inputs * self.input_bytes[:, None])
        read: Floats = sums[[span.stop for span in self.entering]]
        read -= sums[[span.start for span in self.entering]]
        return read


def _sums_until(values: Floats) -> Floats:
    """[k, x]: sums of [n, x] before each k, and over all."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums
