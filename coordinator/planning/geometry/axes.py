"""How ranges propagate backwards along one axis, for all tiles at once.

Along rows (or columns), the first element that a tile needs of a tensor depends only on the first
element of the tile, and the last only on the last. So a whole family of tiles is two arrays:
`first[a]` for tiles that begin at `a`, `last[b]` for tiles that end before `b`. Extending a block
by one node is one look-up per array, whatever the number of tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from models.graph.graph import ROWS, Graph, Node
from models.operators import Kind, keeps_lines, operator
from models.tensors.boxes import Box, Span
from models.tensors.windows import Window

# Ranges are most of the memory that planning needs: 32 bits suffice for rows and columns.
Positions = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The ranges [first[a], last[b]) of one tensor along one axis, for tiles [a, b), a < b.

    Both arrays have an entry for each of 0..size of the tiled map and are non-decreasing;
    `first[size]` and `last[0]` belong to no tile. No range is inverted. `gaps`: small tiles may
    need nothing of the tensor; then, too, first[k] does not exceed last[k].
    """

    first: Positions
    last: Positions
    gaps: bool = False
    is_identity: bool = False

    @classmethod
    def identity(cls, size: int) -> "Ranges":
        """The ranges of the tiled tensor itself."""
        marks = np.arange(size + 1, dtype=np.int32)
        return cls(marks, marks, is_identity=True)

    @classmethod
    def constant(cls, size: int, whole: int) -> "Ranges":
        """The ranges of a tensor that every tile needs completely."""
        return cls(np.zeros(size + 1, dtype=np.int32), np.full(size + 1, whole, dtype=np.int32))

    @property
    def is_everything(self) -> bool:
        """Whether every tile needs all of several rows."""
        most = self.last.max()
        return bool(most > 1 and self.first.max() == 0 and self.last.min() == most)


@dataclass(frozen=True, slots=True, eq=False)
class NodeRanges:
    """How one node propagates ranges along one axis.

    `computed`: what it computes to yield a range of its output; None: exactly that range.
    `reads[k]`: what it reads of its k-th input to compute a range; None for constants.
    """

    computed: Ranges | None
    reads: tuple[Ranges | None, ...]


class Axis:
    """What the nodes of a graph compute and read of the rows or columns (`which`) of maps; found
    once per node, for all blocks that contain it.
    """

    def __init__(self, graph: Graph, which: int) -> None:
        self.graph, self.which = graph, which
        self._known: dict[int, NodeRanges] = {}

    def of(self, index: int) -> NodeRanges:
        """The ranges of one node."""
        found = self._known.get(index)
        if found is None:
            found = self._known[index] = _node_ranges(
                self.graph, self.graph.nodes[index], self.which
            )
        return found


def _node_ranges(graph: Graph, node: Node, which: int) -> NodeRanges:
    size = graph.size(node.outputs[0], which)
    axis = graph.axis(node.outputs[0], which)
    slides = axis is not None and ROWS <= axis < ROWS + len(node.windows)
    windowed = slides and operator(node).kind is Kind.WINDOWED
    if windowed and graph.axis(node.inputs[0], which) == axis:
        return _windowed_ranges(graph, node, which, size)
    given = [bool(name) and name not in graph.constants for name in node.inputs]
    if keeps_lines(graph, node, which):
        same = Ranges.identity(size)
        return NodeRanges(None, tuple(same if is_read else None for is_read in given))
    parts = operator(node).in_parts
    if parts is not None and which == ROWS and axis is not None:
        found = parts(graph, node)
        if found is not None:
            computed, read = _in_parts(size, *found)
            return NodeRanges(computed, (read, *(None for _ in given[1:])))
    if operator(node).kind is Kind.OPAQUE or parts is not None:
        return NodeRanges(
            None if size == 1 else Ranges.constant(size, size),
            tuple(
                Ranges.constant(size, graph.size(name, which)) if is_read else None
                for name, is_read in zip(node.inputs, given, strict=True)
            ),
        )
    if operator(node).aligned and axis is not None:
        return _aligned(graph, node, which, size, given)
    return _probed(graph, node, which, size, given)


def _windowed_ranges(graph: Graph, node: Node, which: int, size: int) -> NodeRanges:
    """Windows slide over the first input; other inputs (such as scales) are read completely."""
    input_size = graph.size(node.inputs[0], which)
    axis = graph.axis(node.outputs[0], which)
    assert axis is not None
    computed, reads = _windowed(node.windows[axis - ROWS], size, input_size)
    others = tuple(
        None
        if not name or name in graph.constants
        else Ranges.constant(size, graph.size(name, which))
        for name in node.inputs[1:]
    )
    return NodeRanges(computed, (reads, *others))


