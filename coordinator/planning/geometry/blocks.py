"""What the blocks of a network need that does not depend on the cluster, computed once.

A block is [i, end): `i` and `end` are *marks*, which number the geometry's boundaries: those
outside residual blocks, or all of the network's. Blocks that can be split are all swept backwards
at once (`sweeps`).

Blocks on one device: the exact work and bytes of every block, from few sweeps over a network.

A block that ends at a mark computes the same of its units as the whole network does, provided that
the whole network needs everything that lives across the mark. So one sweep serves nearly all ends;
marks across which a tensor lives whose later readers skip some rows get their own sweeps.
"""

import itertools
import math
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coordinator.planning.geometry.axes import Axis
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.run_splits import RunSplits
from coordinator.planning.geometry.splits import Quantity, Splits
from coordinator.planning.geometry.sweeps import BlockRun
from models.cut.tile_work import TileWork, unit_work
from models.cut.tiles import even_spans, map_size
from models.cut.units import Network, Unit, block_outputs
from models.graph.graph import COLS, ROWS, Graph
from models.operators import splits_along
from models.operators.work import NodeWork
from models.tensors.arrays import Floats, Ints
from models.tensors.boxes import Box


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """Blocks [i, end) on one device. For each node before the end: `features[n]` = FLOPs and bytes
    in, out and of weights; for each mark i before it, bytes in and out.
    """

    features: Floats
    input_bytes: Floats
    output_bytes: Floats


class _WholeSweep:
    """Exact extents of the blocks between `boundaries` that end at mark `end`, with whole maps:
    work, boxes and reads by node; for each unit what is needed of it and what it reads of others.
    """

    def __init__(self, network: Network, boundaries: Sequence[int], end: Mark) -> None:
        self.node_works: dict[int, NodeWork] = {}
        self.computed: dict[int, Box] = {}
        self.reads: dict[int, tuple[Box | None, ...]] = {}
        self.demands: dict[str, Box] = {}
        self.inputs: list[tuple[int, Mapping[str, Box]]] = []
        graph = network.graph
        stop_node = _node_index(network, boundaries[end])
        self.features = np.zeros((stop_node, 4))
        self.input_bytes, self.output_bytes = np.zeros(end), np.zeros(end)
        outside = set(block_outputs(graph, 0, stop_node))
        wanted: dict[str, Box] = {}
        gathered = 0
        for index in range(end - 1, -1, -1):
            for unit in reversed(network.units[boundaries[index] : boundaries[index + 1]]):
                own = [n for node in unit.nodes for n in node.outputs if n in outside]
                wanted.update((name, Box.whole(graph.shape(name))) for name in own)
                gathered += sum(graph.tensors[name].on_wire.nbytes for name in own)
                demand = {n: wanted.pop(n) for n in unit.outputs if n in wanted}
                tile_work = unit_work(network, unit, demand)
                for name, box in tile_work.reach.inputs.items():
                    wanted[name] = box.hull(wanted.get(name, box))
                self.demands |= demand
                self.inputs.append((index, tile_work.reach.inputs))
                self._note(unit, tile_work)
            self.input_bytes[index] = sum(
                box.volume * graph.tensors[name].wire_itemsize for name, box in wanted.items()
            )
            self.output_bytes[index] = gathered

    def _note(self, unit: Unit, tile_work: TileWork) -> None:
        reach = tile_work.reach
        made = [k for k, node in enumerate(unit.nodes) if node.outputs[0] in reach.computed]
        for k, work in zip(made, tile_work.works, strict=True):
            n = unit.start + k
            self.features[n] = (work.flop, work.input_bytes, work.output_bytes, work.weight_bytes)
            self.node_works[n] = work
            self.computed[n] = reach.computed[unit.nodes[k].outputs[0]]
            self.reads[n] = reach.reads[k]

    @property
    def whole(self) -> _Whole:
        """The blocks."""
        return _Whole(self.features, self.input_bytes, self.output_bytes)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A run of splittable blocks before its sweep, and its part of the quantities."""

    run: BlockRun
    lowest_cols: Sequence[Mark]
    chosen: slice


class Geometry:
    """The blocks of one network between `boundaries` (given as the units before each; by default
    the network's marks); `axes` are the ranges of its nodes. It holds no reference to the network,
    so that caches can drop it.
    """

    def __init__(
        self,
        network: Network,
        boundaries: Sequence[int] | None = None,
        axes: Mapping[int, Axis] | None = None,
    ) -> None:
        self.axes = axes or {axis: Axis(network.graph, axis) for axis in (ROWS, COLS)}
        self.boundaries = tuple(network.marks if boundaries is None else boundaries)
        self.marks = tuple(map(Mark, range(len(self.boundaries))))
        self.nodes = tuple(_node_index(network, boundary) for boundary in self.boundaries)
        self.sizes = ((1, 1), *(map_size(network, 0, boundary) for boundary in self.boundaries[1:]))
        sweep = _WholeSweep(network, self.boundaries, self.marks[-1])
        self.wholes = tuple(_wholes(network, self.boundaries, sweep))
        self.node_works = sweep.node_works
        self.relaid_bytes_before = _relaid_bytes_before(sweep, self.nodes)
        self.weight_bytes_before = _weight_bytes_before(network, self.boundaries)
        self.quantities = _quantities(network.graph, sweep)
        self._graph = network.graph
        self._planned = tuple(_planned(network, self))

    @cached_property
    def splits(self) -> "Ends":
        """The splittable blocks that end at each mark; None if there are none."""
        return Ends(self._runs, len(self.boundaries))

    @cached_property
    def _runs(self) -> tuple[RunSplits, ...]:
        """Sweeps all runs; group 0 is reserved for quantities of what can't be split."""
        found: list[RunSplits] = []
        for planned in self._planned:
            first = found[-1].next_group if found else 1
            chosen = self.quantities[planned.chosen]
            found.append(
                RunSplits(self._graph, planned.run, planned.lowest_cols, chosen, first, self.axes)
            )
        return tuple(found)

    @cached_property
    def groups(self) -> Ints:
        """The group of each quantity; a group's quantities belong to one mark and grow alike."""
        found = np.zeros(len(self.quantities), dtype=np.int64)
        for planned, run in zip(self._planned, self._runs, strict=True):
            found[planned.chosen] = run.group_of
        return found

    @cached_property
    def moved(self) -> tuple[Ints, Floats]:
        """For each quantity: its node, and the bytes read and written per element."""
        return (
            np.array([quantity.node for quantity in self.quantities], dtype=np.int64),
            np.array(
                [quantity.input_bytes + quantity.output_bytes for quantity in self.quantities]
            ),
        )


class Ends(Sequence[Splits | None]):
    """The splittable blocks by the mark at which they end."""

    def __init__(self, runs: Sequence[RunSplits], count: int) -> None:
        self._runs: list[RunSplits | None] = [None] * count
        for run in runs:
            stop = run.run.lowest + len(run.run.nodes)
            self._runs[run.run.lowest + 1 : stop] = [run] * (len(run.run.nodes) - 1)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, end: Mark) -> Splits | None:  # type: ignore[override]
        run = self._runs[end]
        return None if run is None else run.at(end)


