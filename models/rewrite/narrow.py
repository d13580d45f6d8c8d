"""Reorders quantised networks so that tensors between layers have eight bits: they are quantised as
soon as they are made, and dequantised right before the one node that reads them.
"""

from collections.abc import Iterator, Mapping, Sequence

from onnx import NodeProto

from models.graph.shapes import TensorInfo

_NARROWING, _WIDENING = "QuantizeLinear", "DequantizeLinear"


def narrow_between(nodes: Sequence[NodeProto], outputs: frozenset[str]) -> list[NodeProto]:
    """The nodes in that order; a tensor that several nodes read is dequantised for each."""
    wide = {node.output[0]: node for node in nodes if node.op_type == _WIDENING}
    if not wide:
        return list(nodes)
    made = {name for node in nodes if node.op_type != _WIDENING for name in node.output}
    early: dict[str, list[NodeProto]] = {}
    late: list[NodeProto] = []
    for node in nodes:
        if node.op_type == _NARROWING and [n for n in node.input if n in made] == [node.input[0]]:
            early.setdefault(node.input[0], []).append(node)
        elif node.op_type != _WIDENING or node.output[0] in outputs:
            late.append(node)
    placed: list[NodeProto] = []
    copies = dict.fromkeys(outputs & wide.keys(), 1)
    for node in late:
        if node.op_type != _WIDENING:
            placed += _dequantised(node, wide, copies)
        placed.append(node)
        for name in node.output:
            placed += early.get(name, [])
    return placed


def dequantised_shapes(
    nodes: Sequence[NodeProto], tensors: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """The outputs of onnxruntime's own operators: the input's shape, the scale's type. ONNX infers
    only those of its own operators.
    """
    return {
        node.output[0]: TensorInfo(tensors[node.input[0]].shape, tensors[node.input[1]].data_type)
        for node in nodes
        if node.op_type == _WIDENING and node.input[0] in tensors and node.input[1] in tensors
    }


def _dequantised(
    node: NodeProto, wide: dict[str, NodeProto], copies: dict[str, int]
) -> Iterator[NodeProto]:
    """Dequantised inputs, separate for each node."""
    for place, name in enumerate(node.input):
        if name not in wide:
            continue
        number = copies[name] = copies.get(name, 0) + 1
        own = NodeProto()
        own.CopyFrom(wide[name])
        if number > 1:
            own.name = own.output[0] = node.input[place] = f"{name}__wide{number}"
        yield own