@lru_cache(maxsize=512)
def _windowed(window: Window, size: int, input_size: int) -> tuple[Ranges | None, Ranges]:
    computed = [window.touching(Span(r, r + 1), input_size, size) for r in range(size)]
    reads = [window.input_span(span, input_size) for span in computed]
    return _widened(computed, size), _stacked(reads)


def _aligned(graph: Graph, node: Node, which: int, size: int, given: Sequence[bool]) -> NodeRanges:
    """What the first row (or column) needs shows what each does."""
    declared, axis = operator(node), graph.axis(node.outputs[0], which)
    assert axis is not None
    first = Box.whole(graph.shape(node.outputs[0])).replace(axis, Span(0, 1))
    box = declared.yields(graph, node, first)
    apart = len(box[axis]) == 1
    reads: list[Ranges | None] = []
    for name, read, is_read in zip(
        node.inputs, declared.reads(graph, node, box), given, strict=True
    ):
        if not is_read or read is None:
            reads.append(None)
            continue
        place, lines = graph.axis(name, which), graph.size(name, which)
        follows = apart and lines == size and place is not None and len(read[place]) == 1
        reads.append(Ranges.identity(size) if follows else Ranges.constant(size, lines))
    return NodeRanges(None if apart else Ranges.constant(size, size), tuple(reads))


@lru_cache(maxsize=512)
def _in_parts(size: int, made: int, read: int) -> tuple[Ranges | None, Ranges]:
    if made == read == 1:
        return None, Ranges.identity(size)
    marks = np.arange(size + 1, dtype=np.int32)
    below, above = marks // made, -(-marks // made)
    computed = None if made == 1 else Ranges(below * made, above * made)
    return computed, Ranges(below * read, above * read)


def _probed(graph: Graph, node: Node, which: int, size: int, given: Sequence[bool]) -> NodeRanges:
    """Determines the ranges by querying the operator table for each row (or column)."""
    declared = operator(node)
    whole, axis = Box.whole(graph.shape(node.outputs[0])), graph.axis(node.outputs[0], which)
    computed: list[Span] = []
    parts: list[tuple[Box | None, ...]] = []
    for r in range(size):
        asked = whole if axis is None else whole.replace(axis, Span(r, r + 1))
        box = declared.yields(graph, node, asked)
        computed.append(Span(0, 1) if axis is None else box[axis])
        parts.append(declared.reads(graph, node, box))
    reads = [
        _stacked(_along(graph.axis(name, which), [boxes[k] for boxes in parts]))
        if is_read
        else None
        for k, (name, is_read) in enumerate(zip(node.inputs, given, strict=True))
    ]
    return NodeRanges(_widened(computed, size), tuple(reads))


def _along(axis: int | None, boxes: Sequence[Box | None]) -> list[Span]:
    """What is read along an axis. Where that is nothing, the nearest row that is read elsewhere."""
    read = [box[axis] for box in boxes if box is not None and axis is not None]
    if axis is None or not read:
        return [Span(0, 1)] * len(boxes)
    nearest, found = Span(read[0].start, read[0].start + 1), []
    for box in boxes:
        found.append(nearest if box is None else box[axis])
        nearest = Span(found[-1].stop - 1, found[-1].stop)
    return found


def _widened(computed: Sequence[Span], size: int) -> Ranges | None:
    """What is computed for a range, if it is more than the range itself."""
    ranges = _stacked(computed)
    marks = np.arange(size + 1)
    same = np.array_equal(ranges.first, marks) and np.array_equal(ranges.last, marks)
    return None if same else ranges


def _stacked(spans: Sequence[Span]) -> Ranges:
    """The smallest ranges that contain the spans of their elements.

    Both arrays are non-decreasing whatever the spans are, so that no range is inverted, even after
    look-ups. Where the spans go back and forth (a Slice with a step of -1), the ranges are larger
    than needed.
    """
    starts = np.array([span.start for span in spans], dtype=np.int32)
    stops = np.array([span.stop for span in spans], dtype=np.int32)
    assert (starts < stops).all(), "every computed element reads something"
    first = np.append(np.minimum.accumulate(starts[::-1])[::-1], stops.max())
    last = np.append(starts.min(), np.maximum.accumulate(stops))
    return Ranges(first, last)
