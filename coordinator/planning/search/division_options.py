"""Ways to run one block: alone on a device, in equal tiles, or in tiles that finish together.

Every option gives the costs of all blocks at once, `seconds[i, e]` for the block between marks i
and e, and which device gets which tile. Planners differ in the options that they allow and in the
cuts that they search.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coordinator.costs.cluster import Device
from coordinator.planning.geometry.layouts import UnitTile
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.splits import Splits
from coordinator.planning.geometry.tile_shapes import TileShape, grids_of
from coordinator.planning.search.balance import Members, TileCosts, balanced
from coordinator.planning.search.tables import Rank, Tables
from models.cut.tiles import MapTile, on_map, places
from models.tensors.arrays import Floats, Ints
from models.tensors.boxes import Span

# Rows (times devices) of maps that are balanced together: 4 MB for each table of seconds.
_MOST_LINES = 500_000

DeviceShares = tuple[tuple[Device, MapTile | UnitTile], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One way to run any block. [i, e] is the block between marks i and e: `seconds` is its
    published cost, infinite if it can't be run in this way, and `finish_s` the time until the last
    device finishes if all transfers run at once.

    `shape`: each device has a tile of it, band by band: equal ones [OFL; Eq. 1 for a single unit],
    or with areas in proportion to `weights`. `ends[i, e]`: full-width strips that finish together
    [Eq. 6] end there, beginning with 0. `units`: these tiles of a single unit. Without any of
    these, one device has the whole block [Algorithm 2 with one device; the second part of EFL].
    """

    devices: Sequence[Device]
    sizes: Sequence[tuple[int, int]]
    seconds: Floats
    finish_s: Floats
    shape: TileShape | None = None
    weights: Sequence[float] | None = None
    ends: NDArray[np.int16] | None = None
    units: Sequence[UnitTile] = ()

    def shares(self, start: Mark, end: Mark) -> DeviceShares:
        """Devices and their tiles of the block between two marks, without empty ones."""
        if self.units:
            return tuple(zip(self.devices, self.units, strict=True))
        shares = zip(self.devices, self.tiles(start, end), strict=True)
        return tuple((device, tile) for device, tile in shares if not tile.is_empty)

    def tiles(self, start: Mark, end: Mark) -> Sequence[MapTile]:
        """Every device's tile of the map; some may be empty."""
        height, width = self.sizes[end]
        if self.shape is not None:
            if self.weights is None:
                return self.shape.equal_tiles(height, width)
            return self.shape.tiles(height, width, self.weights)
        rows: Sequence[Span] = [Span(0, height)]
        if self.ends is not None:
            edges = [int(place) for place in self.ends[start, end]]
            rows = on_map(height, map(Span, edges, edges[1:]))
        return [MapTile(row, Span(0, width)) for row in rows]


def alone(tables: Tables) -> list[Option]:
    """Every device alone; the host first, so that it wins ties. One device's transfers follow each
    other in any case.
    """
    order = sorted(range(len(tables.devices)), key=lambda d: not tables.devices[d].host)
    found = []
    for d in order:
        seconds = np.where(tables.fits[d], tables.alone_s[d], np.inf)
        found.append(Option([tables.devices[d]], tables.geometry.sizes, seconds, seconds))
    return found


def grids(tables: Tables, counts: Sequence[int]) -> list[list[Option]]:
    """For each count, every grid of that many equal tiles on the first devices."""
    key = ("grids", tuple(counts))
    if key not in tables.memo:
        tables.memo[key] = _grids(tables, counts)
    return cast("list[list[Option]]", tables.memo[key])


def _grids(tables: Tables, counts: Sequence[int]) -> list[list[Option]]:
    ranks = [Rank(d) for d in range(len(tables.devices))]
    shapes = [[(ranks[:count], shape) for shape in grids_of(count)] for count in counts]
    found = iter(tiled(tables, [shape for some in shapes for shape in some], None))
    return [[next(found) for _ in some] for some in shapes]


