"""Ways to run one block: alone on a device, in equal tiles, in tiles that finish together.

Every option costs all blocks at once, `seconds[i, e]` for the block between marks i and e, and
can say which device gets which tile. Planners differ in the options that they allow and in the
cuts that they search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coordinator.planning.balance import Ints, TileCosts, balanced
from coordinator.planning.devices import Device
from coordinator.planning.sweeps import Floats
from coordinator.planning.tables import Tables
from models.boxes import Span
from models.tiles import MapTile, even_spans

Shares = tuple[tuple[Device, MapTile], ...]


class Option(Protocol):
    """One way to run any block."""

    @property
    def seconds(self) -> Floats:
        """[i, e]: the published cost of the block between marks i and e; infinite where it can't
        be run in this way.
        """
        ...

    def shares(self, start: int, end: int) -> Shares:
        """Devices and their tiles of the block between two marks; no empty ones."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """The whole block on one device [Algorithm 2 with one device; EFL's rest]."""

    device: Device
    sizes: Sequence[tuple[int, int]]
    seconds: Floats

    def shares(self, start: int, end: int) -> Shares:
        """The device, with the whole map."""
        height, width = self.sizes[end]
        return ((self.device, MapTile(Span(0, height), Span(0, width))),)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Equal tiles, row by row, on the first devices [OFL; Eq. 1 for a single unit]."""

    devices: Sequence[Device]
    rows: int
    cols: int
    sizes: Sequence[tuple[int, int]]
    seconds: Floats

    def shares(self, start: int, end: int) -> Shares:
        """The devices whose tile is not empty."""
        height, width = self.sizes[end]
        row_spans, col_spans = even_spans(height, self.rows), even_spans(width, self.cols)
        tiles = [MapTile(r, c) for r in row_spans for c in col_spans]
        shares = zip(self.devices, tiles, strict=True)
        return tuple((device, tile) for device, tile in shares if not tile.is_empty)


@dataclass(frozen=True, slots=True, eq=False)
class Strips:
    """Full-width strips that finish together, on the first devices [Eq. 6]. `ends[i, e]` are the
    rows where the devices' strips end, beginning with 0.
    """

    devices: Sequence[Device]
    sizes: Sequence[tuple[int, int]]
    seconds: Floats
    ends: Ints

    def shares(self, start: int, end: int) -> Shares:
        """The devices whose strip is not empty."""
        width = self.sizes[end][1]
        marks = [int(row) for row in self.ends[start, end]]
        return tuple(
            (device, MapTile(Span(a, b), Span(0, width)))
            for device, a, b in zip(self.devices, marks, marks[1:], strict=False)
            if b > a
        )


def alone(tables: Tables) -> list[Option]:
    """Every device on its own; the host first, so that it takes what others do no faster."""
    order = sorted(range(len(tables.devices)), key=lambda d: not tables.devices[d].host)
    return [
        Alone(
            tables.devices[d],
            tables.geometry.sizes,
            np.where(tables.fits[d], tables.alone_s[d], np.inf),
        )
        for d in order
    ]


def grids(tables: Tables, count: int) -> list[Option]:
    """Every grid of `count` equal tiles on the first `count` devices."""
    return [_grid(tables, rows, count // rows) for rows in range(count, 0, -1) if count % rows == 0]


def _grid(tables: Tables, rows: int, cols: int) -> Option:
    used = rows * cols
    seconds = np.full((tables.marks, tables.marks), np.inf)
    for end, splits in enumerate(tables.geometry.splits):
        if splits is not None:
            row_spans, col_spans = even_spans(splits.height, rows), even_spans(splits.width, cols)
            seconds[splits.lowest : end, end] = tables.grid_s(end, row_spans, col_spans)
    seconds = np.where(tables.fits[:used].all(axis=0), seconds, np.inf)
    return Grid(tables.devices[:used], rows, cols, tables.geometry.sizes, seconds)


def strips(tables: Tables) -> list[Option]:
    """Strips that finish together on the first k devices, for k = 2 .. all."""
    count, marks = len(tables.devices), tables.marks
    seconds = np.full((count, marks, marks), np.inf)
    ends = np.zeros((count, marks, marks, count + 1), dtype=np.int64)
    for end, splits in enumerate(tables.geometry.splits):
        if splits is not None:
            part = slice(splits.lowest, end)
            seconds[:, part, end], ends[:, part, end] = _finish_together(tables, end)
    fits = np.logical_and.accumulate(tables.fits, axis=0)
    # With one strip that isn't empty it would be `Alone`, which is an option of its own.
    shared = (np.diff(ends, axis=3) > 0).sum(axis=3) > 1
    seconds = np.where(fits & shared, seconds, np.inf)
    sizes = tables.geometry.sizes
    return [Strips(tables.devices, sizes, seconds[k], ends[k]) for k in range(1, count)]


def _finish_together(tables: Tables, end: int) -> tuple[Floats, Ints]:
    """Tiles by Eq. 6 (communication + computation equal), their cost by Eq. 3: [k, m]."""
    splits = tables.geometry.splits[end]
    assert splits is not None
    begins, ends, byte_begins, byte_ends = tables.strips_s(splits, end)
    fixed = tables.constants(splits, end)
    compute = TileCosts(fixed, begins, ends)
    bytes_s, fixed_s = tables.byte_s[:, None, None], 2 * tables.fixed_s[:, None]
    both = TileCosts(fixed + fixed_s, begins + bytes_s * byte_begins, ends + bytes_s * byte_ends)
    _, marks = balanced(both)
    block = np.broadcast_to(np.arange(both.blocks), marks.shape[:2])
    total, slowest = np.zeros(block.shape), np.zeros(block.shape)
    for d in range(both.devices):
        start, stop = marks[:, :, d], marks[:, :, d + 1]
        computing = compute.seconds(d, block, start, stop)
        total += both.seconds(d, block, start, stop) - computing
        slowest = np.maximum(slowest, computing)
    return total + slowest, marks
