"""Blocks on one device: the exact work and bytes of every block, from few sweeps over a network.

A block that ends at a mark computes the same of its units as the whole network does, provided that
the whole network needs everything that lives across the mark. So one sweep serves nearly all ends;
marks across which a tensor lives whose later readers skip some rows get their own sweeps.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.geometry.marks import Mark
from models.cut.units import Network, Unit, block_outputs
from models.cut.worked import Worked, unit_worked
from models.operators.work import NodeWork
from models.tensors.arrays import Floats
from models.tensors.boxes import Box


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Blocks [i, end) on one device. For each node before the end: `features[n]` = FLOPs and bytes
    in, out and of weights; for each mark i before it, bytes in and out.
    """

    features: Floats
    input_bytes: Floats
    output_bytes: Floats


def node_index(network: Network, boundary: int) -> int:
    """The first node after a boundary, which is given as the units before it."""
    units = network.units
    return units[boundary].start if boundary < len(units) else len(network.graph.nodes)


class WholeSweep:
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
        stop_node = node_index(network, boundaries[end])
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
                worked = unit_worked(network, unit, demand)
                for name, box in worked.reach.inputs.items():
                    wanted[name] = box.hull(wanted.get(name, box))
                self.demands |= demand
                self.inputs.append((index, worked.reach.inputs))
                self._note(unit, worked)
            self.input_bytes[index] = sum(
                box.volume * graph.tensors[name].wire_itemsize for name, box in wanted.items()
            )
            self.output_bytes[index] = gathered

    def _note(self, unit: Unit, worked: Worked) -> None:
        reach = worked.reach
        made = [k for k, node in enumerate(unit.nodes) if node.outputs[0] in reach.computed]
        for k, work in zip(made, worked.works, strict=True):
            n = unit.start + k
            self.features[n] = (work.flop, work.input_bytes, work.output_bytes, work.weight_bytes)
            self.node_works[n] = work
            self.computed[n] = reach.computed[unit.nodes[k].outputs[0]]
            self.reads[n] = reach.reads[k]

    @property
    def whole(self) -> Whole:
        """The blocks."""
        return Whole(self.features, self.input_bytes, self.output_bytes)


def wholes(network: Network, boundaries: Sequence[int], last: WholeSweep) -> Iterator[Whole]:
    """The blocks that end at each mark; `last` is the sweep from the last one."""
    graph, count = network.graph, len(boundaries)
    nodes = [node_index(network, each) for each in boundaries]
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
            yield WholeSweep(network, boundaries, Mark(end)).whole
        else:
            yield Whole(last.features[: nodes[end]], inputs[:end, end], outputs[:end, end])


def _input_bytes(network: Network, nodes: Sequence[int], last: WholeSweep) -> Floats:
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
