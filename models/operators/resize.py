"""Resize and Upsample, nearest and linear, with every coordinate mode.

If an axis grows by a whole factor, the operator treats a part of the map like the whole; otherwise
the elements picked from the whole map, and their weights, become constants of the program.
Positions are computed in float32, as onnxruntime does.

GridSample: every output element reads anywhere in its channel, as deformable attention does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.graph.graph import Graph, Node
from models.operators.constants import computed_settings, first_only, setting
from models.operators.declaration import Attribute, Boxes, BoxPiece, Emitter, Kind, Operator
from models.operators.indexing import gather
from models.tensors.arrays import Ints
from models.tensors.boxes import Box, Span

_SAME_EVERYWHERE = ("asymmetric", "half_pixel", "pytorch_half_pixel")
Singles = NDArray[np.float32]
# Units in the last place by which a computed position may be off.
_OFF_ULP = 8


@dataclass(frozen=True, slots=True, eq=False)
class AxisResize:
    """One resized axis: output element o is `near[o]` x (1 - share[o]) + `far[o]` x share[o].

    `factor`: the whole number by which it grows, the same way everywhere; 0 if there is none.
    """

    near: Ints
    far: Ints
    share: Singles
    factor: int


def _mode(node: Node) -> str:
    return str(node.attributes.get("mode", b"nearest").decode())


def _coordinates(node: Node, opset: int) -> str:
    if node.op == "Upsample" or opset < 11:
        return "asymmetric"
    mode = node.attributes.get("coordinate_transformation_mode", b"half_pixel")
    return str(mode.decode())


def _axis_scales(graph: Graph, node: Node) -> dict[int, float]:
    """The scale of every axis that changes."""
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    place = 1 if node.op == "Upsample" or graph.opset < 11 else 2
    scales = setting(graph, node, "scales", place)
    axes = node.ints("axes", range(len(before)))
    if not scales:
        return {
            axis: after[axis] / before[axis]
            for axis in range(len(before))
            if after[axis] != before[axis]
        }
    found = {axis % len(before): scale for axis, scale in zip(axes, scales, strict=True)}
    return {axis: scale for axis, scale in found.items() if scale != 1.0}


def _axis(graph: Graph, node: Node, axis: int, scale: float) -> AxisResize:
    size, out = graph.shape(node.inputs[0])[axis], graph.shape(node.outputs[0])[axis]
    coordinates = _coordinates(node, graph.opset)
    where = positions(coordinates, size, out, np.float32(scale))
    if _mode(node) == "nearest":
        near = nearest(node, graph.opset, where, scale).clip(0, size - 1).astype(np.int64)
        factor = int(scale) if np.array_equal(near, np.arange(out) // max(1, int(scale))) else 0
        return AxisResize(near, near, np.zeros(out, np.float32), factor if size > 1 else 0)
    where = where.clip(0, size - 1)
    near = where.astype(np.int64)
    far = np.minimum(near + 1, size - 1)
    share = (where - near.astype(np.float32)).astype(np.float32)
    # Only powers of two keep the weights of a part identical to the last bit.
    whole = scale in (2.0, 4.0, 8.0, 16.0, 32.0) and out == size * scale and size > 1
    factor = int(scale) if whole and coordinates in _SAME_EVERYWHERE else 0
    return AxisResize(near, far, share, factor)


def _resized(graph: Graph, node: Node) -> dict[int, AxisResize]:
    return {
        axis: _axis(graph, node, axis, scale) for axis, scale in _axis_scales(graph, node).items()
    }


def _reads(graph: Graph, node: Node, box: Box) -> Boxes:
    for axis, resize in _resized(graph, node).items():
        span = slice(box[axis].start, box[axis].stop)
        start, stop = int(resize.near[span].min()), int(resize.far[span].max()) + 1
        box = box.replace(axis, Span(start, stop))
    return first_only(node, box)


def _build(piece: BoxPiece, program: Emitter) -> None:
    resized = _resized(piece.graph, piece.node)
    source = piece.inputs[0]
    growing = {axis: resizing.factor for axis, resizing in resized.items() if resizing.factor > 1}
    others = {axis: resizing for axis, resizing in resized.items() if axis not in growing}
    if _mode(piece.node) == "nearest":
        source = gather(
            piece, program, source, {a: _part(piece, a, e.near) for a, e in others.items()}
        )
    else:
        source = _blend(piece, program, source, others)
    if growing:
        source = _grow(piece, program, source, growing)
    program.emit("Identity", [source], piece.name)


def _part(piece: BoxPiece, axis: int, index: Ints) -> Ints:
    read = piece.reads[0]
    assert read is not None
    part: Ints = index[piece.output[axis].start : piece.output[axis].stop] - read[axis].start
    return part


def _blend(piece: BoxPiece, program: Emitter, source: str, axes: dict[int, AxisResize]) -> str:
    """Both neighbours, weighted, one axis after the other."""
    dtype = piece.graph.tensors[piece.node.inputs[0]].dtype
    rank = len(piece.output)
    for axis, resizing in axes.items():
        span = piece.output[axis]
        share = resizing.share[span.start : span.stop]
        shape = [1] * rank
        shape[axis] = len(share)
        terms = []
        for side, index, weight in (
            ("near", resizing.near, 1 - share),
            ("far", resizing.far, share),
        ):
            name = f"{piece.name}__{side}{axis}"
            picks = program.constant(f"{name}_index", _part(piece, axis, index))
            picked = program.emit("Gather", [source, picks], f"{name}_picked", axis=axis)
            label = program.constant(f"{name}_weight", weight.reshape(shape).astype(dtype))
            terms.append(program.emit("Mul", [picked, label], f"{name}_weighted"))
        source = program.emit("Add", terms, f"{piece.name}__blend{axis}")
    return source


def _grow(piece: BoxPiece, program: Emitter, source: str, growing: dict[int, int]) -> str:
    """Resizes the whole part of the map, then crops the tile."""
    read = piece.reads[0]
    assert read is not None
    scales = [float(growing.get(axis, 1)) for axis in range(len(read))]
    name = f"{piece.name}__grown"
    if program.opset < 9:
        program.emit("Upsample", [source], name, mode=_mode(piece.node), scales=scales)
    else:
        label = program.constant(f"{name}_scales", np.array(scales, dtype=np.float32))
        if program.opset < 11:
            op = "Upsample" if program.opset < 10 else "Resize"
            program.emit(op, [source, label], name, mode=_mode(piece.node))
        else:
            _emit_resize(piece, program, source, label, name)
    made = {axis: Span(read[axis].start * f, read[axis].stop * f) for axis, f in growing.items()}
    have = piece.output
    for axis, span in made.items():
        have = have.replace(axis, span)
    if have == piece.output:
        return name
    return program.crop(name, have, piece.output)


def _emit_resize(piece: BoxPiece, program: Emitter, source: str, scales: str, name: str) -> None:
    # Until opset 13 the region of tf_crop_and_resize could not be left out.
    nothing = np.zeros(0, dtype=np.float32)
    region = program.constant(f"{name}_region", nothing) if program.opset < 13 else ""
    how: dict[str, Attribute] = {"mode": "nearest", "nearest_mode": "floor"}
    coordinates = "asymmetric"
    if _mode(piece.node) != "nearest":
        how = {"mode": "linear"}
        coordinates = _coordinates(piece.node, piece.graph.opset)
    inputs = [source, region, scales]
    program.emit("Resize", inputs, name, coordinate_transformation_mode=coordinates, **how)


def _refuses(graph: Graph, node: Node) -> str:
    if _mode(node) not in ("nearest", "linear", "bilinear"):
        return f"{node.op} with mode {_mode(node)} is not divided"
    if _coordinates(node, graph.opset) == "tf_crop_and_resize":
        return f"{node.op} crops by a computed region"
    if _mode(node) == "nearest" and _rounds_either_way(graph, node):
        return f"{node.op}: positions halfway between elements are rounded either way"
    if node.int("antialias", 0):
        return f"{node.op} with antialias is not divided"
    if node.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return f"{node.op} that keeps the aspect ratio is not divided"
    computed = computed_settings(graph, node, *range(1, len(node.inputs)))
    return computed or _rounds_weights(graph, node)


def _rounds_weights(graph: Graph, node: Node) -> str:
    """Why a Resize of integers cannot be divided: its neighbours' weights are none."""
    if _mode(node) == "nearest" or graph.tensors[node.inputs[0]].dtype.kind == "f":
        return ""
    grows = all(axis.factor for axis in _resized(graph, node).values())
    return "" if grows else f"{node.op} between integers is not divided"


