"""How ranges move backwards along one axis, for all tiles at once.

Along rows (or columns), the first element that a tile needs of a tensor follows from the first
element of the tile alone, and the last from the last. So a whole family of tiles is two arrays:
`first[a]` for tiles that begin at `a`, `last[b]` for tiles that end before `b`. Extending a
block by one node is one look-up per array, whatever the number of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from models.boxes import Box, Span
from models.graph import Graph, Node
from models.operators import Kind, operator
from models.windows import Window

Ints = NDArray[np.int64]
ROWS, COLS = 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The ranges [first[a], last[b]) of one tensor along one axis, for tiles [a, b), a < b.

    Both arrays have an entry for each of 0..size of the map that is tiled; `first[size]` and
    `last[0]` belong to no tile.
    """

    first: Ints
    last: Ints

    @classmethod
    def identity(cls, size: int) -> Ranges:
        """A tensor that is tiled itself."""
        marks = np.arange(size + 1)
        return cls(marks, marks)

    @classmethod
    def constant(cls, size: int, whole: int) -> Ranges:
        """A tensor of which every tile needs all."""
        return cls(np.zeros(size + 1, dtype=np.int64), np.full(size + 1, whole))

    def through(self, reads: Ranges) -> Ranges:
        """What is needed of a node's input, if these ranges are needed of its output."""
        return Ranges(reads.first[self.first], reads.last[self.last])

    def hull(self, other: Ranges) -> Ranges:
        """Demands of two branches, united."""
        return Ranges(np.minimum(self.first, other.first), np.maximum(self.last, other.last))

    @property
    def whole(self) -> int:
        """Elements that the tile which is everything needs."""
        return int(self.last[-1] - self.first[0])


def axis_size(graph: Graph, tensor: str, axis: int) -> int:
    """Elements of a tensor along `axis`; 1 where it has no such axis."""
    shape = graph.shape(tensor)
    return shape[axis] if len(shape) > axis else 1


def node_ranges(graph: Graph, node: Node, axis: int) -> tuple[Ranges | None, ...]:
    """What each output range of a node needs of each input along `axis`; None for constants."""
    return tuple(
        None if not name or name in graph.constants else _input_ranges(graph, node, k, axis)
        for k, name in enumerate(node.inputs)
    )


def _input_ranges(graph: Graph, node: Node, k: int, axis: int) -> Ranges:
    kind = operator(node).kind
    size = axis_size(graph, node.outputs[0], axis)
    if kind is Kind.POINTWISE and graph.shape(node.inputs[k]) == graph.shape(node.outputs[0]):
        return Ranges.identity(size)
    if kind is Kind.WINDOWED and k == 0 and len(node.windows) > axis - 2:
        return _windowed(node.windows[axis - 2], size, axis_size(graph, node.inputs[k], axis))
    return _probed(graph, node, k, axis, size)


@lru_cache(maxsize=512)
def _windowed(window: Window, size: int, input_size: int) -> Ranges:
    spans = [window.input_span(Span(r, r + 1), input_size) for r in range(size)]
    return _stacked(spans)


def _probed(graph: Graph, node: Node, k: int, axis: int, size: int) -> Ranges:
    """Asks the operator table, element by element."""
    reads = operator(node).reads
    whole = Box.whole(graph.shape(node.outputs[0]))
    spans = []
    for r in range(size):
        box = reads(
            graph, node, whole.replace(axis, Span(r, r + 1)) if len(whole) > axis else whole
        )
        part = box[k]
        spans.append(Span(0, 1) if part is None or len(part) <= axis else part[axis])
    return _stacked(spans)


def _stacked(spans: list[Span]) -> Ranges:
    first = np.array([span.start for span in spans] + [spans[-1].stop], dtype=np.int64)
    last = np.array([spans[0].start] + [span.stop for span in spans], dtype=np.int64)
    return Ranges(first, last)
