"""The work of heavy operators that run whole: FLOPs, 2 per multiply-add as those of all others, and
whether their steps wait for each other.
"""

import math
from collections.abc import Callable, Mapping

from models.graph.graph import Graph, Node
from models.operators.tail import BODY

_RUNTIME = "com.microsoft"
_RECURRENT = ("LSTM", "GRU", "RNN", f"{_RUNTIME}.DynamicQuantizeLSTM")
_REPEATING = frozenset({"Loop", "Scan", *_RECURRENT})
_MULTIPLYING = ("Conv", "Gemm", "MatMul")


def _recurrent(graph: Graph, node: Node) -> int:
    """Every step multiplies by the weights and by those of the recurrence; all gates and
    directions are in them.
    """
    steps, *weights = (graph.shape(name) for name in node.inputs[:3])
    return 2 * math.prod(steps[:2]) * sum(map(math.prod, weights))


def _product(graph: Graph, node: Node) -> int:
    summed = graph.shape(node.inputs[0])[-2 if node.int("transA", 0) else -1]
    return 2 * summed * math.prod(graph.shape(node.outputs[0]))


def _packed_product(graph: Graph, node: Node) -> int:
    """Weights of a few bits, whose shape is that of their bytes."""
    return 2 * node.int("K", 0) * math.prod(graph.shape(node.outputs[0]))


def _windows(place: int) -> Callable[[Graph, Node], int]:
    def flop(graph: Graph, node: Node) -> int:
        taps = math.prod(graph.shape(node.inputs[place])[1:])
        return 2 * taps * math.prod(graph.shape(node.outputs[0]))

    return flop


def _attention(graph: Graph, node: Node) -> int:
    """Queries times keys, and scores times values; without keys, all three are in the first."""
    query = graph.shape(node.inputs[0])
    keys = graph.shape(node.inputs[1])[-2] if len(node.inputs) > 1 and node.inputs[1] else 0
    elements = math.prod(query if keys else graph.shape(node.outputs[0]))
    return 4 * elements * (keys or query[1])


def _projected_attention(graph: Graph, node: Node) -> int:
    """A product that makes queries, keys and values of the tokens, and their attention."""
    tokens, weights = (graph.shape(name) for name in node.inputs[:2])
    made = math.prod(graph.shape(node.outputs[0]))
    return 2 * math.prod(tokens) * weights[-1] + 4 * made * tokens[-2]


def _sum(graph: Graph, node: Node) -> int:
    """Einsum of two tensors or more: a multiply-add for each combination of indices."""
    equation = node.attributes["equation"].decode().replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if len(terms) < 2 or "." in equation:
        return 0
    sizes: dict[str, int] = {}
    for labels, name in zip(terms, node.inputs, strict=True):
        for label, size in zip(labels, graph.shape(name), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return 2 * math.prod(sizes.values())


# Where a formula cannot tell, it yields 0.
WHOLE_FLOP: Mapping[str, Callable[[Graph, Node], int]] = {
    **dict.fromkeys(_RECURRENT, _recurrent),
    "Einsum": _sum,
    "Attention": _attention,
    f"{_RUNTIME}.MultiHeadAttention": _attention,
    **{f"{_RUNTIME}.{op}": _projected_attention for op in ("Attention", "QAttention")},
    **{f"{_RUNTIME}.{op}": _packed_product for op in ("MatMulNBits", "MatMulBnb4", "MatMulFpQ4")},
    **{
        f"{_RUNTIME}.{op}": _product
        for op in (
            *("FusedMatMul", "TransposeMatMul", "FusedGemm", "FusedMatMulActivation", "GemmFloat8"),
            *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulInteger16"),
        )
    },
    "DeformConv": _windows(1),
    "com.microsoft.nchwc.Conv": _windows(1),
    **{f"{_RUNTIME}.{op}": _windows(1) for op in ("FusedConv", "NhwcFusedConv", "NhwcConv")},
    f"{_RUNTIME}.QLinearConv": _windows(3),
}


def is_sequential(node: Node) -> bool:
    """Whether it keeps one core busy: its steps are small and wait for each other, as those of a
    recurrent layer or a loop, or of a tail with such a node and no products beside it.
    """
    body = node.attributes.get(BODY)
    if node.op in _REPEATING or body is None:
        return node.op in _REPEATING
    ops = [inner.op_type for inner in body.node]
    multiplies = any(part in op for part in _MULTIPLYING for op in ops)
    return not multiplies and not _REPEATING.isdisjoint(ops)