def _rounds_either_way(graph: Graph, node: Node) -> bool:
    """Whether the nearest element depends on how the position is computed."""
    coordinates = _coordinates(node, graph.opset)
    if coordinates == "half_pixel_symmetric":
        return True
    mode = node.attributes.get("nearest_mode", b"round_prefer_floor")
    if node.op == "Upsample" or graph.opset < 11 or not mode.startswith(b"round"):
        return False
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    for axis, scale in _axis_scales(graph, node).items():
        where = positions(coordinates, before[axis], after[axis], np.float32(scale))
        if nearly_halfway(where):
            return True
    return False


def _flop(graph: Graph, node: Node, output: Box) -> int:
    return output.volume * (1 if _mode(node) == "nearest" else 7)


def _sampled(graph: Graph, node: Node, box: Box) -> Boxes:
    """The whole map of the same channels, and the same places of the grid."""
    shape = graph.shape(node.inputs[0])
    sampled = Box((box[0], box[1], *(Span(0, size) for size in shape[2:])))
    return (sampled, Box((box[0], *box[2:], Span(0, len(shape) - 2))))


def _sample_flop(graph: Graph, node: Node, output: Box) -> int:
    """Linear interpolation of four neighbours."""
    return 8 * output.volume


_RESIZE = Operator(Kind.RESAMPLING, "resize", _reads, build=_build, flop=_flop, refuses=_refuses)

