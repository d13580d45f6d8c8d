"""The operator table: how each operator's output boxes depend on its input boxes.

One declaration per operator. Backward geometry, cutting, the report of what is split, and the
cost models' layer types all read this table; an operator that is not in it is *opaque*: it
needs all of its inputs and yields all of its outputs, so it runs whole on one device.

The kinds, for an output box `o` of a node:

* pointwise: input box = `o`, projected through broadcasting;
* windowed: rows and columns [o.start*s - p, (o.stop-1)*s - p + (k-1)*d + 1), clipped to the map;
* layout: elements move, rows and columns survive (Concat, SpaceToDepth ...);
* mixing: whole along one axis (Gemm, Softmax), the same elsewhere;
* reducing: whole rows and columns in, one value per channel out;
* opaque: everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from models.boxes import Box, Span
from models.graph import Graph, Node

Boxes = tuple[Box | None, ...]


class Kind(StrEnum):
    """How an operator's outputs depend on its inputs."""

    POINTWISE = "pointwise"
    WINDOWED = "windowed"
    LAYOUT = "layout"
    MIXING = "mixing"
    REDUCING = "reducing"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table.

    `reads(graph, node, box)` gives the box of every input (None: not read) that the output box
    needs. `yields(graph, node, box)` widens a demanded box to one that the operator can yield.
    `layer_type` names the cost regression that predicts it. `heavy` operators begin a layer;
    the others belong to the layer before them.
    """

    kind: Kind
    layer_type: str
    reads: Callable[[Graph, Node, Box], Boxes]
    yields: Callable[[Graph, Node, Box], Box] = lambda graph, node, box: box
    heavy: bool = False


def operator(node: Node) -> Operator:
    """The declaration of a node's operator; opaque if the table has none."""
    return TABLE.get(node.op, _OPAQUE)


