"""Backward sweeps along one axis, over all blocks at once.

Blocks that begin at the earliest splittable mark and end at each later mark form a *run*. The
positions at which their maps may be divided (0 to the map's size, for each end) are concatenated
into one long vector, so that a node is one look-up for all tiles of all blocks that contain it.
Most nodes pass ranges on unchanged, so few of these vectors differ.
"""

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coordinator.planning.geometry.axes import Axis, Positions, Ranges
from coordinator.planning.geometry.marks import Mark
from models.cut.tiles import grain, places, scaled_mark
from models.cut.units import Unit
from models.graph.graph import ROWS, Graph, Node
from models.tensors.arrays import Ints

# Marks what is not needed at all.
NOTHING = 0


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks between marks `lowest` and `highest`: the units after each mark but the last, the
    first node after each mark, and the rows and columns of the map at each.
    """

    lowest: Mark
    units: Sequence[Sequence[Unit]]
    nodes: Sequence[int]
    sizes: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """Ranges of one tensor for the tiles of all blocks from the `end`-th on, as in `Ranges`; `gaps`
    by element, or None if every tile needs some of it.
    """

    end: int
    first: Positions
    last: Positions
    gaps: NDArray[np.bool_] | None = None


class AxisSweep:
    """Ranges along one axis of everything that the blocks of a run compute and read.

    Ranges are numbered; each begins at the first end whose blocks need it. `entering[m]` are the
    numbers of what blocks that begin at the run's m-th mark read of each tensor, with the first end
    before which one of them does. `own` are the numbers of the shares of each of the blocks'
    outputs, with the first end before which it is computed, and the first that it does not cross.
    """

    def __init__(self, graph: Graph, run: BlockRun, axis: Axis) -> None:
        self.graph, self.run, self.axis = graph, run, axis
        self.sizes = [size[axis.which - ROWS] for size in run.sizes[1:]]
        # The positions of the k-th end start at `offsets[k]`.
        self.offsets = [0, *itertools.accumulate(places(size) + 1 for size in self.sizes)]
        nothing = np.zeros(self.offsets[-1], dtype=np.int32)
        self._demands = [_Demand(0, nothing, nothing)]
        self._numbers = {id(self._demands[NOTHING]): NOTHING}
        self._of: dict[tuple[int, int], int] = {}
        self.own: dict[str, tuple[int, int, int]] = {}
        self.entering: list[Mapping[str, tuple[int, int]]] = []
        wanted: dict[str, _Demand] = {}
        for m in range(len(run.units) - 1, -1, -1):
            for unit in reversed(run.units[m]):
                self._add_own(unit, wanted)
                for place in range(len(unit.nodes) - 1, -1, -1):
                    self._back(unit.start + place, unit.nodes[place], wanted)
            self.entering.append(
                {
                    name: (self._number(demand), demand.end)
                    for name, demand in wanted.items()
                    if name not in graph.constants
                }
            )
        self.entering.reverse()
        self._first, self._last, self._origins = self._stacked()

    def of(self, node: int, place: int) -> int:
        """The number of what is computed of a node's output (`place` -1) or read of an input."""
        return self._of.get((node, place), NOTHING)

    def ranges(self, k: int, numbers: Ints) -> tuple[Positions, Positions]:
        """First and last elements for the tiles of blocks before the k-th end, [n, places + 1]."""
        positions = np.arange(self.offsets[k], self.offsets[k + 1])
        where = self._origins[numbers][:, None] + positions
        return self._first[where], self._last[where]

    def _add_own(self, unit: Unit, wanted: dict[str, _Demand]) -> None:
        """Adds what tiles own of the unit's outputs, for the blocks that yield these."""
        nodes, graph = self.run.nodes, self.graph
        begin = bisect_right(nodes, unit.start) - 1
        for name in (name for node in unit.nodes for name in node.outputs if name):
            stop = bisect_right(nodes, graph.last_reader.get(name, -1)) - 1
            if stop <= begin:
                continue
            along = graph.size(name, self.axis.which)
            shares = [_own_ranges(size, along) for size in self.sizes[begin:stop]]
            gaps = None
            if any(share.gaps for share in shares):
                gaps = np.repeat(
                    [share.gaps for share in shares], [len(share.first) for share in shares]
                )
            first = np.concatenate([share.first for share in shares])
            own = _Demand(begin, first, np.concatenate([share.last for share in shares]), gaps)
            self.own[name] = self._number(own), begin, stop
            within = wanted.get(name, self._demands[NOTHING])
            wanted[name] = self._joined(own, within, stop)

    def _joined(self, own: _Demand, within: _Demand, stop: int) -> _Demand:
        """The demand for a tensor: `own` in blocks before the `stop`-th, which yield it, `within`
        in blocks from the `within.end`-th on, which read it, and their union where both apply.
        """
        beyond = self.offsets[stop] - self.offsets[max(within.end, own.end)]
        tail = _from(within, self.offsets, max(within.end, own.end))
        gaps = None
        if own.gaps is not None or tail.gaps is not None:
            gaps = np.concatenate([_flags(own), _flags(tail)[beyond:]])
        joined = _Demand(
            own.end,
            np.concatenate([own.first, tail.first[beyond:]]),
            np.concatenate([own.last, tail.last[beyond:]]),
            gaps,
        )
        if within is self._demands[NOTHING] or beyond <= 0:
            return joined
        return self._hull(joined, tail)

    def _back(self, index: int, node: Node, wanted: dict[str, _Demand]) -> None:
        demand = wanted.pop(node.outputs[0], None)
        if demand is None:
            return
        handed = self.axis.of(index)
        if handed.computed is not None:
            demand = _through(demand, handed.computed)
        self._of[index, -1] = self._number(demand)
        for place, reads in enumerate(handed.reads):
            if reads is not None:
                name, part = node.inputs[place], _through(demand, reads)
                self._of[index, place] = self._number(part)
                wanted[name] = self._hull(part, wanted.get(name, part))

    def _hull(self, one: _Demand, other: _Demand) -> _Demand:
        """The union of the demands of two branches."""
        if one is other:
            return one
        if one.end > other.end:
            one, other = other, one
        cut = self.offsets[other.end] - self.offsets[one.end]
        first, last = one.first.copy(), one.last.copy()
        np.minimum(first[cut:], other.first, out=first[cut:])
        np.maximum(last[cut:], other.last, out=last[cut:])
        gaps = None
        if one.gaps is not None:
            gaps = one.gaps.copy()
            gaps[cut:] &= _flags(other)
        elif np.array_equal(first, one.first) and np.array_equal(last, one.last):
            return one
        return _Demand(one.end, first, last, gaps)

    def _number(self, demand: _Demand) -> int:
        found = self._numbers.get(id(demand))
        if found is None:
            found = self._numbers[id(demand)] = len(self._demands)
            self._demands.append(demand)
        return found

    def _stacked(self) -> tuple[Positions, Positions, Ints]:
        """All ranges one after the other, and where the positions of the first end would begin."""
        lengths = [len(demand.first) for demand in self._demands]
        begins = np.cumsum([0, *lengths])
        origins = begins[:-1] - [self.offsets[demand.end] for demand in self._demands]
        first, last = (np.empty(begins[-1], dtype=np.int32) for _ in range(2))
        self._numbers.clear()
        while self._demands:
            demand, number = self._demands.pop(), len(self._demands)
            part = slice(begins[number], begins[number + 1])
            first[part], last[part] = demand.first, demand.last
        return first, last, origins


