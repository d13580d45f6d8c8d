"""Whether an ONNX graph is sound: every name is defined exactly once, before it is read.

ONNX's own inference and onnxruntime answer a damaged graph with anything from a vague sentence to a
crash, so errors are looked for here first.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
    helper,
)

from protos.errors import BadRequest

# The newest opset whose definitions the operator table and the rewritten operators follow.
_DECLARED = 24
_AGAIN = "Export or download the model again."
_ADDED = re.compile("__(?=[a-z])")


def sound_nodes(graph: GraphProto) -> list[NodeProto]:
    """The graph's nodes in topological order.

    Raises:
        BadRequest: a name that is undefined or defined twice, a cycle, an input that is not a
            numeric tensor.
    """
    if graph.sparse_initializer:
        raise BadRequest(
            cause="the model has sparse initialisers", cure="Export it with dense weights."
        )
    given = [tensor.name for tensor in graph.initializer]
    stored = set(given)
    # Before IR version 4 every initialiser was an input too.
    given += [value.name for value in graph.input if value.name not in stored]
    for value in graph.input:
        _require_tensor(value)
    _require_once((*given, *(name for node in graph.node for name in node.output if name)))
    known = {*given, *(name for node in graph.node for name in node.output), ""}
    for node in graph.node:
        _require_known(node, known)
    for output in graph.output:
        if output.name not in known:
            raise BadRequest(
                cause=f"nothing in the model makes its output {output.name!r}", cure=_AGAIN
            )
    return _ordered(graph.node, set(given))


def require_schema(node: NodeProto, opset: int) -> None:
    """Refuses a node that ONNX's own declaration of its operator does not allow. Operators unknown
    to ONNX are left to onnxruntime.

    Raises:
        BadRequest: too few or too many inputs or outputs, or an attribute of another type.
    """
    for attribute in node.attribute:
        if attribute.type == AttributeProto.UNDEFINED or attribute.ref_attr_name:
            raise _misuse(node, f"attribute {attribute.name!r} has no value")
    if node.domain not in ("", "ai.onnx"):
        return
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return
    given = [attribute.name for attribute in node.attribute]
    for attribute in node.attribute:
        known = schema.attributes.get(attribute.name)
        if known is not None and int(known.type) != attribute.type:  # type: ignore[call-overload]
            raise _misuse(node, f"attribute {attribute.name!r} is of another type")
    missing = [
        k for k, attribute in schema.attributes.items() if attribute.required and k not in given
    ]
    if missing:
        raise _misuse(node, f"attribute {missing[0]!r} is missing")
    for what, names, least, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            raise _misuse(node, f"it has {len(names)} {what}")


def is_newer(node: NodeProto) -> bool:
    """Whether a node of ONNX's has attributes or inputs that its operator had not in any opset
    whose operators are declared here.
    """
    attributes, most = _known(node.op_type)
    if node.domain not in ("", "ai.onnx") or (not attributes and not most):
        return False
    return len(node.input) > most or not attributes.issuperset(
        attribute.name for attribute in node.attribute
    )


@cache
def _known(op: str) -> tuple[frozenset[str], int]:
    """The attributes of an operator, and how many inputs it has at most; none if it is unknown."""
    schemas = [
        schema for schema in _every_schema().get(op, ()) if schema.since_version <= _DECLARED
    ]
    attributes = frozenset(name for schema in schemas for name in schema.attributes)
    return attributes, max((schema.max_input for schema in schemas), default=0)


@cache
def _every_schema() -> Mapping[str, Sequence[defs.OpSchema]]:
    """ONNX's own operators in all of their versions."""
    found: dict[str, list[defs.OpSchema]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, []).append(schema)
    return found


def _misuse(node: NodeProto, what: str) -> BadRequest:
    return BadRequest(
        cause=f"node {_called(node)} does not follow its operator's declaration: {what}",
        cure=_AGAIN,
    )


def _require_tensor(value: ValueInfoProto) -> None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise BadRequest(
            cause=f"input {value.name!r} is not a tensor of known rank",
            cure="Export the model with tensors of known rank as inputs.",
        )
    if not is_numeric(kind.elem_type):
        raise BadRequest(
            cause=f"input {value.name!r} is of ONNX type {kind.elem_type}, no number of numpy's",
            cure="Export the model with numeric inputs.",
        )