def splits_along(graph: Graph, node: Node, axis: int) -> bool:
    """Whether a node can yield a part of its output along `axis`."""
    shape = graph.shape(node.outputs[0])
    if len(node.outputs) > 1 or len(shape) <= axis or shape[axis] < 2:
        return False
    half = Box.whole(shape).replace(axis, Span(0, shape[axis] // 2))
    return operator(node).yields(graph, node, half)[axis] == half[axis]


# ---------------------------------------------------------------- pointwise


def _project(box: Box, shape: Sequence[int]) -> Box:
    """The part of a broadcast operand of `shape` that an output box reads."""
    spans = box.spans[len(box) - len(shape) :]
    return Box(
        tuple(Span(0, 1) if size == 1 else span for size, span in zip(shape, spans, strict=True))
    )


def _pointwise(graph: Graph, node: Node, box: Box) -> Boxes:
    return tuple(_project(box, graph.shape(name)) if name else None for name in node.inputs)


def _per_channel(graph: Graph, node: Node, box: Box) -> Boxes:
    """First input as the output; the others are vectors over channels (BatchNormalization)."""
    return (box, *(Box((box[1],)) if name else None for name in node.inputs[1:]))


# ---------------------------------------------------------------- windowed


def _window_spans(graph: Graph, node: Node, box: Box) -> tuple[Span, ...]:
    sizes = graph.shape(node.inputs[0])[2:]
    return tuple(
        window.input_span(span, size)
        for window, span, size in zip(node.windows, box.spans[2:], sizes, strict=True)
    )


def _pool(graph: Graph, node: Node, box: Box) -> Boxes:
    return (Box((box[0], box[1], *_window_spans(graph, node, box))),)


def _conv(graph: Graph, node: Node, box: Box) -> Boxes:
    spatial = _window_spans(graph, node, box)
    weights = graph.shape(node.inputs[1])
    group_outputs = weights[0] // node.int("group", 1)
    first, last = box[1].start // group_outputs, -(-box[1].stop // group_outputs)
    channels = Span(first * weights[1], last * weights[1])
    reads = [
        Box((box[0], channels, *spatial)),
        Box((box[1], *(Span(0, size) for size in weights[1:]))),
    ]
    if len(node.inputs) > 2 and node.inputs[2]:
        reads.append(Box((box[1],)))
    return tuple(reads)


def _reading_something(graph: Graph, node: Node, box: Box) -> Box:
    """Windows that lie in the padding alone can only be computed beside one that doesn't."""
    sizes = graph.shape(node.inputs[0])[2:]
    for axis, (window, size) in enumerate(zip(node.windows, sizes, strict=True), start=2):
        box = box.replace(axis, window.touching(box[axis], size))
    return box


def _conv_yields(graph: Graph, node: Node, box: Box) -> Box:
    """A grouped convolution yields whole groups of output channels."""
    box = _reading_something(graph, node, box)
    groups = node.int("group", 1)
    if groups == 1:
        return box
    size = graph.shape(node.inputs[1])[0] // groups
    start, stop = box[1].start // size * size, -(-box[1].stop // size) * size
    return box.replace(1, Span(start, stop))


# ---------------------------------------------------------------- layout


def _concat(graph: Graph, node: Node, box: Box) -> Boxes:
    axis = node.int("axis", 1) % len(box)
    return tuple(box.replace(axis, Span(0, graph.shape(name)[axis])) for name in node.inputs)


def _concat_yields(graph: Graph, node: Node, box: Box) -> Box:
    axis = node.int("axis", 1) % len(box)
    return box.replace(axis, Span(0, graph.shape(node.outputs[0])[axis]))


def _space_to_depth(graph: Graph, node: Node, box: Box) -> Boxes:
    block = node.int("blocksize", 1)
    channels = Span(0, graph.shape(node.inputs[0])[1])
    rows, cols = (Span(s.start * block, s.stop * block) for s in box.spans[2:])
    return (Box((box[0], channels, rows, cols)),)


def _whole_channels(graph: Graph, node: Node, box: Box) -> Box:
    return box.replace(1, Span(0, graph.shape(node.outputs[0])[1]))


# ---------------------------------------------------------------- mixing, reducing, opaque


def _softmax(graph: Graph, node: Node, box: Box) -> Boxes:
    return (box,)


def _softmax_yields(graph: Graph, node: Node, box: Box) -> Box:
    shape = graph.shape(node.outputs[0])
    axis = node.int("axis", 1 if graph.opset < 13 else -1) % len(shape)
    # Before opset 13, everything from `axis` on was flattened into one distribution.
    axes = range(axis, len(shape)) if graph.opset < 13 else (axis,)
    for each in axes:
        box = box.replace(each, Span(0, shape[each]))
    return box


def _gemm(graph: Graph, node: Node, box: Box) -> Boxes:
    inner = graph.shape(node.inputs[0])[0 if node.int("transA", 0) else 1]
    rows, cols, whole = box[0], box[1], Span(0, inner)
    a = Box((whole, rows)) if node.int("transA", 0) else Box((rows, whole))
    b = Box((cols, whole)) if node.int("transB", 0) else Box((whole, cols))
    if len(node.inputs) < 3 or not node.inputs[2]:
        return (a, b)
    return (a, b, _project(box, graph.shape(node.inputs[2])))


def _global_pool(graph: Graph, node: Node, box: Box) -> Boxes:
    shape = graph.shape(node.inputs[0])
    return (Box((box[0], box[1], *(Span(0, size) for size in shape[2:]))),)


def _everything(graph: Graph, node: Node, box: Box) -> Boxes:
    return tuple(Box.whole(graph.shape(name)) if name else None for name in node.inputs)


def _whole_output(graph: Graph, node: Node, box: Box) -> Box:
    return Box.whole(graph.shape(node.outputs[0]))


_OPAQUE = Operator(Kind.OPAQUE, "opaque", _everything, yields=_whole_output, heavy=True)
_POINTWISE = Operator(Kind.POINTWISE, "elementwise", _pointwise)
_RESHAPE = Operator(Kind.OPAQUE, "reshape", _everything, yields=_whole_output)
_POOL = Operator(Kind.WINDOWED, "pooling", _pool, yields=_reading_something)
_REDUCING = Operator(Kind.REDUCING, "pooling", _global_pool)

_ELEMENTWISE_OPS = (
    "Relu LeakyRelu PRelu Sigmoid HardSigmoid HardSwish Tanh Elu Selu Clip Softplus Softsign "
    "Abs Neg Exp Log Sqrt Reciprocal Floor Ceil Erf Gelu Mish Add Sub Mul Div Min Max Pow Sum "
    "Mean Cast"
)

TABLE: Mapping[str, Operator] = {
    **dict.fromkeys(_ELEMENTWISE_OPS.split(), _POINTWISE),
    "BatchNormalization": Operator(Kind.POINTWISE, "normalisation", _per_channel),
    "Conv": Operator(Kind.WINDOWED, "convolution", _conv, yields=_conv_yields, heavy=True),
    "MaxPool": _POOL,
    "AveragePool": _POOL,
    "GlobalAveragePool": _REDUCING,
    "GlobalMaxPool": _REDUCING,
    "Concat": Operator(Kind.LAYOUT, "concat", _concat, yields=_concat_yields),
    "SpaceToDepth": Operator(Kind.LAYOUT, "concat", _space_to_depth, yields=_whole_channels),
    "Gemm": Operator(Kind.MIXING, "fully_connected", _gemm, heavy=True),
    "Softmax": Operator(Kind.MIXING, "elementwise", _softmax, yields=_softmax_yields),
    "Flatten": _RESHAPE,
    "Reshape": _RESHAPE,
    "Squeeze": _RESHAPE,
    "Unsqueeze": _RESHAPE,
    "Transpose": _RESHAPE,
}
