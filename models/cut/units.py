"""Units: where a plan may cut a network, and which tensors are live there.

A *layer* is a heavy node (convolution, fully connected, anything opaque) with the light nodes
that follow from it: BN, activation, residual Add, pool, concat. A *unit* is one layer; between
units lie *boundaries*, each with the explicit set of tensors that live across it.

Two kinds of boundary matter to planners. Inside a residual block a shortcut waits for an
elementwise operator (`bypass`): the papers' planners don't cut there, a residual block is one
unit to them [AOFL, section 5.6], so they search over `Network.marks`; halo exchange may cut at
every boundary.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_

from models.cut.encoded import ValueRanges, with_wire
from models.graph.graph import ROWS, Graph, Node
from models.operators import Kind, depends_on_constants, dequantises, operator, splits_along
from models.operators.geometry import Extent, extent
from models.tensors.boxes import Box, Span
from models.tensors.precision import Wire
from protos.errors import BadRequest

FindRanges = Callable[[], ValueRanges]
# FLOPs and elements read: less than 0.2 ms on a Raspberry Pi 4, whose messages take 0.5 ms or more.
_REPLICATED = 1 << 20


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between two nodes: the tensors that are made before it and read after it."""

    live: tuple[str, ...]
    bypass: bool


@dataclass(frozen=True, eq=False)
class Unit:
    """Consecutive nodes [start, stop) of the graph that no plan separates."""

    graph: Graph
    start: int
    stop: int

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes in topological order."""
        return self.graph.nodes[self.start : self.stop]

    @cached_property
    def name(self) -> str:
        """The operator of its heaviest node, for display."""
        heavy = [node for node in self.nodes if operator(node).heavy]
        return (heavy or self.nodes)[0].name

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that it makes and that are read after it or are outputs of the network; the
        last is the main one.
        """
        return block_outputs(self.graph, self.start, self.stop)

    @cached_property
    def splits(self) -> bool:
        """Whether rows of its outputs can be computed apart."""
        return all(splits_along(self.graph, node, ROWS) for node in self.nodes)

    @cached_property
    def is_replicable(self) -> bool:
        """Whether every device may compute it for itself, as the gate of a squeeze-and-excitation:
        it has no rows, takes less time than another message, and comes before something that is
        split.
        """
        graph = self.graph
        if any(graph.size(name, ROWS) > 1 for name in self.outputs):
            return False
        if not any(splits_along(graph, node, ROWS) for node in graph.nodes[self.stop :]):
            return False
        return self._is_slight

    @cached_property
    def _is_slight(self) -> bool:
        """Whether all of it takes less time than another message."""
        graph = self.graph
        touched = dict.fromkeys(name for node in self.nodes for name in node.inputs if name)
        read = sum(math.prod(graph.shape(name)) for name in touched)
        whole = (Box.whole(graph.shape(node.outputs[0])) for node in self.nodes)
        flop = sum(
            max(node.timed_flop, operator(node).flop(graph, node, box))
            for node, box in zip(self.nodes, whole, strict=True)
        )
        return read + flop <= _REPLICATED

    @cached_property
    def is_divisible(self) -> bool:
        """Whether tiles of a block may contain it: in parts, or each of them all of it."""
        return self.splits or self.is_replicable

    def extent(self, demand: Mapping[str, Box]) -> Extent:
        """Backward geometry through this unit alone."""
        return extent(self.graph, self.nodes, demand)