def _node_index(network: Network, boundary: int) -> int:
    """The first node after a boundary, which is given as the units before it."""
    units = network.units
    return units[boundary].start if boundary < len(units) else len(network.graph.nodes)


def _wholes(network: Network, boundaries: Sequence[int], last: _WholeSweep) -> Iterator[_Whole]:
    """The blocks that end at each mark; `last` is the sweep from the last one."""
    graph, count = network.graph, len(boundaries)
    nodes = [_node_index(network, boundary) for boundary in boundaries]
    inputs = _input_bytes(network, nodes, last)
    outputs = np.zeros((count, count))
    alone = np.zeros(count, dtype=np.bool_)
    for name, maker in graph.producer.items():
        made = bisect_right(nodes, maker)
        live = slice(made, bisect_right(nodes, graph.last_reader.get(name, -1)))
        outputs[:made, live] += graph.tensors[name].on_wire.nbytes if name else 0
        if last.demands.get(name) != Box.whole(graph.shape(name)):
            alone[live] = True
    for end in range(count):
        if alone[end]:
            yield _WholeSweep(network, boundaries, Mark(end)).whole
        else:
            yield _Whole(last.features[: nodes[end]], inputs[:end, end], outputs[:end, end])


def _input_bytes(network: Network, nodes: Sequence[int], last: _WholeSweep) -> Floats:
    """[i, e]: bytes that the block between two marks reads, if it reads as the whole
    network does.
    """
    graph, count = network.graph, len(nodes)
    readers: dict[str, dict[int, Box]] = {}
    for index, inputs in reversed(last.inputs):
        for name, box in inputs.items():
            by_mark = readers.setdefault(name, {})
            by_mark[index] = box.hull(by_mark.get(index, box))
    found = np.zeros((count, count))
    for name, by_mark in readers.items():
        size = graph.tensors[name].wire_itemsize
        before = bisect_right(nodes, graph.producer.get(name, -1)) - 1
        edges = [before, *by_mark, count - 1]
        for place, first in enumerate(by_mark, start=1):
            box = by_mark[first]
            begins = slice(edges[place - 1] + 1, first + 1)
            for after, (index, other) in enumerate(
                itertools.islice(by_mark.items(), place - 1, None), start=place + 1
            ):
                box = box.hull(other)
                found[begins, index + 1 : edges[after] + 1] += box.volume * size
    return found


# Costs are found for each pair of marks: of more marks, the search would take ever longer, and its
# tables more than a coordinator has.
_MOST_MARKS = 160

