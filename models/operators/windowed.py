"""Windowed operators: rows and columns [o.start*s - p, (o.stop-1)*s - p + (k-1)*d + 1), clipped
to the map. Pads remain only on the map's own edges.

Transposed convolution: input element i adds to the outputs i*s - p ... i*s - p + (k-1)*d. A tile
reads the inputs that add to it. Its program computes everything that these inputs add to; the part
outside the tile is cut off by pads.
"""

import math

from models.graph.graph import Graph, Node
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.boxes import Box, Span
from models.tensors.windows import Window, weights_position


def input_channels(graph: Graph, node: Node, outputs: Span) -> Span:
    """Channels that a convolution reads for these channels of its output."""
    groups, channels = node.int("group", 1), graph.shape(node.inputs[0])[1]
    if groups == 1:
        return Span(0, channels)
    per_output, per_input = graph.shape(node.outputs[0])[1] // groups, channels // groups
    return Span(outputs.start // per_output * per_input, -(-outputs.stop // per_output) * per_input)


def whole_groups(graph: Graph, node: Node, box: Box) -> Box:
    """A grouped convolution yields whole groups of output channels."""
    groups = node.int("group", 1)
    if groups == 1:
        return box
    size = graph.shape(node.outputs[0])[1] // groups
    return box.replace(1, Span(box[1].start // size * size, -(-box[1].stop // size) * size))


def groups_of(graph: Graph, node: Node, output: Box) -> int | None:
    """How many groups a box of whole groups holds; None for one group of which any part may be."""
    if node.int("group", 1) == 1:
        return None
    return node.int("group", 1) * len(output[1]) // graph.shape(node.outputs[0])[1]


def per_output_channel(graph: Graph, name: str, channels: Span) -> Box | None:
    """The box read of a bias, scale or zero point: one value per output channel, or one for all."""
    if not name:
        return None
    shape = graph.shape(name)
    return Box((channels,)) if len(shape) == 1 and shape[0] > 1 else Box.whole(shape)


def _window_spans(graph: Graph, node: Node, box: Box) -> tuple[Span, ...]:
    sizes = graph.shape(node.inputs[0])[2:]
    return tuple(
        window.input_span(span, size)
        for window, span, size in zip(node.windows, box[2:], sizes, strict=True)
    )


def _pool(graph: Graph, node: Node, box: Box) -> Boxes:
    data = Box((box[0], box[1], *_window_spans(graph, node, box)))
    return (data, *(per_output_channel(graph, name, box[1]) for name in node.inputs[1:]))


def _conv(graph: Graph, node: Node, box: Box) -> Boxes:
    channels = input_channels(graph, node, box[1])
    data = Box((box[0], channels, *_window_spans(graph, node, box)))
    place = weights_position(node.op)
    weights = Box((box[1], *Box.whole(graph.shape(node.inputs[place])[1:])))
    known = {0: data, place: weights}
    return tuple(
        known[k] if k in known else per_output_channel(graph, name, box[1])
        for k, name in enumerate(node.inputs)
    )


def _reading_something(graph: Graph, node: Node, box: Box) -> Box:
    """Windows entirely in the padding can only be computed together with one that is not."""
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    for axis, window in enumerate(node.windows, start=2):
        span = window.touching(box[axis], before[axis], after[axis])
        box = box if span is box[axis] else box.replace(axis, span)
    return box


def _conv_yields(graph: Graph, node: Node, box: Box) -> Box:
    return whole_groups(graph, node, _reading_something(graph, node, box))


def _build(piece: BoxPiece, program: Emitter) -> None:
    """With the pads of this tile's border class, and the groups that it computes."""
    graph, node = piece.graph, piece.node
    sizes = graph.shape(node.inputs[0])[2:]
    pads = [
        window.pads(span, size)
        for window, span, size in zip(node.windows, piece.output[2:], sizes, strict=True)
    ]
    piece.copy(
        program,
        pads=[start for start, _ in pads] + [end for _, end in pads],
        auto_pad=None,
        group=groups_of(graph, node, piece.output),
    )


def _taps(node: Node) -> int:
    return math.prod(window.kernel for window in node.windows)


def _conv_flop(graph: Graph, node: Node, output: Box) -> int:
    per_group = graph.shape(node.inputs[0])[1] // node.int("group", 1)
    return 2 * _taps(node) * per_group * output.volume


def _pool_flop(graph: Graph, node: Node, output: Box) -> int:
    return _taps(node) * output.volume


def _pool_refuses(graph: Graph, node: Node) -> str:
    """onnxruntime, unlike ONNX, uses negative pads for such pools."""
    if node.int("channels_last", 0):
        return f"{node.op} with channels last is not divided"
    automatic = node.attributes.get("auto_pad", b"NOTSET").startswith(b"SAME")
    if automatic and any(window.stride > window.reach for window in node.windows):
        return f"{node.op} would need negative automatic pads"
    return ""


def _input_span(window: Window, output: Span, size: int) -> Span:
    """Inputs that add to `output`, clipped to a map of `size`; at least one, and none begins
    its contribution after the first element (pads can't be negative).
    """
    latest = (output.start + window.pad_start) // window.stride
    first = -(-(output.start + window.pad_start - window.reach + 1) // window.stride)
    last = (output.stop - 1 + window.pad_start) // window.stride
    start = min(max(min(first, latest), 0), size - 1)
    return Span(start, min(max(last, start), size - 1) + 1)


def _adding_spans(graph: Graph, node: Node, box: Box) -> tuple[Span, ...]:
    sizes = graph.shape(node.inputs[0])[2:]
    return tuple(
        _input_span(window, span, size)
        for window, span, size in zip(node.windows, box[2:], sizes, strict=True)
    )


def _transposed_conv(graph: Graph, node: Node, box: Box) -> Boxes:
    channels = input_channels(graph, node, box[1])
    weights = graph.shape(node.inputs[1])
    outputs = Span(0, weights[1]) if node.int("group", 1) > 1 else box[1]
    kernel = (Span(0, size) for size in weights[2:])
    bias = (per_output_channel(graph, name, box[1]) for name in node.inputs[2:])
    return (
        Box((box[0], channels, *_adding_spans(graph, node, box))),
        Box((channels, outputs, *kernel)),
        *bias,
    )


def _build_transposed(piece: BoxPiece, program: Emitter) -> None:
    graph, node = piece.graph, piece.node
    starts, ends, beyond = [], [], []
    spans = _adding_spans(graph, node, piece.output)
    for window, read, wanted in zip(node.windows, spans, piece.output[2:], strict=True):
        first = read.start * window.stride - window.pad_start
        last = (read.stop - 1) * window.stride - window.pad_start + window.reach
        starts.append(wanted.start - first)
        ends.append(max(0, last - wanted.stop))
        beyond.append(max(0, wanted.stop - last))
    piece.copy(
        program,
        pads=[*starts, *ends],
        output_padding=beyond,
        output_shape=None,
        auto_pad=None,
        group=groups_of(graph, node, piece.output),
    )


def _transposed_flop(graph: Graph, node: Node, output: Box) -> int:
    """Every input element meets every tap: the map's area over the strides."""
    steps = math.prod(window.stride for window in node.windows)
    per_group = graph.shape(node.inputs[0])[1] // node.int("group", 1)
    return 2 * _taps(node) * per_group * output.volume // steps


_CONV = Operator(
    Kind.WINDOWED,
    "convolution",
    _conv,
    yields=_conv_yields,
    build=_build,
    flop=_conv_flop,
    heavy=True,
)
_POOL = Operator(
    Kind.WINDOWED,
    "pooling",
    _pool,
    yields=_reading_something,
    build=_build,
    flop=_pool_flop,
    refuses=_pool_refuses,
)
_TRANSPOSED = Operator(
    Kind.RESAMPLING,
    "convolution",
    _transposed_conv,
    yields=whole_groups,
    build=_build_transposed,
    flop=_transposed_flop,
    heavy=True,
)

WINDOWED = {
    "ConvTranspose": _TRANSPOSED,
    "Conv": _CONV,
    "ConvInteger": _CONV,
    "QLinearConv": _CONV,
    "MaxPool": _POOL,
    "AveragePool": _POOL,
    "LpPool": _POOL,
    "com.microsoft.QLinearAveragePool": _POOL,
}