@dataclass(frozen=True, eq=False)
class Network:
    """A graph with its units. `boundaries[i]` lies before unit `i`; the last is the end.

    `wire` is the encoding of its maps between blocks; `ranges` finds what 8-bit encodings cover.
    """

    graph: Graph
    units: tuple[Unit, ...]
    boundaries: tuple[Boundary, ...]
    wire: Wire = "exact"
    ranges: FindRanges | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.graph.name

    @cached_property
    def memo(self) -> dict[object, object]:
        """A cache for values that other modules derive from this network."""
        return {}

    def wired(self, wire: Wire) -> "Network":
        """The same network with its maps in this encoding; cached.

        Raises:
            BadRequest: 8 bits, and no inputs to find ranges with.
        """
        if wire not in self._variants:
            graph = with_wire(self.graph, wire, self._found() if wire == "int8" else {})
            units = tuple(Unit(graph, unit.start, unit.stop) for unit in self.units)
            made = Network(graph, units, self.boundaries, wire, self.ranges)
            made.__dict__["_variants"] = self._variants
            self._variants[wire] = made
        return self._variants[wire]

    @cached_property
    def _variants(self) -> "dict[Wire, Network]":
        return {self.wire: self}

    def _found(self) -> ValueRanges:
        if self.ranges is None:
            raise BadRequest(
                cause=f"the ranges of {self.name}'s maps, which 8 bits need, are not known",
                cure="Use the wire fp16",
            )
        return self.ranges()

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """Boundaries (by index) outside residual blocks, from the first to the end."""
        return tuple(i for i, boundary in enumerate(self.boundaries) if not boundary.bypass)

    def nodes(self, start: int, stop: int) -> tuple[Node, ...]:
        """Nodes of the units [start, stop)."""
        return self.graph.nodes[self.units[start].start : self.units[stop - 1].stop]

    def outputs(self, start: int, stop: int) -> tuple[str, ...]:
        """Tensors that the block of units [start, stop) must yield; the main one last."""
        found = self._outputs.get((start, stop))
        if found is None:
            first, beyond = self.units[start].start, self.units[stop - 1].stop
            found = self._outputs[start, stop] = block_outputs(self.graph, first, beyond)
        return found

    @cached_property
    def _outputs(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """A cache by block, with at most half the square of the number of units."""
        return {}

    def is_divisible(self, start: int, stop: int) -> bool:
        """Whether the block can be computed in tiles."""
        return all(unit.is_divisible for unit in self.units[start:stop])

    def gathers(self, index: int) -> bool:
        """Whether a unit that every device may compute for itself needs all rows of what takes
        longer than a message: in a block with that, every tile would compute all of it.
        """
        unit, graph = self.units[index], self.graph
        if unit.splits or not unit.is_replicable:
            return False
        starts = [unit.start for unit in self.units[:index]]
        read = {name for node in unit.nodes for name in node.inputs if name in graph.producer}
        makers = {graph.producer[name] for name in read if graph.size(name, ROWS) > 1}
        before = {bisect_right(starts, maker) - 1 for maker in makers if maker < unit.start}
        return any(not self.units[number]._is_slight for number in before)


def block_outputs(graph: Graph, start: int, stop: int) -> tuple[str, ...]:
    """Tensors made by nodes [start, stop) and needed outside; the latest last."""
    last = graph.last_reader
    return tuple(
        name
        for node in graph.nodes[start:stop]
        for name in node.outputs
        if name and last.get(name, -1) >= stop
    )


def divide(graph: Graph, ranges: FindRanges | None = None) -> Network:
    """Divides a graph into units, as finely as any plan may cut it."""
    edges = [0, *_layer_starts(graph), len(graph.nodes)]
    units = tuple(Unit(graph, start, stop) for start, stop in itertools.pairwise(edges))
    boundaries = list(_boundaries(graph, edges))
    for index, (before, after) in enumerate(itertools.pairwise(units), start=1):
        # No block extends beyond a unit that cannot be split, so a plan may always cut there: a
        # gate or a normalisation between two convolutions does not keep them from being split.
        if before.is_divisible != after.is_divisible:
            boundaries[index] = replace(boundaries[index], bypass=False)
    return Network(graph, units, tuple(boundaries), ranges=ranges)


def _layer_starts(graph: Graph) -> list[int]:
    """Node indices, after the first, at which a new layer begins."""
    starts: list[int] = []
    made: set[str] = set()
    begun = has_heavy = splits_here = after_sum = computes = False
    for index, node in enumerate(graph.nodes):
        if dequantises(node) or depends_on_constants(graph, node):
            # It belongs to its reader.
            made.update(node.outputs if made.intersection(node.inputs) else ())
            continue
        heavy = operator(node).heavy
        splits = splits_along(graph, node, ROWS) and not _lists_for_one(graph, node)
        joined = bool(made.intersection(node.inputs))
        # A layer holds one heavy node, and never both nodes that can and nodes that cannot be
        # split. After a fully connected node with partial sums the next layer begins: they must be
        # added before the activation. Rows that become windows, or windows rows, may be exchanged,
        # and rows that are rolled again. What needs all rows that a layer computes is not computed
        # by it: every device would compute them all.
        moves_rows = operator(node).kind is Kind.LAYOUT and (heavy or groups_rows(graph, node))
        begins = (heavy and has_heavy) or (splits != splits_here) or not joined or after_sum
        begins = begins or moves_rows or (computes and _gathers(graph, node, made))
        if begun and begins:
            # A node's dequantised inputs belong to its layer, so that the live tensors before it
            # are quantised.
            first, lowest = index, starts[-1] + 1 if starts else 1
            while first > lowest and dequantises(graph.nodes[first - 1]):
                first -= 1
            starts.append(first)
            made, has_heavy, computes = set(), False, False
        made.update(node.outputs)
        has_heavy = has_heavy or heavy
        computes = computes or operator(node).kind is not Kind.LAYOUT
        begun, splits_here = True, splits
        plain = all(name in graph.constants for name in node.inputs[1:])
        vector = graph.shape(node.outputs[0])[:-1] == (1,)
        after_sum = heavy and plain and vector and operator(node).kind is Kind.MIXING
    return starts


def groups_rows(graph: Graph, node: Node) -> bool:
    """Whether it makes fewer rows of many, and others follow: windows begin or end there."""
    readers = graph.consumers.get(node.outputs[0], ())
    if node.op != "Reshape" or [graph.nodes[reader].op for reader in readers] != ["Transpose"]:
        return False
    before, after = (graph.size(name, ROWS) for name in (node.inputs[0], node.outputs[0]))
    return 1 < after < before


def _lists_for_one(graph: Graph, node: Node) -> bool:
    """Whether it joins rows of several maps for nodes that need all of them: parts of this list
    would be other rows than those that the devices have.
    """
    made = node.outputs[0]
    axis, readers = graph.axis(made, ROWS), graph.consumers.get(made, ())
    if node.op != "Concat" or axis != node.int("axis", 1) % len(graph.shape(made)) or not readers:
        return False
    return not any(splits_along(graph, graph.nodes[reader], ROWS) for reader in readers)


def _gathers(graph: Graph, node: Node, made: Container[str]) -> bool:
    """Whether each row that it makes needs all rows of something that is `made` here."""
    axis = graph.axis(node.outputs[0], ROWS)
    if axis is None or graph.size(node.outputs[0], ROWS) < 2 or not operator(node).aligned:
        return False
    first = Box.whole(graph.shape(node.outputs[0])).replace(axis, Span(0, 1))
    for name, box in zip(node.inputs, operator(node).reads(graph, node, first), strict=True):
        if name in made and box is not None:
            place, lines = graph.axis(name, ROWS), graph.size(name, ROWS)
            if place is not None and lines == len(box[place]) > 1:
                return True
    return False


def _boundaries(graph: Graph, marks: Sequence[int]) -> Iterator[Boundary]:
    """For ascending marks: the tensors made before each and read after it, in the order made."""
    live, before = list(graph.inputs), 0
    for mark in marks:
        live += [name for node in graph.nodes[before:mark] for name in node.outputs if name]
        live = [name for name in live if graph.consumers.get(name, (-1,))[-1] >= mark]
        before = mark
        # Before the first node there is no block, however many inputs are added.
        inside = mark > 0 and len(live) > 1 and _inside_residual(graph, mark, live)
        yield Boundary(tuple(live), bypass=inside)


def _inside_residual(graph: Graph, mark: int, live: Sequence[str]) -> bool:
    """Whether a later elementwise operator joins branches from different live tensors, so that the
    boundary lies between a shortcut's fork and its join.
    """
    # Sets of live tensors, as the bits of a number.
    origins = {name: 1 << k for k, name in enumerate(live)}
    for node in graph.nodes[mark:]:
        operands = {origins[name] for name in node.inputs if name in origins}
        if len(operands) > 1 and operator(node).kind is Kind.POINTWISE:
            return True
        reached = reduce(or_, operands, 0)
        origins.update((name, reached) for name in node.outputs)
    return False


def layers_of(units: Sequence[Unit]) -> list[str]:
    """Names of the heavy nodes, for reports."""
    return [node.name for unit in units for node in unit.nodes if operator(node).heavy]
