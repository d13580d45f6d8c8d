"""Operators that pick elements along each axis independently: Slice, Gather, Tile, Pad.

Each has a map per axis from the index of an output element to that of its input element (-1: a fill
value). A tile reads the hull of its part of the map.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from models.graph.graph import Graph, Node
from models.operators.constants import computed_settings, constant_input, first_only, setting
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.arrays import Ints
from models.tensors.boxes import Box, Span

Maps: TypeAlias = "Callable[[Graph, Node], Mapping[int, Ints]]"
Refuses: TypeAlias = "Callable[[Graph, Node], str]"
FILL = -1
_TO_THE_END = np.iinfo(np.int64).max


def hull(index: Ints) -> Span:
    """The range of input elements that these output elements come from; empty if all are fill
    values.
    """
    real = index[index != FILL]
    return Span(int(real.min()), int(real.max()) + 1) if real.size else Span(0, 0)


def reads_of(maps: Maps) -> "Callable[[Graph, Node, Box], Boxes]":
    """Reads of an operator that picks elements by `maps`."""

    def reads(graph: Graph, node: Node, box: Box) -> Boxes:
        for axis, index in maps(graph, node).items():
            box = box.replace(axis, hull(index[slice(box[axis].start, box[axis].stop)]))
        return first_only(node, box)

    return reads


def local(index: Ints, wanted: Span, read: Span) -> Ints:
    """The part of a map that a tile needs, counted from the first element that it reads."""
    part = index[wanted.start : wanted.stop]
    return np.where(part == FILL, FILL, part - read.start)


def gather(piece: BoxPiece, program: Emitter, source: str, picks: Mapping[int, Ints]) -> str:
    """Writes a Gather per axis, each with constant indices; returns the last one's output."""
    for axis, index in picks.items():
        label = program.constant(f"{piece.name}__index{axis}", index.astype(np.int64))
        source = program.emit("Gather", [source, label], f"{piece.name}__axis{axis}", axis=axis)
    return source


def _local_maps(piece: BoxPiece, maps: Maps) -> dict[int, Ints]:
    """The maps that remain to be applied to the tile's input."""
    read = piece.reads[0]
    assert read is not None
    found = {}
    for axis, index in maps(piece.graph, piece.node).items():
        part = local(index, piece.output[axis], read[axis])
        if not np.array_equal(part, np.arange(len(read[axis]))):
            found[axis] = part
    return found


# ---------------------------------------------------------------- Slice, Gather, Tile


def _slice_maps(graph: Graph, node: Node) -> Mapping[int, Ints]:
    shape = graph.shape(node.inputs[0])
    starts, ends = setting(graph, node, "starts", 1), setting(graph, node, "ends", 2)
    assert starts is not None
    assert ends is not None
    axes = setting(graph, node, "axes", 3) or range(len(starts))
    steps = setting(graph, node, "steps", 4) or [1] * len(starts)
    maps = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % len(shape)
        size = shape[place]
        # A backward slice starts at an element, and may stop before the first.
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first = min(max(start + size if start < 0 else start, 0), high)
        stop = min(max(end + size if end < 0 else end, low), high)
        maps[place] = np.arange(first, stop, step, dtype=np.int64)
    return maps


def _build_slice(piece: BoxPiece, program: Emitter) -> None:
    """The input box already is the slice, except for steps."""
    source = piece.inputs[0]
    left = _local_maps(piece, _slice_maps)
    source = gather(piece, program, source, {a: i for a, i in left.items() if i[0] > i[-1]})
    steps = {axis: int(index[1] - index[0]) for axis, index in left.items() if index[0] < index[-1]}
    if not steps:
        program.emit("Identity", [source], piece.name)
        return
    axes = sorted(steps)
    parts = {
        "starts": [0] * len(axes),
        "ends": [_TO_THE_END] * len(axes),
        "axes": axes,
        "steps": [steps[axis] for axis in axes],
    }
    labels = [
        program.constant(f"{piece.name}__{part}", np.array(values, dtype=np.int64))
        for part, values in parts.items()
    ]
    program.emit("Slice", [source, *labels], piece.name)


def _gather_maps(graph: Graph, node: Node) -> Mapping[int, Ints]:
    shape = graph.shape(node.inputs[0])
    axis = node.int("axis", 0) % len(shape)
    index = constant_input(graph, node, 1)
    assert index is not None
    return {axis: np.where(index < 0, index + shape[axis], index).astype(np.int64)}


def _gather_refuses(graph: Graph, node: Node) -> str:
    index = constant_input(graph, node, 1)
    if index is not None and index.ndim != 1:
        return f"{node.op} changes the number of dimensions"
    return computed_settings(graph, node, 1)


def _tile_maps(graph: Graph, node: Node) -> Mapping[int, Ints]:
    shape = graph.shape(node.inputs[0])
    repeats = constant_input(graph, node, 1)
    assert repeats is not None
    return {
        axis: np.tile(np.arange(shape[axis], dtype=np.int64), int(count))
        for axis, count in enumerate(repeats)
        if count != 1
    }


def _build_gathers(maps: Maps) -> Callable[[BoxPiece, Emitter], None]:
    def build(piece: BoxPiece, program: Emitter) -> None:
        source = gather(piece, program, piece.inputs[0], _local_maps(piece, maps))
        program.emit("Identity", [source], piece.name)

    return build


# ---------------------------------------------------------------- Pad


def _pad_mode(node: Node) -> str:
    return str(node.attributes.get("mode", b"constant").decode())


