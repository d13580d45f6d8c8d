"""Backward sweeps over a network: from one end, every block that ends there, front by front."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.planning.axes import ROWS, Ranges, axis_size, node_ranges
from models.boxes import Box, Span
from models.graph import Graph, Node
from models.tiles import MapTile, map_size, tile_boxes
from models.units import Network, block_outputs
from models.work import Work, works

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """Something that grows with a tile: FLOPs and bytes per element (row x column) of the output
    of a node (`place` -1), or of its input at `place`.
    """

    node: int
    place: int
    flop: float
    input_bytes: float
    output_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Blocks [i, end) on one device. Per node before the end: `features[n]` = FLOPs and bytes in,
    out and of weights; per mark i before it, bytes in and out.
    """

    features: Floats
    input_bytes: Floats
    output_bytes: Floats


def node_index(network: Network, mark: int) -> int:
    """The first node after boundary `mark`."""
    return network.units[mark].start if mark < len(network.units) else len(network.graph.nodes)


class WholeSweep:
    """Exact extents of the whole map. `node_works`, `computed` and `reads` are those of the last
    sweep, by node.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.node_works: dict[int, Work] = {}
        self.computed: dict[int, Box] = {}
        self.reads: dict[int, tuple[Box | None, ...]] = {}

    def until(self, end: int) -> Whole:
        """Every block that ends at mark `end` (an index into marks)."""
        network, graph = self.network, self.network.graph
        marks = network.marks
        stop_node = node_index(network, marks[end])
        features = np.zeros((stop_node, 4))
        input_bytes, output_bytes = np.zeros(end), np.zeros(end)
        outside = set(block_outputs(graph, 0, stop_node))
        wanted: dict[str, Box] = {}
        gathered = 0
        for index in range(end - 1, -1, -1):
            for unit in reversed(network.units[marks[index] : marks[index + 1]]):
                own = [n for node in unit.nodes for n in node.outputs if n in outside]
                wanted.update((name, Box.whole(graph.shape(name))) for name in own)
                gathered += sum(graph.tensors[name].on_wire.nbytes for name in own)
                reach = unit.extent(wanted)
                wanted = dict(reach.inputs)
                made = [k for k, n in enumerate(unit.nodes) if n.outputs[0] in reach.computed]
                for k, work in zip(made, works(graph, unit.nodes, reach), strict=True):
                    n = unit.start + k
                    features[n] = features_of(work)
                    self.node_works[n] = work
                    self.computed[n] = reach.computed[unit.nodes[k].outputs[0]]
                    self.reads[n] = reach.reads[k]
            input_bytes[index] = sum(
                box.volume * graph.tensors[name].wire_itemsize for name, box in wanted.items()
            )
            output_bytes[index] = gathered
        return Whole(features, input_bytes, output_bytes)


def features_of(work: Work) -> tuple[int, int, int, int]:
    """What rates multiply: FLOPs and bytes in, out and of weights."""
    return work.flop, work.input_bytes, work.output_bytes, work.weight_bytes


def weight_bytes_before(network: Network) -> Floats:
    """Bytes of constants that the nodes before each mark hold, each constant once."""
    graph = network.graph
    seen: set[str] = set()
    sums = [0.0]
    for start, stop in itertools.pairwise(network.marks):
        names = {name for node in network.nodes(start, stop) for name in node.inputs} - seen
        names &= graph.constants.keys()
        sums.append(sums[-1] + sum(graph.constants[name].nbytes for name in names))
        seen |= names
    return np.array(sums)


class AxisSweep:
    """Ranges along one axis of everything that units [start, stop) compute and read.

    `own`: the share of each of the block's outputs; `entering[i]`: what blocks that begin at
    unit i read of each tensor.
    """

    def __init__(self, network: Network, start: int, stop: int, axis: int) -> None:
        graph = network.graph
        self.size = map_size(network, 0, stop)[axis - ROWS]
        self.own: dict[str, Ranges] = {}
        self.entering: dict[int, dict[str, Ranges]] = {}
        self._ranges: dict[tuple[int, int], Ranges] = {}
        outside = {
            name: _own_ranges(network, stop, name, axis, self.size)
            for name in block_outputs(graph, 0, node_index(network, stop))
        }
        wanted: dict[str, Ranges] = {}
        for index in range(stop - 1, start - 1, -1):
            unit = network.units[index]
            for name in (n for node in unit.nodes for n in node.outputs if n in outside):
                self.own[name] = outside[name]
                wanted[name] = outside[name].hull(wanted.get(name, outside[name]))
            for place in range(len(unit.nodes) - 1, -1, -1):
                self._back(graph, unit.start + place, unit.nodes[place], axis, wanted)
            self.entering[index] = dict(wanted)

    def _back(
        self, graph: Graph, index: int, node: Node, axis: int, wanted: dict[str, Ranges]
    ) -> None:
        ranges = wanted.pop(node.outputs[0], None)
        if ranges is None:
            return
        self._ranges[index, -1] = ranges
        for place, reads in enumerate(node_ranges(graph, node, axis)):
            if reads is not None:
                name, part = node.inputs[place], ranges.through(reads)
                self._ranges[index, place] = part
                wanted[name] = part.hull(wanted.get(name, part))

    def of(self, node: int, place: int) -> Ranges:
        """What is computed of a node's output (`place` -1) or read of an input; empty if dead."""
        return self._ranges.get((node, place), Ranges.constant(self.size, 0))


def _own_ranges(network: Network, stop: int, name: str, axis: int, size: int) -> Ranges:
    """The share of a block's output that belongs to each tile, as `tile_boxes` divides it.

    A tile too small to own a row of a smaller tensor gets an empty range of it; its demand is
    then rounded up by at most the window's reach, so such a tile is never costed too low.
    """
    other = axis_size(network.graph, name, axis)
    if other == size:
        return Ranges.identity(size)
    height, width = map_size(network, 0, stop)

    def share(span: Span) -> Span | None:
        tile = MapTile(span, Span(0, width)) if axis == ROWS else MapTile(Span(0, height), span)
        box = tile_boxes(network, 0, stop, tile).get(name)
        if box is None or len(box) <= axis:
            return None if box is None else Span(0, 1)
        return box[axis]

    begins = [share(Span(a, size)) for a in range(size)]
    ends = [share(Span(0, b)) for b in range(1, size + 1)]
    first = [other if span is None else span.start for span in begins]
    last = [0 if span is None else span.stop for span in ends]
    return Ranges(np.array([*first, other]), np.array([0, *last]))