def tiled(
    tables: Tables,
    placed: Sequence[tuple[Sequence[Rank], TileShape]],
    weights: Sequence[float] | None,
) -> list[Option]:
    """Each shape on its devices (one per tile), in equal tiles or in proportion to `weights` by
    rank. All are costed together.
    """
    options = [
        Option(
            [tables.devices[d] for d in who],
            tables.geometry.sizes,
            np.full(tables.shape, np.inf),
            np.full(tables.shape, np.inf),
            shape,
            None if weights is None else [weights[d] for d in who],
        )
        for who, shape in placed
    ]
    where = [d for who, _ in placed for d in who]
    firsts = np.cumsum([0, *(len(who) for who, _ in placed)])[:-1]
    columns = np.array([shape.has_columns for _, shape in placed])
    # Few different sizes of maps occur.
    known: dict[tuple[int, int], list[MapTile]] = {}
    for end, splits in _splittable(tables) if placed else ():
        size = tables.geometry.sizes[end]
        if size not in known:
            known[size] = [tile for option in options for tile in option.tiles(end, end)]
        compute, transfers = tables.tiles_s(end, known[size], where)
        total = np.add.reduceat(transfers, firsts, axis=1)
        total += np.maximum.reduceat(compute, firsts, axis=1)
        finish = np.maximum.reduceat(compute + transfers, firsts, axis=1)
        total[: splits.lowest_cols - splits.lowest, columns] = np.inf
        finish[: splits.lowest_cols - splits.lowest, columns] = np.inf
        for option, seconds, finish_s in zip(options, total.T, finish.T, strict=True):
            option.seconds[splits.lowest : end, end] = seconds
            option.finish_s[splits.lowest : end, end] = finish_s
    for option, (who, _) in zip(options, placed, strict=True):
        full = ~tables.fits[list(who)].all(axis=0)
        option.seconds[full] = option.finish_s[full] = np.inf
    return options


def strips(tables: Tables, members: Members) -> list[Option]:
    """Strips that finish together on each subset of devices."""
    key = ("strips", members.tobytes())
    if key not in tables.memo:
        tables.memo[key] = _strips(tables, members)
    return cast("list[Option]", tables.memo[key])


def _strips(tables: Tables, subsets: Members) -> list[Option]:
    seconds = np.full((2, len(subsets), *tables.shape), np.inf)
    ends = np.zeros((len(subsets), *tables.shape, len(tables.devices) + 1), dtype=np.int16)
    for together in _chunks(tables) if len(subsets) else ():
        *both, where = _finish_together(tables, [end for end, _ in together], subsets)
        first = 0
        for end, splits in together:
            part = slice(splits.lowest, end)
            solved = slice(first, first + end - splits.lowest)
            seconds[:, :, part, end] = [table[:, solved] for table in both]
            ends[:, part, end] = where[:, solved]
            first = solved.stop
    fits = np.where(subsets[:, :, None, None], tables.fits[None], True).all(axis=1)
    # A single strip that is not empty is a device alone, another option.
    shared = (np.diff(ends, axis=3) > 0).sum(axis=3) > 1
    seconds = np.where(fits & shared, seconds, np.inf)
    sizes = tables.geometry.sizes
    return [
        Option(tables.devices, sizes, some_s, finish_s, ends=some_ends)
        for some_s, finish_s, some_ends in zip(*seconds, ends, strict=True)
    ]


def _splittable(tables: Tables) -> Iterator[tuple[Mark, Splits]]:
    """The marks at which blocks that can be split end."""
    for end in tables.marks:
        splits = tables.geometry.splits[end]
        if splits is not None:
            yield end, splits


def _chunks(tables: Tables) -> Iterator[list[tuple[Mark, Splits]]]:
    """The ends of blocks that can be split, in batches that keep tables small."""
    found: list[tuple[Mark, Splits]] = []
    lines = 0
    for end, splits in _splittable(tables):
        found.append((end, splits))
        lines += (end - splits.lowest) * (places(splits.height) + 1)
        if lines * len(tables.devices) > _MOST_LINES:
            yield found
            found, lines = [], 0
    if found:
        yield found


def _finish_together(
    tables: Tables, ends: Sequence[Mark], subsets: Members
) -> tuple[Floats, Floats, Ints]:
    """Tiles by Eq. 6 (communication + computation equal) of all blocks that end at `ends`: their
    cost by Eq. 3, the slowest device's by Eq. 6, [k, m], and where the tiles end.
    """
    alone, moved = [], []
    bytes_s, fixed_s = tables.byte_s[:, None, None], 2 * tables.fixed_s[:, None]
    for end in ends:
        splits = tables.geometry.splits[end]
        assert splits is not None
        begins, stops, byte_begins, byte_ends = tables.strips_s(splits, end)
        fixed = tables.constants(splits, end)
        alone.append((fixed, begins, stops))
        moved.append((fixed + fixed_s, begins + bytes_s * byte_begins, stops + bytes_s * byte_ends))
    compute, both = TileCosts.of(alone), TileCosts.of(moved)
    finish_s, edges = balanced(both, subsets)
    block = np.broadcast_to(np.arange(both.blocks), edges.shape[:2])
    total, slowest = np.zeros(block.shape), np.zeros(block.shape)
    for d in range(both.devices):
        start, stop = edges[:, :, d], edges[:, :, d + 1]
        computing = compute.seconds(d, block, start, stop)
        total += both.seconds(d, block, start, stop) - computing
        slowest = np.maximum(slowest, computing)
    return total + slowest, finish_s, edges
