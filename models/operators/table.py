"""The operator table: how each operator's output boxes depend on its input boxes.

One declaration per operator. Backward geometry, cutting, the report of split layers and the cost
models' layer types all read this table; an operator that is not in it is *opaque*: it needs all of
its inputs and yields all of its outputs, so it runs whole on one device.

The kinds, for an output box `o` of a node:

* pointwise: input box = `o`, projected through broadcasting;
* windowed: rows and columns [o.start*s - p, (o.stop-1)*s - p + (k-1)*d + 1), clipped to the map;
* resampling: the inputs of transposed convolutions, the neighbours of interpolated elements;
* layout: elements move, rows survive (Concat, Slice, Pad, Reshape, Transpose ...);
* mixing: whole along one axis (Gemm, MatMul, Softmax), the same elsewhere;
* reducing: whole along the reduced axes;
* opaque: everything.
"""

from collections.abc import Mapping
from dataclasses import replace

from models.graph.graph import COLS, ROWS, Graph, Node
from models.graph.soundness import is_newer
from models.operators.arrange import ARRANGE, DOMAIN
from models.operators.constants import setting
from models.operators.declaration import Boxes, Kind, Operator
from models.operators.indexing import INDEXING
from models.operators.layout import LAYOUT
from models.operators.mixing import MIXING
from models.operators.pointwise import POINTWISE
from models.operators.quantised import QUANTISED, dequantises
from models.operators.resize import RESIZE
from models.operators.tail import OP as TAIL
from models.operators.tail import build_tail
from models.operators.whole_flop import WHOLE_FLOP
from models.operators.windowed import WINDOWED
from models.tensors.boxes import Box, Span


def _everything(graph: Graph, node: Node, box: Box) -> Boxes:
    return tuple(Box.whole(graph.shape(name)) if name else None for name in node.inputs)


def _whole_output(graph: Graph, node: Node, box: Box) -> Box:
    return Box.whole(graph.shape(node.outputs[0]))


def whole_flop(graph: Graph, node: Node) -> int:
    """FLOPs of a node that runs whole, by a formula; 0 if there is none for its operator."""
    if node.op in WHOLE_FLOP:
        return WHOLE_FLOP[node.op](graph, node)
    declared = TABLE.get(node.op)
    if declared is None or declared.kind is Kind.OPAQUE:
        return 0
    box = Box.whole(graph.shape(node.outputs[0]))
    return declared.flop(graph, node, box) if declared.heavy else box.volume


def _flop(graph: Graph, node: Node, box: Box) -> int:
    return whole_flop(graph, node) or node.timed_flop or box.volume


_OPAQUE = Operator(Kind.OPAQUE, "opaque", _everything, yields=_whole_output, flop=_flop, heavy=True)

TABLE: Mapping[str, Operator] = {
    **POINTWISE,
    **WINDOWED,
    **RESIZE,
    **INDEXING,
    **LAYOUT,
    **ARRANGE,
    **MIXING,
    **QUANTISED,
    f"{DOMAIN}.{TAIL}": replace(_OPAQUE, build=build_tail),
}

# onnxruntime does not know imbrex's own operators: they are written in its terms also where they
# are not divided.
_REFUSED: Mapping[str, Operator] = {
    op: replace(_OPAQUE, build=declared.build)
    for op, declared in TABLE.items()
    if op.startswith(f"{DOMAIN}.")
}

# What onnxruntime's default level of optimisation makes of convolutions and of what is around them.
_BLOCKED_BY = "com.microsoft.nchwc."
_BLOCKED = (
    "arranges channels for one kind of processor (save the file with ORT_ENABLE_EXTENDED, or use "
    "the one that was optimised)"
)

# Planners hold two numbers for each row of each node's map; longer maps would take gigabytes. YOLO
# has 171,360 anchors at 3840x2176.
MOST_LINES = 1 << 18

# For nodes that neither have a window nor are aligned, planners ask what the node reads for each
# row and column: 0.2 ms each. YOLO networks have 2,000 such lines, a U-Net 600.
MOST_LINES_ASKED = 1 << 16


def operator(node: Node) -> Operator:
    """The declaration of a node's operator; opaque if the table has none for it."""
    return _REFUSED.get(node.op, _OPAQUE) if node.refusal else TABLE.get(node.op, _OPAQUE)


def moves(op: str) -> bool:
    """Whether an operator only moves values."""
    return op in TABLE and TABLE[op].kind is Kind.LAYOUT


def refusal(graph: Graph, node: Node) -> str:
    """Why a node is opaque although the table has its operator, or has one that was rewritten for
    the processor at hand; empty if neither is so.
    """
    declared = TABLE.get(node.op)
    if declared is None:
        return f"{node.op} {_BLOCKED}" if node.op.startswith(_BLOCKED_BY) else ""
    if is_newer(node.proto):
        return f"{node.op} has a setting of a newer ONNX than is known here"
    if len(node.outputs) > 1 and declared.kind is not Kind.OPAQUE:
        return f"{node.op} has several outputs"
    return declared.refuses(graph, node)


def lines_asked(graph: Graph, node: Node) -> int:
    """The number of rows and columns for which planners will ask what the node reads."""
    declared, made = operator(node), node.outputs[0]
    if declared.kind in (Kind.OPAQUE, Kind.WINDOWED) or declared.aligned or declared.in_parts:
        return 0
    asked = (which for which in (ROWS, COLS) if not keeps_lines(graph, node, which))
    return sum(graph.size(made, which) for which in asked)


def keeps_lines(graph: Graph, node: Node, which: int) -> bool:
    """Whether each row (or column) depends only on the same one of every input, as where another
    axis is cut or joined.
    """
    shape, axis = graph.shape(node.outputs[0]), graph.axis(node.outputs[0], which)
    # Where the rows of an input lie along another axis, these are other rows.
    read = [name for name in node.inputs if name and name not in graph.constants]
    if any(graph.axis(name, which) != axis for name in read):
        return False
    if node.op == "Slice":
        axes = setting(graph, node, "axes", 3)
        return axes is not None and axis not in [int(listed) % len(shape) for listed in axes]
    return node.op == "Concat" and axis is not None and axis != node.int("axis", 1) % len(shape)


def depends_on_constants(graph: Graph, node: Node) -> bool:
    """Whether everything that a node reads is constant."""
    return all(name in graph.constants for name in node.inputs if name)


def splits_along(graph: Graph, node: Node, which: int) -> bool:
    """Whether a node can yield a part of its output's rows (or columns, channels: `which`). Nodes
    that depend on constants alone (weights kept quantised), and one-row gates that are dequantised
    where they are used, do not prevent this.
    """
    shape, axis = graph.shape(node.outputs[0]), graph.axis(node.outputs[0], which)
    single = axis is not None and shape[axis] < 2
    if depends_on_constants(graph, node) or (single and dequantises(node)):
        return True
    if len(node.outputs) > 1 or axis is None or single or shape[axis] > MOST_LINES:
        return False
    first = Box.whole(shape).replace(axis, Span(0, 1))
    return operator(node).yields(graph, node, first)[axis] != Span(0, shape[axis])
