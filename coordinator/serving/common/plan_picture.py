"""Drawings of plans, as SVG without dependencies.

`plan_svg` draws the blocks from left to right: what each reads, including the halos that tiles
share, and the map it yields, divided into tiles with one colour per device. `image_tiles` gives the
tiles of the first block on an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from coordinator.tasks.plan import Block, Plan, Tile, tile_extent
from models.cut.units import Network, layers_of
from models.graph.sizes import layout_of
from models.tensors.boxes import Box
from models.tensors.memory import megabytes
from protos.wire.facts import DeviceId

# Okabe and Ito's palette, which people with any kind of colour vision can distinguish.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_Value = TypeVar("_Value")
_MAP = 130  # pixels of the longer side of the largest map
_LEAST = 44
_GAP, _BETWEEN, _TOP = 26, 54, 64
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.s{font-size:10px;fill:#555}"
    ".t{font-size:15px;font-weight:600}"
)


@dataclass(frozen=True, slots=True)
class Rect:
    """x, y, width and height in pixels."""

    x: float
    y: float
    width: float
    height: float

    def svg(self, colour: str, opacity: float, *, title: str = "", dashed: bool = False) -> str:
        """The rectangle; `title` is a tooltip."""
        stroke = f'stroke="{colour}"' + (' stroke-dasharray="3 2"' if dashed else "")
        return (
            f'<rect x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" '
            f'height="{self.height:.1f}" fill="{colour}" fill-opacity="{opacity}" {stroke}>'
            f"<title>{escape(title)}</title></rect>"
        )


@dataclass(frozen=True, slots=True)
class ImageTile:
    """A device's tile of the image, without and with its halo."""

    device: DeviceId
    own: Rect
    read: Rect


def plan_svg(plan: Plan, network: Network, names: Mapping[str, str] | None = None) -> str:
    """The whole plan as an SVG document. `names` are the devices' names."""
    colours, names = _colours(plan), names or {}
    x, parts = 20.0, []
    for index, block in enumerate(plan.blocks):
        drawn, width = _block(block, network, x, colours, names)
        parts += drawn
        if index + 1 < len(plan.blocks):
            parts.append(_arrow(x + width, _TOP + _MAP / 2, plan.blocks[index + 1]))
        x += width + _BETWEEN
    legend_y = _TOP + _MAP + 62
    parts += _legend(plan, colours, names, legend_y)
    width = max(x, 560.0)
    height = legend_y + 22 * (len(plan.devices) + 1)
    speedup = plan.single_device_latency_s / plan.predicted_latency_s
    title = (
        f"{plan.model}, {plan.strategy}: {plan.predicted_latency_s * 1e3:.0f} ms on "
        f"{len(plan.devices)} devices, {speedup:.2f} times as fast as one"
        + ("" if plan.wire == "exact" else f", maps travel as {plan.wire}")
    )
    return _document(
        width, height, [f'<text class="t" x="20" y="26">{escape(title)}</text>', *parts]
    )


def image_tiles(plan: Plan, network: Network, image_size: tuple[int, int]) -> list[ImageTile]:
    """The first block's tiles on an image of (width, height) pixels that fills the input. Empty if
    the network's input is not an image.
    """
    block, (width, height) = plan.blocks[0], image_size
    main = network.outputs(block.start, block.stop)[-1]
    tiles = []
    for tile in block.tiles:
        image = network.graph.inputs[0]
        read = tile_extent(network, block, tile).inputs.get(image)
        whole = network.graph.shape(main)
        if read is None or layout_of(network.graph.shape(image)) is None:
            continue
        own = tile.boxes[main] if len(whole) == 4 else read
        of = whole if len(whole) == 4 else network.graph.shape(image)
        tiles.append(
            ImageTile(
                tile.device,
                _scaled(own, of, 0, 0, width, height),
                _scaled(read, network.graph.shape(image), 0, 0, width, height),
            )
        )
    return tiles


def _block(
    block: Block,
    network: Network,
    x: float,
    colours: Mapping[str, str],
    names: Mapping[str, str],
) -> tuple[list[str], float]:
    """The drawn block and its width."""
    graph = network.graph
    main = network.outputs(block.start, block.stop)[-1]
    reads = [tile_extent(network, block, tile).inputs for tile in block.tiles]
    source = max((name for read in reads for name in read), key=lambda n: graph.tensors[n].nbytes)
    layers = layers_of(network.units[block.start : block.stop])
    label = layers[0] if len(layers) == 1 else f"{layers[0]} .. {layers[-1]}"
    count = len(block.tiles)
    below = f"{len(layers)} layers, {count} tile{'s' if count > 1 else ''}"
    parts = [
        f'<text x="{x:.1f}" y="{_TOP - 10}">{escape(label)}</text>',
        f'<text class="s" x="{x:.1f}" y="{_TOP + _MAP + 28}">{below}</text>',
    ]
    left_w, left_h = _size(graph.shape(source))
    right_w, right_h = _size(graph.shape(main))
    right_x = x + left_w + _GAP
    for tile, read in zip(block.tiles, reads, strict=True):
        colour, name = colours[tile.device], names.get(tile.device, tile.device)
        if source in read:
            box = _scaled(read[source], graph.shape(source), x, _top(left_h), left_w, left_h)
            parts.append(box.svg(colour, 0.25, title=f"{name} reads {read[source]}", dashed=True))
        if main in tile.boxes:
            own = _scaled(
                tile.boxes[main], graph.shape(main), right_x, _top(right_h), right_w, right_h
            )
            parts.append(own.svg(colour, 0.85, title=_tile_title(name, tile, main)))
    for at, tensor in ((x, source), (right_x, main)):
        size = "x".join(str(n) for n in graph.shape(tensor)[1:])
        parts.append(f'<text class="s" x="{at:.1f}" y="{_TOP + _MAP + 14}">{size}</text>')
    return parts, left_w + _GAP + right_w