def is_numeric(data_type: int) -> bool:
    """Whether an ONNX element type is one that numpy computes with."""
    try:
        kind = helper.tensor_dtype_to_np_dtype(data_type).kind
    except KeyError:
        return False
    return data_type != TensorProto.UNDEFINED and kind in "fiub"


def _require_once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(cause=f"the tensor {name!r} is made twice", cure=_AGAIN)
        seen.add(name)


def apart(model: ModelProto) -> tuple[ModelProto, dict[str, str]]:
    """The model, in which no tensor has a name that imbrex may give to one of its own: that of
    another tensor, two underscores and a word. Renames what is inside it, and says what.

    Raises:
        BadRequest: both are inputs or outputs of the model, whose names must stay.
    """
    graph = model.graph
    made = {name for node in graph.node for name in node.output if name}
    public = {value.name for value in (*graph.input, *graph.output)}
    known = made | public | {tensor.name for tensor in graph.initializer}
    names: dict[str, str] = {}
    for name in sorted(known):
        bases = (name[: mark.start()] for mark in _ADDED.finditer(name))
        base = next((base for base in bases if base in known), None)
        if base is None or base in names:
            continue
        inner = name if name not in public else base
        if inner in public:
            raise BadRequest(
                cause=f"the tensor {name!r} has a name that imbrex gives to a step of {base!r}",
                cure="Export the model with other names of its inputs and outputs.",
            )
        plain = inner.replace("__", "_")
        while plain in known:
            plain += "_"
        known.add(plain)
        names[inner] = plain
    if not names:
        return model, names
    renamed = ModelProto()
    renamed.CopyFrom(model)
    for tensor in renamed.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in renamed.graph.value_info:
        value.name = names.get(value.name, value.name)
    for node in renamed.graph.node:
        rename(node, names)
    return renamed, names


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Renames tensors in a node and in the graphs inside it: what these make may have the names of
    what is around them.
    """
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for inner in nested(node):
        for within in inner.node:
            rename(within, names)
        for output in inner.output:
            output.name = names.get(output.name, output.name)


def _require_known(node: NodeProto, known: set[str]) -> None:
    for name in reads(node):
        if name not in known:
            raise BadRequest(
                cause=f"node {_called(node)} reads {name!r}, which is not an input, initialiser "
                "or output of another node",
                cure=_AGAIN,
            )
    if not any(node.output):
        raise BadRequest(cause=f"node {_called(node)} has no outputs", cure=_AGAIN)


def reads(node: NodeProto) -> list[str]:
    """The tensors that a node reads, by its inputs or in the graphs inside it."""
    return [*(name for name in node.input if name), *outer_names(node)]


def without_unread(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """Those of the nodes, which are in topological order, that the outputs depend on."""
    needed = set(outputs)
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            needed.update(reads(node))
            kept.append(node)
    return kept[::-1]


def outer_names(node: NodeProto) -> Iterator[str]:
    """The tensors that graphs inside a node read from outside of it."""
    for inner in nested(node):
        yield from _free_names(inner)


def nested(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node: branches of an If, the body of a Loop."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _free_names(graph: GraphProto) -> Iterator[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output} | {""}
    for node in graph.node:
        yield from (name for name in node.input if name not in own)
        yield from (name for name in outer_names(node) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def _ordered(nodes: Sequence[NodeProto], given: set[str]) -> list[NodeProto]:
    """Kahn's algorithm, which keeps an order that is already correct."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    readers: list[list[int]] = [[] for _ in nodes]
    waiting = []
    for index, node in enumerate(nodes):
        makers = {maker[name] for name in reads(node) if name not in given}
        waiting.append(len(makers))
        for needed in makers:
            readers[needed].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = next(node for node, count in zip(nodes, waiting, strict=True) if count)
        raise BadRequest(
            cause=f"the graph is cyclic: node {_called(stuck)} waits for its own result",
            cure=_AGAIN,
        )
    return order


def _called(node: NodeProto) -> str:
    return f"{node.name or node.output[0]!r} ({node.op_type})" if node.output else node.op_type
