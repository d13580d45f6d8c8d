"""The branch of an If that is taken, where its condition is known."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper

from models.graph.soundness import rename, require_schema
from models.operators.fitting import fitting


def taken_branch(
    node: onnx.NodeProto, condition: np.ndarray, opsets: Iterable[onnx.OperatorSetIdProto]
) -> list[onnx.NodeProto]:
    """The nodes of the branch, which make the outputs of the If. What else they make has names that
    begin with its first output: both branches may use the same.

    Raises:
        BadRequest: the branch does not follow ONNX's declarations.
    """
    (opset,) = (each.version for each in opsets if each.domain in ("", "ai.onnx"))
    wanted = "then_branch" if condition.all() else "else_branch"
    (branch,) = (each.g for each in node.attribute if each.name == wanted)
    for inner in branch.node:
        require_schema(inner, opset)
    with fitting(node.name, node.op_type):
        return _nodes(node, branch)


def _nodes(node: onnx.NodeProto, branch: onnx.GraphProto) -> list[onnx.NodeProto]:
    own = [*(each.name for each in branch.initializer)]
    own += [name for inner in branch.node for name in inner.output if name]
    made = next(filter(None, node.output))
    renamed = {name: f"{made}__branch_{name}" for name in own}
    nodes = [
        helper.make_node("Constant", [], [renamed[each.name]], value=each)
        for each in branch.initializer
    ]
    for inner in branch.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(inner)
        rename(copied, renamed)
        nodes.append(copied)
    for output, result in zip(node.output, branch.output, strict=True):
        if output:
            source = renamed.get(result.name, result.name)
            nodes.append(helper.make_node("Identity", [source], [output], name=node.name))
    return nodes
