"""Transposed convolution: input element i adds to the outputs i*s - p ... i*s - p + (k-1)*d.

A tile reads the inputs that add to it. Its program computes everything that these inputs add to;
the part outside the tile is cut off by pads.
"""

import math
from typing import TYPE_CHECKING

from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.operators.windowed import groups_of, input_channels, per_output_channel, whole_groups
from models.tensors.boxes import Box, Span
from models.tensors.windows import Window

if TYPE_CHECKING:
    from models.graph.graph import Graph, Node


def _input_span(window: Window, output: Span, size: int) -> Span:
    """Inputs that add to `output`, clipped to a map of `size`; at least one, and none begins
    its contribution after the first element (pads can't be negative).
    """
    latest = (output.start + window.pad_start) // window.stride
    first = -(-(output.start + window.pad_start - window.reach + 1) // window.stride)
    last = (output.stop - 1 + window.pad_start) // window.stride
    start = min(max(min(first, latest), 0), size - 1)
    return Span(start, min(max(last, start), size - 1) + 1)


def _spans(graph: "Graph", node: "Node", box: Box) -> tuple[Span, ...]:
    sizes = graph.shape(node.inputs[0])[2:]
    return tuple(
        _input_span(window, span, size)
        for window, span, size in zip(node.windows, box[2:], sizes, strict=True)
    )


def _reads(graph: "Graph", node: "Node", box: Box) -> Boxes:
    channels = input_channels(graph, node, box[1])
    weights = graph.shape(node.inputs[1])
    outputs = Span(0, weights[1]) if node.int("group", 1) > 1 else box[1]
    kernel = (Span(0, size) for size in weights[2:])
    bias = (per_output_channel(graph, name, box[1]) for name in node.inputs[2:])
    return (
        Box((box[0], channels, *_spans(graph, node, box))),
        Box((channels, outputs, *kernel)),
        *bias,
    )


def _build(piece: BoxPiece, program: Emitter) -> None:
    graph, node = piece.graph, piece.node
    starts, ends, beyond = [], [], []
    spans = _spans(graph, node, piece.output)
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


def _flop(graph: "Graph", node: "Node", output: Box) -> int:
    """Every input element meets every tap: the map's area over the strides."""
    taps = math.prod(window.kernel for window in node.windows)
    steps = math.prod(window.stride for window in node.windows)
    per_group = graph.shape(node.inputs[0])[1] // node.int("group", 1)
    return 2 * taps * per_group * output.volume // steps


TRANSPOSED = {
    "ConvTranspose": Operator(
        Kind.RESAMPLING,
        "convolution",
        _reads,
        yields=whole_groups,
        build=_build,
        flop=_flop,
        heavy=True,
    )
}
