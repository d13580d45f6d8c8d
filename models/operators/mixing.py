"""Mixing operators need all of one axis, mostly channels, and the same elsewhere; reducing ones
need all rows. Products of matrices in tensors, as in attention, need rows of A, columns of B, and
each matrix of the batch on its own; a product of two matrices with constant B is a Gemm.
"""

from collections.abc import Sequence

from models.graph.graph import Graph, Node
from models.operators.constants import computed_settings, first_only, setting
from models.operators.declaration import Boxes, Kind, Operator
from models.operators.layout import whole_channels
from models.operators.pointwise import project
from models.tensors.boxes import Box, Span

ROWS = 2


def _same(graph: Graph, node: Node, box: Box) -> Boxes:
    return first_only(node, box)


def _along_axis(graph: Graph, node: Node, box: Box) -> Box:
    """All of the axis over which Softmax and similar operators normalise."""
    shape = graph.shape(node.outputs[0])
    # Before opset 13, everything from `axis` on was flattened into one distribution.
    flattens = graph.opset < 13 and node.op != "LpNormalization"
    default = 1 if flattens else -1
    axis = node.int("axis", default) % len(shape)
    for dim in range(axis, len(shape)) if flattens else (axis,):
        box = box.replace(dim, Span(0, shape[dim]))
    return box


def _gemm(graph: Graph, node: Node, box: Box) -> Boxes:
    inner = gemm_inner(graph, node)
    rows, cols, whole = box[0], box[1], Span(0, inner)
    a = Box((whole, rows)) if node.int("transA", 0) else Box((rows, whole))
    b = Box((cols, whole)) if node.int("transB", 0) else Box((whole, cols))
    if len(node.inputs) < 3 or not node.inputs[2]:
        return (a, b)
    return (a, b, project(box, graph.shape(node.inputs[2])))


def gemm_inner(graph: Graph, node: Node) -> int:
    """The length of the axis that a fully connected layer sums over."""
    return graph.shape(node.inputs[0])[0 if node.int("transA", 0) else 1]


def gemm_flop(graph: Graph, node: Node, output: Box) -> int:
    """Every output element sums products over that axis."""
    return 2 * gemm_inner(graph, node) * output.volume


# ---------------------------------------------------------------- reducing


def reduced_axes(graph: Graph, node: Node) -> tuple[int, ...]:
    """The axes over which a Reduce operator or a global pool goes."""
    rank = len(graph.shape(node.inputs[0]))
    if node.op.startswith("Global"):
        return tuple(range(ROWS, rank))
    if node.op.startswith("Arg"):
        return (node.int("axis", 0) % rank,)
    axes = setting(graph, node, "axes", 1)
    if not axes:
        return () if node.int("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in axes))


def _reduce(graph: Graph, node: Node, box: Box) -> Boxes:
    """Whole along the reduced axes. If the axes are an input, they are read too."""
    shape = graph.shape(node.inputs[0])
    for axis in reduced_axes(graph, node):
        box = box.replace(axis, Span(0, shape[axis]))
    return (box, *(Box.whole(graph.shape(name)) if name else None for name in node.inputs[1:]))


def _reduce_refuses(graph: Graph, node: Node) -> str:
    if not node.int("keepdims", 1):
        return f"{node.op} removes dimensions"
    return computed_settings(graph, node, 1)


def _reduce_flop(graph: Graph, node: Node, output: Box) -> int:
    data = _reduce(graph, node, output)[0]
    assert data is not None
    return data.volume


def _layer_norm(graph: Graph, node: Node, box: Box) -> Boxes:
    """Scale and bias are of the shape of what is normalised, or broadcast to it."""
    return (box, *(project(box, graph.shape(name)) if name else None for name in node.inputs[1:]))


def _normalised(graph: Graph, node: Node, box: Box) -> Box:
    """All of the last axes, from `axis` on."""
    shape = graph.shape(node.outputs[0])
    for dim in range(node.int("axis", -1) % len(shape), len(shape)):
        box = box.replace(dim, Span(0, shape[dim]))
    return box


# ---------------------------------------------------------------- products


def factors(a: Sequence[int], b: Sequence[int], box: Box) -> tuple[Box, Box]:
    """What a box of a product reads of its factors, of shapes `a` and `b`."""
    batch, summed = Box(box[:-2]), Span(0, a[-1])
    return (
        Box((*project(batch, a[:-2]), box[-2], summed)),
        Box((*project(batch, b[:-2]), summed, box[-1])),
    )


def _product(graph: Graph, node: Node, box: Box) -> Boxes:
    a, b = (graph.shape(name) for name in node.inputs)
    return factors(a, b, box)


def product_flop(graph: Graph, node: Node, output: Box) -> int:
    """Every output element sums products over the last axis of A."""
    return 2 * graph.shape(node.inputs[0])[-1] * output.volume


def _product_refuses(graph: Graph, node: Node) -> str:
    vectors = any(len(graph.shape(name)) < 2 for name in node.inputs)
    return f"{node.op} multiplies by a vector" if vectors else ""


_PRODUCT = Operator(
    Kind.MIXING,
    "product",
    _product,
    flop=product_flop,
    refuses=_product_refuses,
    heavy=True,
    aligned=True,
)
# Of the last axes; the last is onnxruntime's own, in ONNX's domain.
LAYER_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_LAYER_NORM = Operator(Kind.MIXING, "layer_norm", _layer_norm, yields=_normalised, aligned=True)
_NORMALISING = Operator(Kind.MIXING, "softmax", _same, yields=_along_axis, aligned=True)
_REDUCE = Operator(
    Kind.REDUCING, "pooling", _reduce, flop=_reduce_flop, refuses=_reduce_refuses, aligned=True
)
REDUCING = tuple(
    [
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceSum",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ArgMax",
        "ArgMin",
    ]
)
_GLOBAL_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")

MIXING = {
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax", "LpNormalization"], _NORMALISING),
    **dict.fromkeys((*REDUCING, *_GLOBAL_POOLS), _REDUCE),
    "LRN": Operator(Kind.MIXING, "normalisation", _same, yields=whole_channels),
    **dict.fromkeys(LAYER_NORMS, _LAYER_NORM),
    "MatMul": _PRODUCT,
    "Gemm": Operator(Kind.MIXING, "fully_connected", _gemm, flop=gemm_flop, heavy=True),
}
