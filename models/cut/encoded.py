"""Graphs whose tensors are encoded between blocks: in half precision, or in 8 bits per channel.

Maps that nodes produce and that are not outputs of the network are encoded; inputs from the host
and outputs to it are not, and neither are partial sums and vectors, which are small, and the places
at which maps are sampled, where a step of 8 bits may be a pixel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from models.graph.graph import Graph
from models.graph.shapes import TensorInfo
from models.operators import Kind, operator
from models.tensors.precision import Wire
from models.tensors.wire import Encoding, Half, PerChannel

_MAP_DIMS = 4

# Values beyond the observed range are clipped, which hurts more than coarser steps: on 20 held-out
# sheets, ranges of 64 sheets gave `digits` errors of 1.4 %, widened by 1.25 of 0.7 % (ADR 6).
MARGIN = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """The least and the largest observed value of each channel (C,)."""

    least: NDArray[np.float32]
    most: NDArray[np.float32]

    def hull(self, other: "Range") -> "Range":
        """The range that covers both."""
        return Range(np.minimum(self.least, other.least), np.maximum(self.most, other.most))


ValueRanges = Mapping[str, Range]


def encodes(graph: Graph, name: str) -> bool:
    """Whether a tensor may be encoded."""
    info = graph.tensors[name]
    is_map = info.data_type == TensorProto.FLOAT and len(info.shape) == _MAP_DIMS
    if not is_map or name not in graph.producer or name in graph.results:
        return False
    return not _holds_places(graph, name)


def _holds_places(graph: Graph, name: str, steps: int = 2) -> bool:
    """Whether maps are sampled at what a tensor holds, rearranged in at most so many steps."""
    for index in graph.consumers.get(name, ()):
        node = graph.nodes[index]
        if node.op == "GridSample" and node.inputs[1] == name:
            return True
        arranges = steps > 0 and operator(node).kind is Kind.LAYOUT
        if arranges and _holds_places(graph, node.outputs[0], steps - 1):
            return True
    return False


def _is_multiplied(graph: Graph, name: str) -> bool:
    """Whether a product of matrices reads a tensor: onnxruntime takes its decoding into the
    product, and refuses values of more than one scale there.
    """
    return any(graph.nodes[index].op == "MatMul" for index in graph.consumers.get(name, ()))


def with_wire(graph: Graph, wire: Wire, ranges: ValueRanges) -> Graph:
    """The graph with its maps in this encoding. With `int8`, maps without `ranges` stay exact."""

    def travelling(name: str, info: TensorInfo) -> TensorInfo:
        if not encodes(graph, name):
            return info
        encoding: Encoding | None = None
        if wire == "fp16":
            encoding = Half()
        elif wire == "int8" and name in ranges and not _is_multiplied(graph, name):
            found = ranges[name]
            encoding = PerChannel.covering(found.least * MARGIN, found.most * MARGIN)
        return replace(info, wire=encoding)

    tensors = {name: travelling(name, info) for name, info in graph.tensors.items()}
    return replace(graph, tensors=tensors)