def _padded(node: Node, size: int, start: int, end: int) -> Ints:
    """The map of `size` elements padded; negative pads cut off."""
    index = np.arange(-start, size + end, dtype=np.int64)
    match _pad_mode(node):
        case "edge":
            return index.clip(0, size - 1)
        case "wrap":
            return index % size
        case "reflect":
            period = max(1, 2 * (size - 1))
            folded = index % period
            return np.minimum(folded, period - folded) if size > 1 else np.zeros_like(index)
        case _:
            return np.where((index < 0) | (index >= size), FILL, index)


def _pads(graph: Graph, node: Node) -> dict[int, tuple[int, int]]:
    pads = setting(graph, node, "pads", 1)
    assert pads is not None
    rank = len(graph.shape(node.inputs[0]))
    axes = setting(graph, node, "axes", 3) or range(rank)
    half = len(pads) // 2
    found = {axis % rank: (pads[k], pads[k + half]) for k, axis in enumerate(axes)}
    return {axis: both for axis, both in found.items() if both != (0, 0)}


def _pad_maps(graph: Graph, node: Node) -> Mapping[int, Ints]:
    shape = graph.shape(node.inputs[0])
    return {axis: _padded(node, shape[axis], *both) for axis, both in _pads(graph, node).items()}


def _pad_reads(graph: Graph, node: Node, box: Box) -> Boxes:
    """With the value to fill with, if that is computed."""
    data, *settings = reads_of(_pad_maps)(graph, node, box)
    if _has_computed_fill(graph, node):
        settings[1] = Box.whole(graph.shape(node.inputs[2]))
    return (data, *settings)


def _has_computed_fill(graph: Graph, node: Node) -> bool:
    return len(node.inputs) > 2 and bool(node.inputs[2]) and node.inputs[2] not in graph.constants


def _pad_yields(graph: Graph, node: Node, box: Box) -> Box:
    """A tile that lies entirely in the fill is extended to the map, as it has to read something."""
    for axis, index in _pad_maps(graph, node).items():
        real = np.flatnonzero(index != FILL)
        span = box[axis]
        if span.stop <= real[0]:
            box = box.replace(axis, Span(span.start, int(real[0]) + 1))
        elif span.start > real[-1]:
            box = box.replace(axis, Span(int(real[-1]), span.stop))
    return box


def _pad_refuses(graph: Graph, node: Node) -> str:
    if computed_settings(graph, node, 1, 3):
        return computed_settings(graph, node, 1, 3)
    sizes = graph.shape(node.inputs[0])
    for axis, (start, end) in _pads(graph, node).items():
        if sizes[axis] + min(start, 0) + min(end, 0) <= 0:
            return "Pad cuts off everything"
        if min(start, end) < 0 and _pad_mode(node) != "constant":
            return "Pad cuts off and repeats elements at once"
        if _pad_mode(node) == "reflect" and max(start, end) >= sizes[axis]:
            return "Pad reflects more than the map"
    return ""


def _build_pad(piece: BoxPiece, program: Emitter) -> None:
    """Pads of this tile's border class if the mode treats the part like the whole, else a Gather of
    the input.
    """
    read = piece.reads[0]
    assert read is not None
    rank = len(read)
    starts, ends = [0] * rank, [0] * rank
    picks: dict[int, Ints] = {}
    whole = _pads(piece.graph, piece.node)
    for axis, part in _local_maps(piece, _pad_maps).items():
        size = piece.graph.shape(piece.node.inputs[0])[axis]
        before = max(0, whole[axis][0] - piece.output[axis].start)
        after = max(0, piece.output[axis].stop - whole[axis][0] - size)
        if np.array_equal(_padded(piece.node, len(read[axis]), before, after), part):
            starts[axis], ends[axis] = before, after
        else:
            picks[axis] = part
    source = gather(piece, program, piece.inputs[0], picks)
    if not any((*starts, *ends)):
        program.emit("Identity", [source], piece.name)
    else:
        _emit_pad(piece, program, source, [*starts, *ends])


def _emit_pad(piece: BoxPiece, program: Emitter, source: str, pads: list[int]) -> None:
    mode = _pad_mode(piece.node)
    if program.opset < 11:
        value = float(piece.node.attributes.get("value", 0.0))
        program.emit("Pad", [source], piece.name, mode=mode, pads=pads, value=value)
        return
    inputs = [source, program.constant(f"{piece.name}__pads", np.array(pads, dtype=np.int64))]
    fill = constant_input(piece.graph, piece.node, 2)
    if _has_computed_fill(piece.graph, piece.node):
        inputs.append(piece.inputs[2])
    elif fill is not None:
        inputs.append(program.constant(f"{piece.name}__fill", fill.reshape(())))
    program.emit("Pad", inputs, piece.name, mode=mode)


def _slice_refuses(graph: Graph, node: Node) -> str:
    return computed_settings(graph, node, 1, 2, 3, 4)


def _tile_refuses(graph: Graph, node: Node) -> str:
    return computed_settings(graph, node, 1)


def _picking(maps: Maps, refuses: Refuses) -> Operator:
    """An operator whose elements are picked one by one along each axis."""
    build = _build_gathers(maps)
    return Operator(Kind.LAYOUT, "concat", reads_of(maps), build=build, refuses=refuses)


INDEXING = {
    "Slice": Operator(
        Kind.LAYOUT, "concat", reads_of(_slice_maps), build=_build_slice, refuses=_slice_refuses
    ),
    "Gather": _picking(_gather_maps, _gather_refuses),
    "Tile": _picking(_tile_maps, _tile_refuses),
    "Pad": Operator(
        Kind.LAYOUT,
        "concat",
        _pad_reads,
        yields=_pad_yields,
        build=_build_pad,
        refuses=_pad_refuses,
    ),
}