_SAMPLE = Operator(Kind.RESAMPLING, "resize", _sampled, flop=_sample_flop, aligned=True)

RESIZE = {"Resize": _RESIZE, "Upsample": _RESIZE, "GridSample": _SAMPLE}


def positions(coordinates: str, size: int, out: int, scale: np.float32) -> Singles:
    """Where output elements lie in the input [ONNX, Resize: coordinate_transformation_mode]."""
    o = np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    match coordinates:
        case "asymmetric":
            return o / scale
        case "align_corners":
            if out == 1:
                return np.zeros_like(o)
            return o * np.float32(size - 1) / np.float32(out - 1)
        case "pytorch_half_pixel" if out == 1:
            return np.zeros_like(o)
        case "half_pixel_symmetric":
            adjustment = np.float32(out) / (scale * np.float32(size))
            offset = np.float32(size) / 2 * (1 - adjustment)
            return (offset + (o + half) / scale - half).astype(np.float32)
        case _:
            return (o + half) / scale - half


def nearest(node: Node, opset: int, where: Singles, scale: float) -> Singles:
    """The element for each position, before clipping to the input."""
    if node.op == "Upsample" or opset < 11:
        rounded = np.ceil(where) if scale < 1 else np.trunc(where)
    else:
        match node.attributes.get("nearest_mode", b"round_prefer_floor").decode():
            case "floor":
                rounded = np.floor(where)
            case "ceil":
                rounded = np.ceil(where)
            case "round_prefer_ceil":
                rounded = np.floor(where + np.float32(0.5))
            case _:
                rounded = np.ceil(where - np.float32(0.5))
    return rounded


def nearly_halfway(where: Singles) -> bool:
    """Whether a position lies halfway between two elements up to rounding errors, so that runtimes
    may round it either way.
    """
    beside = np.abs(where - np.floor(where) - np.float32(0.5))
    return bool(((beside > 0) & (beside < _OFF_ULP * np.spacing(np.maximum(where, 1)))).any())
