"""Deformable attention: what a GridSample reads anywhere in is divided by heads, not by tokens.

Every head samples its own channels of the values, at places that nothing tells in advance. With the
values divided by tokens, each device needs all of them, in every layer. But they are products of
the same tokens with weights: a device that has all tokens once computes the channels of its heads
for every layer, and no values travel.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import onnx

from models.shapes import TensorInfo

# What lies between the product and the sampling: none of it mixes heads.
_BETWEEN = frozenset({"Add", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def head_values(
    nodes: Sequence[onnx.NodeProto], tensors: Mapping[str, TensorInfo], constants: Container[str]
) -> frozenset[str]:
    """Products with weights whose columns are the channels of several heads that are sampled."""
    makers = {name: node for node in nodes for name in node.output}
    found = set()
    for node in nodes:
        if node.op_type != "GridSample" or tensors[node.input[0]].shape[0] < 2:
            continue
        maker = makers.get(node.input[0])
        while maker is not None and maker.op_type in _BETWEEN:
            read = [name for name in maker.input if name and name not in constants]
            maker = makers.get(read[0]) if len(read) == 1 else None
        if maker is not None and maker.op_type == "MatMul" and maker.input[1] in constants:
            found.add(maker.output[0])
    return frozenset(found)


def together(nodes: Sequence[onnx.NodeProto], products: Container[str]) -> list[onnx.NodeProto]:
    """The nodes with all these products of a tensor behind the first of them: one block computes
    them, and its devices get the tensor once.
    """
    alike: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        if node.output and node.output[0] in products:
            alike.setdefault(node.input[0], []).append(node)
    ordered: list[onnx.NodeProto] = []
    for node in nodes:
        if node.output and node.output[0] in products:
            ordered += alike.pop(node.input[0], ())
        else:
            ordered.append(node)
    return ordered