def _tile_title(name: str, tile: Tile, main: str) -> str:
    sums = ", partial sum" if tile.reduce else ""
    return f"{name}: {tile.boxes[main]}, {tile.flop / 1e9:.3g} GFLOP{sums}"


def _arrow(x: float, y: float, following: Block) -> str:
    label = {"host": "host", "peer": "peers", "none": "stays"}[following.exchange]
    stop = "||" if following.barrier else ""
    return (
        f'<line x1="{x + 8:.1f}" y1="{y}" x2="{x + _BETWEEN - 10:.1f}" y2="{y}" stroke="#555"/>'
        f'<text class="s" x="{x + 10:.1f}" y="{y - 5}">{label} {stop}</text>'
    )


def _legend(
    plan: Plan, colours: Mapping[str, str], names: Mapping[str, str], y: float
) -> list[str]:
    flop: dict[str, int] = {}
    for block in plan.blocks:
        for tile in block.tiles:
            flop[tile.device] = flop.get(tile.device, 0) + tile.flop
    parts = []
    for row, device in enumerate(plan.devices):
        at = y + 22 * row
        text = f"{names.get(device, device)}: {flop[device] / 1e9:.3g} GFLOP"
        parts.append(Rect(20, at, 14, 14).svg(colours[device], 0.85))
        parts.append(f'<text x="42" y="{at + 11:.1f}">{escape(text)}</text>')
    moved = plan.traffic.scatter + plan.traffic.gather + plan.traffic.halo
    share = plan.redundant_flop / plan.total_flop if plan.total_flop else 0.0
    summary = f"halos add {share:.0%} of computation; {megabytes(moved, 2)} travel per request"
    parts.append(f'<text class="s" x="260" y="{y + 11:.1f}">{summary}</text>')
    return parts


def _colours(plan: Plan) -> dict[str, str]:
    """One colour per device, in order of appearance; after the palette, hues around the circle."""
    colours: dict[str, str] = {}
    for index, device in enumerate(plan.devices):
        hue = index * 137.5 % 360
        generated = f"hsl({hue:.0f},55%,50%)"
        colours[device] = COLOURS[index] if index < len(COLOURS) else generated
    return colours


def _top(height: float) -> float:
    """The top of a map of this height; maps are centred in a row."""
    return _TOP + (_MAP - height) / 2


def _as_map(values: Sequence[_Value], shape: Sequence[int]) -> tuple[_Value, ...]:
    """What belongs to the dimensions of a picture, in the order of a map's: batch (for pictures
    without one, the channels again), channels, rows, columns. Of other tensors, as it is.
    """
    layout = layout_of(shape)
    if layout is None:
        return tuple(values)
    axes = [layout.find(axis if axis in layout else "C") for axis in "NCHW"]
    return tuple(values[axis] for axis in axes)


def _size(shape: Sequence[int]) -> tuple[float, float]:
    """A map's size in pixels, on a root scale; vectors are bars."""
    shape = _as_map(shape, shape)
    if len(shape) < 4:
        return 14.0, float(_MAP)
    rows, cols = shape[2], shape[3]
    longer = max(_LEAST, min(_MAP, _MAP * (max(rows, cols) / 256) ** 0.4))
    return longer * cols / max(rows, cols), longer * rows / max(rows, cols)


def _scaled(
    box: Box, shape: Sequence[int], x: float, y: float, width: float, height: float
) -> Rect:
    """A box of a map in pixels; for vectors and channels, a part of the bar's height."""
    box, shape = Box(_as_map(box, shape)), _as_map(shape, shape)
    by_channels = len(box) < 4 or (len(box[1]) != shape[1] and box[2:] == Box.whole(shape)[2:])
    if by_channels:
        axis = 1 if len(box) > 1 else 0
        top, bottom = box[axis].start / shape[axis], box[axis].stop / shape[axis]
        return Rect(x, y + top * height, width, (bottom - top) * height)
    rows, cols = box[2], box[3]
    return Rect(
        x + cols.start / shape[3] * width,
        y + rows.start / shape[2] * height,
        len(cols) / shape[3] * width,
        len(rows) / shape[2] * height,
    )


def _document(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><style>{_STYLE}</style>'
    )
    return "\n".join((head, *parts, "</svg>")) + "\n"