_CACHE: weakref.WeakKeyDictionary[Network, dict[bool, Geometry]] = weakref.WeakKeyDictionary()


def geometry_of(network: Network, *, fine: bool = False) -> Geometry:
    """The geometry of a network, cached for the network's lifetime. `fine`: blocks may begin and
    end at any boundary, also inside residual blocks.
    """
    kept = _CACHE.setdefault(network, {})
    coarse = _boundaries_of(network)
    fine = fine and len(coarse) < len(network.boundaries)
    if fine not in kept:
        axes = next((known.axes for known in kept.values()), None)
        boundaries = range(len(network.boundaries)) if fine else coarse
        kept[fine] = Geometry(network, boundaries, axes)
    return kept[fine]


def _boundaries_of(network: Network) -> Sequence[int]:
    """The network's marks; of many, in every run of neighbours that with the fewest bytes across
    it.
    """
    first, *inner, last = network.marks
    if len(inner) <= _MOST_MARKS:
        return network.marks
    tensors = network.graph.tensors

    def live_bytes(boundary: int) -> int:
        return sum(tensors[name].on_wire.nbytes for name in network.boundaries[boundary].live)

    runs = (inner[run.start : run.stop] for run in even_spans(len(inner), _MOST_MARKS))
    return (first, *(min(run, key=live_bytes) for run in runs), last)


def _weight_bytes_before(network: Network, boundaries: Sequence[int]) -> Floats:
    """Bytes of constants that the nodes before each boundary hold, each constant once."""
    graph = network.graph
    seen: set[str] = set()
    sums = [0.0]
    for start, stop in itertools.pairwise(boundaries):
        names = {name for node in network.nodes(start, stop) for name in node.inputs} - seen
        names &= graph.constants.keys()
        sums.append(sums[-1] + sum(graph.constants[name].nbytes for name in names))
        seen |= names
    return np.array(sums)


def _relaid_bytes_before(sweep: _WholeSweep, nodes: Sequence[int]) -> Floats:
    """Bytes of weights that engines lay out anew, before each of these nodes."""
    sizes = np.zeros(nodes[-1] + 1)
    for index, work in sweep.node_works.items():
        sizes[index + 1] = work.relaid_bytes
    before: Floats = np.cumsum(sizes)[list(nodes)]
    return before


def _lowest(network: Network, boundaries: Sequence[int], axis: int) -> list[Mark]:
    """For every mark, the earliest mark such that all nodes between can be split along `axis`, and
    no tile computes all rows of what only the others need.
    """
    lowest = [Mark(0)]
    for end, (start, stop) in enumerate(itertools.pairwise(boundaries), start=1):
        before = Mark(end - 1) if network.gathers(start) else lowest[-1]
        splits = all(
            unit.is_replicable
            or all(splits_along(network.graph, node, axis) for node in unit.nodes)
            for unit in network.units[start:stop]
        )
        lowest.append(before if splits else Mark(end))
    return lowest


def _planned(network: Network, geometry: Geometry) -> Iterator[_Planned]:
    boundaries = geometry.boundaries
    lowest_rows, lowest_cols = (_lowest(network, boundaries, axis) for axis in (ROWS, COLS))
    nodes = [quantity.node for quantity in geometry.quantities]
    for lowest, ends in itertools.groupby(geometry.marks, key=lowest_rows.__getitem__):
        part = slice(lowest, list(ends)[-1] + 1)
        stops = geometry.nodes[part]
        if len(stops) > 1:
            units = [network.units[a:b] for a, b in itertools.pairwise(boundaries[part])]
            yield _Planned(
                BlockRun(lowest, units, stops, geometry.sizes[part]),
                [max(lowest, col) for col in lowest_cols[part][1:]],
                slice(bisect_left(nodes, stops[0]), bisect_left(nodes, stops[-1])),
            )


def _quantities(graph: Graph, sweep: _WholeSweep) -> tuple[Quantity, ...]:
    """For each node: its output (FLOPs and bytes written), then each input that it reads."""
    found = []
    for index, work in sorted(sweep.node_works.items()):
        node = graph.nodes[index]
        area = _area(graph, node.outputs[0], sweep.computed[index])
        found.append(Quantity(index, -1, work.flop / area, 0.0, work.output_bytes / area))
        for place, (name, box) in enumerate(zip(node.inputs, sweep.reads[index], strict=False)):
            if box is not None and name and name not in graph.constants:
                size = box.volume * graph.tensors[name].itemsize
                found.append(Quantity(index, place, 0.0, size / _area(graph, name, box), 0.0))
    return tuple(found)


def _area(graph: Graph, tensor: str, box: Box) -> int:
    """Rows by columns of a box of a tensor."""
    axes = (graph.axis(tensor, ROWS), graph.axis(tensor, COLS))
    return max(1, math.prod(len(box[axis]) for axis in axes if axis is not None))
