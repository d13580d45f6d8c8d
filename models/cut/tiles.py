"""Dividing a block's output map: grids, weighted strips, and the boxes of every live tensor.

A tile is given by the rows and columns of the block's *main* output; other tensors that the
block yields are cut at the same relative places.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from models.cut.units import Network
from models.graph.graph import COLS, ROWS
from models.tensors.boxes import Box, Span

Marks = TypeVar("Marks", int, NDArray[np.int64])
# Longer maps are lists: flattened maps, of thousands of elements that are computed alike. Plans
# divide them at fewer places, so that what planners know of each place fits in memory.
_MOST_PLACES = 1024
_ENOUGH_PLACES = 320


@dataclass(frozen=True, slots=True)
class MapTile:
    """Rows and columns of a block's main output. Empty tiles are allowed."""

    rows: Span
    cols: Span

    @property
    def is_empty(self) -> bool:
        """Whether it holds no element."""
        return not len(self.rows) or not len(self.cols)


@lru_cache(maxsize=512)
def grain(size: int) -> int:
    """Rows (or columns) of a map of `size` that plans keep together: 1, except in long lists."""
    if size <= _MOST_PLACES:
        return 1
    most = size // _ENOUGH_PLACES
    exact = max(step for step in range(1, most + 1) if size % step == 0)
    return exact if size // exact <= _MOST_PLACES else most


def places(size: int) -> int:
    """Parts into which plans may divide a map of `size`, each a grain; the last may be shorter."""
    return -(-size // grain(size))


def on_map(size: int, parts: Iterable[Span]) -> tuple[Span, ...]:
    """Spans of the places of a map of `size` as spans of its rows or columns."""
    step = grain(size)
    return tuple(Span(min(a * step, size), min(b * step, size)) for a, b in parts)


def even_spans(size: int, parts: int) -> tuple[Span, ...]:
    """`parts` spans of nearly equal length; the first ones are longer; some empty if few."""
    marks = [-(-index * size // parts) for index in range(parts + 1)]
    return tuple(Span(a, b) for a, b in itertools.pairwise(marks))


def weighted_spans(size: int, weights: Sequence[float]) -> tuple[Span, ...]:
    """Spans with lengths in proportion to `weights` (largest remainder, so they sum to size)."""
    total = sum(weights)
    exact = [size * weight / total for weight in weights]
    lengths = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: lengths[i] - exact[i])
    for index in by_remainder[: size - sum(lengths)]:
        lengths[index] += 1
    return spans_of(lengths)


def spans_of(lengths: Iterable[int]) -> tuple[Span, ...]:
    """Adjacent spans of these lengths, from 0 on."""
    marks = [0, *itertools.accumulate(lengths)]
    return tuple(Span(a, b) for a, b in itertools.pairwise(marks))


def map_size(network: Network, start: int, stop: int) -> tuple[int, int]:
    """Rows and columns of the main output of units [start, stop); 1 where it has none."""
    main = network.outputs(start, stop)[-1]
    return network.graph.size(main, ROWS), network.graph.size(main, COLS)


def grid(network: Network, start: int, stop: int, rows: int, cols: int) -> tuple[MapTile, ...]:
    """A rows x cols grid over the block's main output, row by row."""
    height, width = map_size(network, start, stop)
    return tuple(MapTile(r, c) for r in even_spans(height, rows) for c in even_spans(width, cols))


def whole_map(network: Network, start: int, stop: int) -> MapTile:
    """The one tile that covers everything."""
    height, width = map_size(network, start, stop)
    return MapTile(Span(0, height), Span(0, width))


def tile_boxes(network: Network, start: int, stop: int, tile: MapTile) -> Mapping[str, Box]:
    """The box of each of the block's outputs that belongs to `tile`; empty ones left out. What has
    no rows, or no columns, belongs to one tile as if it had one.
    """
    graph = network.graph
    height, width = map_size(network, start, stop)
    boxes = {}
    for name in network.outputs(start, stop):
        box = Box.whole(graph.shape(name))
        for axis, part, size in (
            (graph.axis(name, ROWS), tile.rows, height),
            (graph.axis(name, COLS), tile.cols, width),
        ):
            own = _scaled(part, size, 1 if axis is None else len(box[axis]))
            if not len(own):
                break
            box = box if axis is None else box.replace(axis, own)
        else:
            boxes[name] = box
    return boxes


def _scaled(span: Span, size: int, other: int) -> Span:
    """The same relative range of a map of `other` elements; adjacent spans stay adjacent."""
    if size == other:
        return span
    return Span(scaled_mark(span.start, size, other), scaled_mark(span.stop, size, other))


def scaled_mark(mark: Marks, size: int, other: int) -> Marks:
    """Where a mark (or each of many) of a map of `size` elements lies on a map of `other`; halves
    go to the even.
    """
    nearest, rest = divmod(2 * mark * other + size, 2 * size)
    even: Marks = nearest - ((rest == 0) & (nearest % 2))
    return even
