"""The splittable blocks of one run of marks, from a sweep along each axis."""

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from coordinator.planning.geometry.axes import Axis
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.splits import Growth, Quantity, Splits
from coordinator.planning.geometry.sweeps import AxisSweep, BlockRun
from models.graph.graph import COLS, ROWS, Graph
from models.tensors.arrays import Floats, Ints

# Of what was computed so much is kept: a coordinator may have 1 GB for everything.
_MOST_BYTES = 100_000_000


class RunSplits:
    """The splittable blocks of one run of marks by their ends, each computed when it is needed.

    `quantities` are those of its nodes, in order; their groups are numbered from `first_group`.
    """

    def __init__(
        self,
        graph: Graph,
        run: BlockRun,
        lowest_cols: Sequence[Mark],
        quantities: Sequence[Quantity],
        first_group: int,
        axes: Mapping[int, Axis],
    ) -> None:
        self.run, self._lowest_cols, self._first = run, lowest_cols, first_group
        self._rows, self._cols = (AxisSweep(graph, run, axes[axis]) for axis in (ROWS, COLS))
        numbers: dict[tuple[int, int, int], int] = {}
        keys = (
            (
                bisect_right(run.nodes, quantity.node) - 1,
                self._rows.of(quantity.node, quantity.place),
                self._cols.of(quantity.node, quantity.place),
            )
            for quantity in quantities
        )
        self.group_of = [first_group + numbers.setdefault(key, len(numbers)) for key in keys]
        columns = np.array(list(numbers), dtype=np.int64).reshape(-1, 3)
        self._mark_of, self._row_of, self._col_of = columns.T
        self._enter = _Entering(graph, self._rows, self._cols)
        self._leave = _Leaving(graph, self._rows, self._cols)
        self._known: dict[Mark, Splits] = {}
        self._left_bytes = _MOST_BYTES

    @property
    def next_group(self) -> int:
        """The first number after its groups."""
        return self._first + len(self._mark_of)

    def at(self, end: Mark) -> Splits:
        """The blocks that end at a mark."""
        found = self._known.get(end)
        if found is None:
            found = self._known[end] = self._splits(end - self.run.lowest - 1)
            self._left_bytes -= found.groups.size_bytes
            while self._left_bytes < 0 and len(self._known) > 1:
                oldest = self._known.pop(next(iter(self._known)))
                self._left_bytes += oldest.groups.size_bytes
        return found

    def _splits(self, k: int) -> Splits:
        firsts = np.searchsorted(self._mark_of, np.arange(k + 2))
        count = int(firsts[-1])
        height, width = self.run.sizes[k + 1]
        entering, (rows, cols), sizes, names = self._enter.before(k)
        own_rows, own_cols, leaves, own_names = self._leave.before(k, self.run.nodes)
        return Splits(
            self.run.lowest,
            self._lowest_cols[k],
            height,
            width,
            slice(self._first, self._first + count),
            self._growth(k, self._row_of[:count], self._col_of[:count]),
            tuple(firsts[:-1].tolist()),
            self._growth(k, rows, cols),
            entering,
            sizes,
            self._growth(k, own_rows, own_cols),
            leaves,
            names,
            own_names,
        )

    def _growth(self, k: int, rows: Ints, cols: Ints) -> Growth:
        return Growth(*self._rows.ranges(k, rows), *self._cols.ranges(k, cols))


class _Entering:
    """What blocks read from others, by the mark at which they begin; nothing for blocks that
    compute from constants alone.
    """

    def __init__(self, graph: Graph, rows: AxisSweep, cols: AxisSweep) -> None:
        found = [
            (m, end, row, cols.entering[m][name][0], _element_bytes(graph, name), name)
            for m, live in enumerate(rows.entering)
            for name, (row, end) in live.items()
        ]
        self._names = tuple(name for *_, name in found)
        places = np.array([place for *place, _, _ in found], dtype=np.int64).reshape(-1, 4)
        self._marks, self._ends, self._rows, self._cols = places.T
        self._sizes = np.array([size for *_, size, _ in found], dtype=np.float64)

    def before(
        self, k: int
    ) -> tuple[tuple[slice, ...], tuple[Ints, Ints], Floats, tuple[str, ...]]:
        """For the blocks before the k-th end: slices by mark, rows, columns, bytes, names."""
        (chosen,) = np.nonzero((self._marks <= k) & (self._ends <= k))
        edges = np.searchsorted(self._marks[chosen], np.arange(k + 2)).tolist()
        slices = tuple(slice(a, b) for a, b in itertools.pairwise(edges))
        names = tuple(self._names[t] for t in chosen.tolist())
        return slices, (self._rows[chosen], self._cols[chosen]), self._sizes[chosen], names


class _Leaving:
    """What blocks compute that is read after them."""

    def __init__(self, graph: Graph, rows: AxisSweep, cols: AxisSweep) -> None:
        found = [
            (*own, cols.own[name][0], graph.producer[name], _element_bytes(graph, name), name)
            for name, own in rows.own.items()
        ]
        of_rows, begins, stops, of_cols, made, sizes, self._names = zip(*found, strict=True)
        self._begins, self._stops, self._made = map(np.array, (begins, stops, made))
        self._rows, self._cols, self._sizes = map(np.array, (of_rows, of_cols, sizes))

    def before(self, k: int, nodes: Sequence[int]) -> tuple[Ints, Ints, Floats, tuple[str, ...]]:
        """For the blocks before the k-th end: rows, columns, bytes by block, names."""
        (chosen,) = np.nonzero((self._begins <= k) & (k < self._stops))
        begins = np.array(nodes[: k + 1])[:, None]
        leaves: Floats = (self._made[chosen] >= begins) * self._sizes[chosen]
        names = tuple(self._names[t] for t in chosen.tolist())
        return self._rows[chosen], self._cols[chosen], leaves, names


def _element_bytes(graph: Graph, name: str) -> float:
    """Bytes on the wire per element (row x column) of a map."""
    elements = graph.size(name, ROWS) * graph.size(name, COLS)
    return graph.tensors[name].on_wire.nbytes / elements
