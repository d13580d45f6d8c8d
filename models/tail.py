"""Separates what cannot be planned: nodes whose shapes depend on values, and all that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from models.operators.arrange import DOMAIN
from models.operators.tail import BODY, OP
from models.shapes import TensorInfo
from models.soundness import is_numeric, outer_names, reads
from protos.errors import BadRequest

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
    if a graph inside them reads tensors from outside of it, or if they read from the tail.

    Raises:
        BadRequest: an output of the tail is no tensor of numbers.
    """
    planned: list[NodeProto] = []
    body: list[NodeProto] = []
    made: set[str] = set()
    for node in nodes:
        unknown = any(name and name not in tensors for name in node.output)
        if unknown or any(outer_names(node)) or not made.isdisjoint(reads(node)):
            body.append(node)
            made.update(name for name in node.output if name)
        else:
            planned.append(node)
    if not body:
        return Parted(planned, None, {})
    read = dict.fromkeys(name for node in body for name in reads(node) if name not in made)
    ordered = sorted(read, key=lambda name: name in constants)
    outputs = {
        value.name: TensorInfo(_ONE, value.type.tensor_type.elem_type, is_dynamic=True)
        for value in model.graph.output
        if value.name in made
    }
    for name, info in outputs.items():
        if not is_numeric(info.data_type):
            raise BadRequest(
                cause=f"the output {name!r} is no tensor of numbers",
                cure="Export the model without that output.",
            )
    name = body[0].name or body[0].op_type
    tail = helper.make_node(OP, ordered, list(outputs), name=name, domain=DOMAIN)
    given = [ValueInfoProto(name=name) for name in ordered]
    inner = GraphProto(name=BODY, input=given, node=body)
    tail.attribute.append(helper.make_attribute(BODY, inner))
    return Parted(planned, tail, outputs)
