"""How ranges propagate backwards along one axis, for all tiles at once.

Along rows (or columns), the first element that a tile needs of a tensor depends only on the first
element of the tile, and the last only on the last. So a whole family of tiles is two arrays:
`first[a]` for tiles that begin at `a`, `last[b]` for tiles that end before `b`. Extending a block
by one node is one look-up per array, whatever the number of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from models.boxes import Box, Span
from models.graph import Graph, Node
from models.operators import Kind, operator
from models.operators.constants import setting
from models.windows import Window

Ints = NDArray[np.int64]
ROWS, COLS = 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The ranges [first[a], last[b]) of one tensor along one axis, for tiles [a, b), a < b.

    Both arrays have an entry for each of 0..size of the tiled map and are non-decreasing;
    `first[size]` and `last[0]` belong to no tile. No range is inverted. `gaps`: small tiles may
    need nothing of the tensor; then, too, first[k] does not exceed last[k].
    """

    first: Ints
    last: Ints
    gaps: bool = False
    is_identity: bool = False

    @classmethod
    def identity(cls, size: int) -> Ranges:
        """The ranges of the tiled tensor itself."""
        marks = np.arange(size + 1)
        return cls(marks, marks, is_identity=True)

    @classmethod
    def constant(cls, size: int, whole: int) -> Ranges:
        """The ranges of a tensor that every tile needs completely."""
        return cls(np.zeros(size + 1, dtype=np.int64), np.full(size + 1, whole))


def axis_size(graph: Graph, tensor: str, axis: int) -> int:
    """Elements of a tensor along `axis`; 1 if it has no such axis."""
    shape = graph.shape(tensor)
    return shape[axis] if len(shape) > axis else 1


@dataclass(frozen=True, slots=True, eq=False)
class NodeRanges:
    """How one node propagates ranges along one axis.

    `computed`: what it computes to yield a range of its output; None: exactly that range.
    `reads[k]`: what it reads of its k-th input to compute a range; None for constants.
    """

    computed: Ranges | None
    reads: tuple[Ranges | None, ...]


class Axis:
    """What the nodes of a graph compute and read along one axis; found once per node, for all
    blocks that contain it.
    """

    def __init__(self, graph: Graph, axis: int) -> None:
        self.graph, self.axis = graph, axis
        self._known: dict[int, NodeRanges] = {}

    def of(self, index: int) -> NodeRanges:
        """The ranges of one node."""
        found = self._known.get(index)
        if found is None:
            found = self._known[index] = _node_ranges(
                self.graph, self.graph.nodes[index], self.axis
            )
        return found


def _node_ranges(graph: Graph, node: Node, axis: int) -> NodeRanges:
    size = axis_size(graph, node.outputs[0], axis)
    if operator(node).kind is Kind.WINDOWED and 0 <= axis - ROWS < len(node.windows):
        return _windowed_ranges(graph, node, axis, size)
    given = [bool(name) and name not in graph.constants for name in node.inputs]
    if _keeps(graph, node, axis):
        same = Ranges.identity(size)
        return NodeRanges(None, tuple(same if is_read else None for is_read in given))
    if operator(node).kind is Kind.OPAQUE:
        everything = (axis_size(graph, name, axis) for name in node.inputs)
        return NodeRanges(
            None if size == 1 else Ranges.constant(size, size),
            tuple(
                Ranges.constant(size, whole) if is_read else None
                for whole, is_read in zip(everything, given, strict=True)
            ),
        )
    return _probed(graph, node, axis, size, given)


def _keeps(graph: Graph, node: Node, axis: int) -> bool:
    """Whether each element along the axis depends only on the same element of every input, as for
    most nodes without a window.
    """
    shape = graph.shape(node.outputs[0])
    if node.op == "Slice":
        axes = setting(graph, node, "axes", 3)
        return axes is not None and axis not in [int(each) % len(shape) for each in axes]
    if node.op == "Concat":
        return len(shape) > axis != node.int("axis", 1) % len(shape)
    return operator(node).kind is Kind.POINTWISE and all(
        graph.shape(name) == shape for name in node.inputs if name and name not in graph.constants
    )


def _windowed_ranges(graph: Graph, node: Node, axis: int, size: int) -> NodeRanges:
    """Windows slide over the first input; other inputs (such as scales) are read completely."""
    input_size = axis_size(graph, node.inputs[0], axis)
    computed, reads = _windowed(node.windows[axis - ROWS], size, input_size)
    others = tuple(
        None
        if not name or name in graph.constants
        else Ranges.constant(size, axis_size(graph, name, axis))
        for name in node.inputs[1:]
    )
    return NodeRanges(computed, (reads, *others))


@lru_cache(maxsize=512)
def _windowed(window: Window, size: int, input_size: int) -> tuple[Ranges | None, Ranges]:
    computed = [window.touching(Span(r, r + 1), input_size, size) for r in range(size)]
    reads = [window.input_span(span, input_size) for span in computed]
    return _widened(computed, size), _stacked(reads)


def _probed(graph: Graph, node: Node, axis: int, size: int, given: Sequence[bool]) -> NodeRanges:
    """Determines the ranges by querying the operator table for each element."""
    declared = operator(node)
    whole = Box.whole(graph.shape(node.outputs[0]))
    computed: list[Span] = []
    parts: list[tuple[Box | None, ...]] = []
    for r in range(size):
        asked = whole.replace(axis, Span(r, r + 1)) if len(whole) > axis else whole
        box = declared.yields(graph, node, asked)
        computed.append(box[axis] if len(box) > axis else Span(0, 1))
        parts.append(declared.reads(graph, node, box))
    reads = [
        _stacked([_along(boxes[k], axis) for boxes in parts]) if is_read else None
        for k, is_read in enumerate(given)
    ]
    return NodeRanges(_widened(computed, size), tuple(reads))


def _along(box: Box | None, axis: int) -> Span:
    return Span(0, 1) if box is None or len(box) <= axis else box[axis]


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
    starts = np.array([span.start for span in spans], dtype=np.int64)
    stops = np.array([span.stop for span in spans], dtype=np.int64)
    assert (starts < stops).all(), "every computed element reads something"
    first = np.append(np.minimum.accumulate(starts[::-1])[::-1], stops.max())
    last = np.append(starts.min(), np.maximum.accumulate(stops))
    return Ranges(first, last)