def _flags(demand: _Demand) -> NDArray[np.bool_]:
    if demand.gaps is None:
        return np.zeros(len(demand.first), dtype=np.bool_)
    return demand.gaps


def _from(demand: _Demand, offsets: Sequence[int], end: int) -> _Demand:
    """The same without the blocks before the `end`-th."""
    cut = offsets[end] - offsets[demand.end]
    if not cut:
        return demand
    gaps = None if demand.gaps is None else demand.gaps[cut:]
    return _Demand(end, demand.first[cut:], demand.last[cut:], gaps)


def _through(demand: _Demand, reads: Ranges) -> _Demand:
    """What is needed of a node's input to compute these ranges of its output."""
    if reads.is_identity:
        return demand
    first, last = reads.first[demand.first], reads.last[demand.last]
    if demand.gaps is not None:
        # Rows between windows are not read; looking up their positions would give too small ranges.
        last = np.where(demand.gaps, np.maximum(first, last), last)
    return _Demand(demand.end, first, last, demand.gaps)


@lru_cache(maxsize=512)
def _own_ranges(size: int, along: int) -> Ranges:
    """Each tile's share of an output with `along` rows or columns, for tiles that begin and end at
    the places of a map of `size`, as `tile_boxes` divides it.

    A tile too small to own a row of a smaller tensor gets an empty range of it; its demand is then
    rounded up by at most the window's reach, so such a tile's cost is never underestimated.
    """
    marks = np.minimum(np.arange(places(size) + 1) * grain(size), size)
    own = (marks if along == size else scaled_mark(marks, size, along)).astype(np.int32)
    return Ranges(own, own, gaps=along < places(size))
