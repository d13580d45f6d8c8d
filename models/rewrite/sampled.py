"""Deformable attention: what a GridSample reads anywhere in is divided by heads, not by tokens.

Every head samples its own channels of the values, at places that nothing tells in advance. With the
values divided by tokens, each device needs all of them, in every layer. But they are products of
the same tokens with weights: a device that has all tokens once computes the channels of its heads
for every layer, and no values travel.
"""

from collections.abc import Container, Mapping, Sequence

from onnx import NodeProto

from models.graph.shapes import TensorInfo

# What lies between the product and the sampling: none of it mixes heads.
_BETWEEN = frozenset(
    {*("Add", "Flatten", "Identity", "Reshape"), *("Slice", "Squeeze", "Transpose", "Unsqueeze")}
)


def by_heads(
    nodes: Sequence[NodeProto], tensors: Mapping[str, TensorInfo], constants: Container[str]
) -> tuple[list[NodeProto], frozenset[str]]:
    """The nodes with the values of the same tokens side by side, and the products whose columns are
    the channels of several heads that are sampled. One block computes all these values, and its
    devices get the tokens once.
    """
    tokens, products = _values(nodes, tensors, constants)
    return _together(nodes, tokens), products


def _values(
    nodes: Sequence[NodeProto], tensors: Mapping[str, TensorInfo], constants: Container[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """The tokens from which each value is made, from the product on to what is sampled; and the
    products.
    """
    makers = {name: node for node in nodes for name in node.output}
    tokens: dict[str, str] = {}
    products: set[str] = set()
    for node in nodes:
        if node.op_type != "GridSample" or tensors[node.input[0]].shape[0] < 2:
            continue
        chain: list[str] = []
        maker = makers.get(node.input[0])
        while maker is not None and maker.op_type in _BETWEEN:
            chain += maker.output
            read = [name for name in maker.input if name and name not in constants]
            maker = makers.get(read[0]) if len(read) == 1 else None
        if maker is not None and maker.op_type == "MatMul" and maker.input[1] in constants:
            products.add(maker.output[0])
            tokens |= dict.fromkeys([maker.output[0], *chain], maker.input[0])
    return tokens, frozenset(products)


def _together(nodes: Sequence[NodeProto], tokens: Mapping[str, str]) -> list[NodeProto]:
    """The nodes with all values of the same tokens where the first of them is made."""
    values: dict[str, list[NodeProto]] = {}
    for node in nodes:
        if node.output and node.output[0] in tokens:
            values.setdefault(tokens[node.output[0]], []).append(node)
    ordered: list[NodeProto] = []
    for node in nodes:
        if node.output and node.output[0] in tokens:
            ordered += values.pop(tokens[node.output[0]], ())
        else:
            ordered.append(node)
    return ordered
