"""Separates what cannot be planned: nodes whose shapes depend on values, and all that follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from models.graph.shapes import TensorInfo, is_undeclared
from models.graph.soundness import is_numeric, outer_names, reads
from models.operators.arrange import DOMAIN
from models.operators.tail import BODY, OP
from protos.errors import BadRequest

# Elements that are not worth a task: SSD makes a list of 3,234 for each of 90 classes.
_SMALL = 1 << 14
# Their outputs' shapes depend on values by definition.
VALUE_SHAPED = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_MULTIPLIES = ("Conv", "Gemm", "MatMul")
# In place of a shape that is known only once its tensor is computed.
_ONE = (1,)


@dataclass(frozen=True, slots=True)
class Parted:
    """A network's nodes in two parts: those that are planned, and the node of the tail, if there is
    one, with the outputs that it makes.
    """

    planned: list[NodeProto]
    tail: NodeProto | None
    made: Mapping[str, TensorInfo]

    @property
    def nodes(self) -> list[NodeProto]:
        """All of them, the tail last."""
        return self.planned if self.tail is None else [*self.planned, self.tail]


def part(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, object],
) -> Parted:
    """Puts nodes in topological order into the tail if the shape of an output is not in `tensors`,
    if a graph inside them reads tensors from outside of it, or if they read from the tail; and such
    as make something small for the tail alone.

    Raises:
        BadRequest: an output of the tail is not a tensor of numbers.
    """
    outputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    made: set[str] = set()
    behind: list[bool] = []
    begin: NodeProto | None = None
    for node in nodes:
        unknown = any(name and name not in tensors for name in node.output)
        behind.append(unknown or any(outer_names(node)) or not made.isdisjoint(reads(node)))
        made.update(name for name in node.output if name and behind[-1])
        begin = begin or (node if behind[-1] else None)
    if begin is None:
        return Parted([*nodes], None, {})
    ahead = set(outputs)  # what is read before the tail, or must be made there
    for k in reversed(range(len(nodes))):
        size = sum(math.prod(tensors[n].shape) for n in nodes[k].output if n in tensors)
        light = size <= _SMALL and not any(op in nodes[k].op_type for op in _MULTIPLIES)
        if not behind[k] and light and ahead.isdisjoint(nodes[k].output):
            behind[k] = True
        if not behind[k]:
            ahead.update(reads(nodes[k]))
    body = [node for node, late in zip(nodes, behind, strict=True) if late]
    planned = [node for node, late in zip(nodes, behind, strict=True) if not late]
    made = {name for node in body for name in node.output if name}
    read = dict.fromkeys(name for node in body for name in reads(node) if name not in made)
    ordered = sorted(read, key=lambda name: name in constants)
    for name in made.intersection(outputs):
        if not is_numeric(outputs[name]):
            raise BadRequest(
                cause=f"the output {name!r} is not a tensor of numbers",
                cure="Export the model without that output.",
            )
    found = {
        name: TensorInfo(_ONE, kind, is_dynamic=True)
        for name, kind in outputs.items()
        if name in made
    }
    name = begin.name or begin.op_type
    why = _reason(begin, tensors)
    tail = helper.make_node(OP, ordered, list(found), name, why, domain=DOMAIN)
    given = [ValueInfoProto(name=name) for name in ordered]
    inner = GraphProto(name=BODY, input=given, node=body)
    tail.attribute.append(helper.make_attribute(BODY, inner))
    return Parted(planned, tail, found)


def _reason(node: NodeProto, tensors: Mapping[str, TensorInfo]) -> str:
    """Why the tail begins with this node."""
    if all(name in tensors for name in node.output if name):
        return f"graphs inside this {node.op_type} read tensors from outside of it"
    if is_undeclared(node):
        return f"neither ONNX nor onnxruntime says of what shape the outputs of {node.op_type} are"
    return f"from this {node.op_type} on shapes depend on values"
