"""AOFL, Figure 7: computation and communication of two fused blocks of VGG-16 at 256x256.

The first seven convolutions with their pools, and the last six; equal tiles of each block's
output map; FLOPs of convolutions only, 2 per multiply-add; float32 input and output tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.catalogue import catalogue
from models.cut.tiles import grid, tile_boxes, whole_map
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.operators.geometry import extent
from models.operators.work import NodeWork, tile_works, works

MODEL = "vgg16-256-conv"
GRIDS = ((2, 2), (2, 4), (4, 4))
TWO_BLOCKS = ((0, 7), (7, 13))
CUT_AFTER_CONV4_3 = ((0, 7), (7, 10), (10, 13))

# Read off the figure and section 5.2; the overheads in percent.
PUBLISHED_OVERHEAD = {(2, 4): 90.7, (4, 4): 163.7}
PUBLISHED_CHANGES = {
    "communication_2x2_to_2x4": 41.8,
    "communication_per_tile_2x2_to_2x4": -29.1,
    "cut_after_conv4_3_compute": -32.3,
    "cut_after_conv4_3_communication": -4.4,
}


@dataclass(frozen=True, slots=True)
class Size:
    """What a division computes (FLOPs) and moves (bytes)."""

    flop: int
    moved_bytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.flop + other.flop, self.moved_bytes + other.moved_bytes)


def fig7() -> dict[str, Any]:
    """The three rows (overheads in percent), and the changes that the text quotes, both beside
    what was published.
    """
    loaded = catalogue.load(MODEL)
    network = divide(load_graph(loaded.proto, loaded.name))
    unsplit = sum(
        _conv_flop(tile_works(network.graph, network.nodes(*block), _whole(network, *block)))
        for block in TWO_BLOCKS
    )
    sizes = {shape: _size(network, TWO_BLOCKS, shape) for shape in GRIDS}
    return {
        "model": MODEL,
        "unsplit_gflop": _digits(unsplit / 1e9),
        "rows": [_row(shape, size, unsplit) for shape, size in sizes.items()],
        "changes_percent": {
            name: {"ours": _digits(value), "published": PUBLISHED_CHANGES[name]}
            for name, value in _changes(network, sizes).items()
        },
    }


def _conv_flop(each: Sequence[NodeWork]) -> int:
    """FLOPs of convolutions only, as counted in the papers."""
    return sum(work.flop for work in each if work.layer_type == "convolution")


def _row(shape: tuple[int, int], size: Size, unsplit: int) -> dict[str, Any]:
    return {
        "grid": f"{shape[0]}x{shape[1]}",
        "total_gflop": _digits(size.flop / 1e9),
        "overhead": _digits(100 * (size.flop / unsplit - 1)),
        "communication_mb": _digits(size.moved_bytes / 1e6),
        "published_overhead": PUBLISHED_OVERHEAD.get(shape),
    }


def _changes(network: Network, sizes: dict[tuple[int, int], Size]) -> dict[str, float]:
    four, eight = sizes[2, 2], sizes[2, 4]
    cut = _size(network, CUT_AFTER_CONV4_3, (2, 4))
    return {
        "communication_2x2_to_2x4": _percent(eight.moved_bytes, four.moved_bytes),
        "communication_per_tile_2x2_to_2x4": _percent(eight.moved_bytes / 8, four.moved_bytes / 4),
        "cut_after_conv4_3_compute": _percent(cut.flop, eight.flop),
        "cut_after_conv4_3_communication": _percent(cut.moved_bytes, eight.moved_bytes),
    }


def _size(network: Network, blocks: Sequence[tuple[int, int]], shape: tuple[int, int]) -> Size:
    graph, total = network.graph, Size(0, 0)
    for start, stop in blocks:
        nodes = network.nodes(start, stop)
        for tile in grid(network, start, stop, *shape):
            boxes = tile_boxes(network, start, stop, tile)
            reach = extent(graph, nodes, boxes)
            moved = sum(
                box.volume * graph.tensors[name].itemsize
                for side in (reach.inputs, boxes)
                for name, box in side.items()
            )
            total += Size(_conv_flop(works(graph, nodes, reach)), moved)
    return total


def _whole(network: Network, start: int, stop: int) -> Any:
    return tile_boxes(network, start, stop, whole_map(network, start, stop))


def _percent(after: float, before: float) -> float:
    return 100 * (after / before - 1)


def _digits(value: float) -> float:
    """Seven significant digits: more than anybody compares."""
    return float(f"{value:.7g}")
