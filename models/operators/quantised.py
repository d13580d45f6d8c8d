"""Quantised operators of ONNX and onnxruntime. Scales and zero points are per tensor or per
channel.
"""

from collections.abc import Sequence

from onnx import NodeProto

from models.graph.graph import Graph, Node
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.operators.layout import joined, of_joined
from models.operators.mixing import factors, gemm_flop, gemm_inner, product_flop
from models.operators.pointwise import project
from models.operators.windowed import per_output_channel
from models.tensors.boxes import Box, Span


def _whole_settings(graph: Graph, names: Sequence[str]) -> Boxes:
    """Scales and zero points of whole tensors."""
    return tuple(Box.whole(graph.shape(name)) if name else None for name in names)


def _linear(graph: Graph, node: Node, box: Box) -> Boxes:
    along = box[node.int("axis", 1) % len(box)] if len(box) else Span(0, 1)
    return (box, *(per_output_channel(graph, name, along) for name in node.inputs[1:]))


def _linear_refuses(graph: Graph, node: Node) -> str:
    return f"blocked {node.op} is not divided" if node.int("block_size", 0) else ""


# ---------------------------------------------------------------- joining

# QLinearConcat has the scale and the zero point of its output, then each operand with its own.
_FIRST_OPERAND, _PER_OPERAND = 2, 3


def _concat(graph: Graph, node: Node, box: Box) -> Boxes:
    operands = range(_FIRST_OPERAND, len(node.inputs), _PER_OPERAND)
    reads = list(_whole_settings(graph, node.inputs))
    parts = of_joined(graph, node, [node.inputs[place] for place in operands], box)
    for place, part in zip(operands, parts, strict=True):
        reads[place] = part
        if part is None:
            reads[place + 1] = reads[place + 2] = None
    return tuple(reads)


def _build_concat(piece: BoxPiece, program: Emitter) -> None:
    """Joins what a tile reads, which may be of some operands only."""
    names = piece.inputs
    proto = NodeProto()
    proto.CopyFrom(piece.node.proto)
    proto.input[:] = names[:_FIRST_OPERAND]
    for place in range(_FIRST_OPERAND, len(names), _PER_OPERAND):
        if names[place]:
            proto.input.extend(names[place : place + _PER_OPERAND])
    program.nodes.append(proto)


# ---------------------------------------------------------------- products

# The indices of the factors among the inputs of QGemm and QLinearMatMul.
_A, _B = 0, 3


def _gemm(graph: Graph, node: Node, box: Box) -> Boxes:
    """Rows of A by columns of B; inputs with one value per column follow the columns."""
    rows, cols = box
    whole = Span(0, gemm_inner(graph, node))
    reads: list[Box | None] = [per_output_channel(graph, name, cols) for name in node.inputs]
    reads[_A] = Box((whole, rows)) if node.int("transA", 0) else Box((rows, whole))
    reads[_B] = Box((cols, whole)) if node.int("transB", 0) else Box((whole, cols))
    return tuple(reads)


def _second(node: Node) -> int:
    """The index of the second factor of a product."""
    return _B if node.op == "QLinearMatMul" else 1


def _of_columns(node: Node) -> tuple[int, ...]:
    """The indices of what may have a value for each column of B."""
    return (_B + 1, _B + 2) if node.op == "QLinearMatMul" else (3,)


def _product(graph: Graph, node: Node, box: Box) -> Boxes:
    second, names = _second(node), node.inputs
    reads = list(_whole_settings(graph, names))
    reads[_A], columns = factors(graph.shape(names[_A]), graph.shape(names[second]), box)
    reads[second] = columns
    for place in _of_columns(node):
        shape = graph.shape(names[place]) if names[place:] and names[place] else ()
        if len(shape) == 1:
            reads[place] = per_output_channel(graph, names[place], box[-1])
        elif shape:
            reads[place] = project(columns, shape)
    return tuple(reads)


def _product_refuses(graph: Graph, node: Node) -> str:
    second = _second(node)
    if any(len(graph.shape(node.inputs[place])) < 2 for place in (_A, second)):
        return f"{node.op} multiplies by a vector"
    others = set(range(len(node.inputs))) - {_A, second, *_of_columns(node)}
    settings = [graph.shape(node.inputs[place]) for place in others if node.inputs[place]]
    single = all(size == 1 for shape in settings for size in shape)
    return "" if single else f"{node.op} has a scale or zero point for each row"


# ---------------------------------------------------------------- along one axis, over the map


def _data_only(graph: Graph, node: Node, box: Box) -> Boxes:
    """The same of the data, and its scales."""
    return (box, *_whole_settings(graph, node.inputs[1:]))


_AXIS_ALONE_SINCE = 13


def _distribution(graph: Graph, node: Node, box: Box) -> Box:
    """All of the axis over which Softmax normalises; before opset 13, all from it on."""
    shape = graph.shape(node.outputs[0])
    axis = node.int("axis", -1) % len(shape)
    alone = node.int("opset", _AXIS_ALONE_SINCE) >= _AXIS_ALONE_SINCE
    for dim in (axis,) if alone else range(axis, len(shape)):
        box = box.replace(dim, Span(0, shape[dim]))
    return box


def _pool(graph: Graph, node: Node, box: Box) -> Boxes:
    shape = graph.shape(node.inputs[0])
    last = len(shape) - 1
    for axis in range(1, last) if node.int("channels_last", 0) else range(2, last + 1):
        box = box.replace(axis, Span(0, shape[axis]))
    return _data_only(graph, node, box)


def _pool_flop(graph: Graph, node: Node, output: Box) -> int:
    data = _pool(graph, node, output)[0]
    assert data is not None
    return data.volume


_LINEAR = Operator(Kind.POINTWISE, "elementwise", _linear, refuses=_linear_refuses, aligned=True)
_PRODUCT = Operator(
    Kind.MIXING,
    "product",
    _product,
    flop=product_flop,
    refuses=_product_refuses,
    heavy=True,
    aligned=True,
)

WIDENING = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})
# These do the same to each element, with a scale for all or one per index of an axis.
LINEAR = WIDENING | {"QuantizeLinear", "com.microsoft.QuantizeLinear"}

QUANTISED = {
    **dict.fromkeys(LINEAR, _LINEAR),
    "com.microsoft.QLinearConcat": Operator(
        Kind.LAYOUT, "concat", _concat, yields=joined, build=_build_concat
    ),
    "com.microsoft.QGemm": Operator(
        Kind.MIXING, "fully_connected", _gemm, flop=gemm_flop, heavy=True
    ),
    **dict.fromkeys(["MatMulInteger", "QLinearMatMul"], _PRODUCT),
    "com.microsoft.QLinearSoftmax": Operator(
        Kind.MIXING, "elementwise", _data_only, yields=_distribution, aligned=True
    ),
    "com.microsoft.QLinearGlobalAveragePool": Operator(
        Kind.REDUCING, "pooling", _pool, flop=_pool_flop, aligned=True
    ),
}


def dequantises(node: Node) -> bool:
    """Whether a node only dequantises its input."""
    return node.op in WIDENING
