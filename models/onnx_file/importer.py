"""From ONNX to a graph: checked, batch bound to 1, shapes inferred, constants folded, automatic
padding made explicit.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.graph.graph import OPSETS, Graph, Node, results_of
from models.graph.runtime_shapes import NodeShapes, confirmed_shapes, told_shapes
from models.graph.shapes import TensorInfo, infer, info_of, light_model, static_info
from models.graph.sizes import bind
from models.graph.soundness import apart, is_numeric, require_schema, sound_nodes
from models.onnx_file.stored import Allocate, StoredModel, filled, in_memory
from models.operators import MOST_LINES_ASKED, lines_asked, refusal
from models.operators.arrange import DOMAIN
from models.operators.fitting import fitting, require_fitting
from models.rewrite.arrangements import arranged
from models.rewrite.detector_ends import ending
from models.rewrite.draft import Draft, op_of
from models.rewrite.fold import fold_constants
from models.rewrite.narrow import dequantised_shapes
from models.rewrite.rolls import rolled
from models.rewrite.rows import row_axes
from models.rewrite.rules import simplified
from models.rewrite.sampled import by_heads
from models.rewrite.sink import joined_last
from models.rewrite.unplannable import VALUE_SHAPED, part
from models.tensors.arrays import Arrays
from models.tensors.windows import (
    Window,
    explicit_windows,
    has_windows,
    transposed_windows,
    weights_position,
)
from protos.errors import BadRequest

# What is folded makes shapes known, first those behind it, then all others, until nothing changes.
# Three rounds suffice for every exporter seen; in files made to take more, so many nodes are
# looked at.
_MOST_VISITS = 200_000
# How often onnxruntime loads all of a model for its shapes: each time after the first, what it said
# before has made more of them known, and that is seldom.
_MOST_ASKED = 8


def load_graph(
    model: ModelProto,
    name: str | None = None,
    weights: Arrays = MappingProxyType({}),
    *,
    ends: bool = False,
) -> Graph:
    """The graph of an ONNX model; `weights` holds values of initialisers that it lacks. With
    `ends`, an ending that picks entries of a list is set apart.

    Raises:
        BadRequest: an unknown opset, a shape that stays unknown, an invalid graph.
    """
    opset = _opset(model)
    model, names = apart(model)
    if names:
        weights = {names.get(name, name): array for name, array in weights.items()}
    nodes: Sequence[NodeProto] = sound_nodes(model.graph)
    for node in nodes:
        require_schema(node, opset)
    nodes = [_with_first_output(node) for node in nodes]
    constants = {
        tensor.name: weights[tensor.name] if tensor.name in weights else _array(tensor)
        for tensor in model.graph.initializer
    }
    outputs = tuple(value.name for value in model.graph.output)
    for output in outputs:
        if output in constants:  # somebody has to compute it
            constants[label := f"{output}__constant"] = constants.pop(output)
            nodes.append(helper.make_node("Identity", [label], [output], name=output))
    # With an open batch size bound to 1.
    copied = GraphProto(input=[value for value in model.graph.input if value.name not in constants])
    bind(copied.input)
    inputs = list(copied.input)
    nodes, constants, tensors, told, opsets = _settled(model, weights, nodes, constants, inputs)
    ended = None
    if ends:
        nodes, ended = ending(model, nodes, tensors, constants)
    parted = part(model, nodes, tensors, constants)
    tensors |= parted.made
    ahead = outputs if ended is None else ended.ahead(outputs)

    def inferred() -> dict[str, TensorInfo]:
        planned = [node for node in nodes if node.domain != DOMAIN]
        return infer(light_model(model, planned, inputs, constants), constants, told)

    nodes, constants, gathered = simplified(parted.nodes, tensors, constants, ahead, opset)
    told |= dequantised_shapes(nodes, tensors)
    tensors |= inferred()
    nodes, joined, parts = joined_last(nodes, tensors, constants, frozenset(ahead), opset, gathered)
    told |= parts
    tensors |= inferred()
    nodes, by_columns = by_heads(nodes, tensors, constants)
    rows = row_axes(nodes, tensors, frozenset(constants), gathered, by_columns)
    results = results_of(ahead, joined)
    nodes = rolled(nodes, Draft(opset, tensors, constants, frozenset(results)), tensors, rows)
    nodes = arranged(nodes, tensors, results, rows)
    for key, array in constants.items():
        tensors[key] = info_of(array)
    graph = Graph(
        name=name or model.graph.name or "network",
        opset=opset,
        opset_imports=tuple((entry.domain, entry.version) for entry in opsets),
        inputs=tuple(value.name for value in inputs),
        outputs=outputs,
        nodes=tuple(_node(proto, index, tensors) for index, proto in enumerate(nodes)),
        tensors=tensors,
        constants=constants,
        written=frozenset(node.op_type for node in model.graph.node),
        rows=rows,
        joined=joined,
        ending=ended,
    )
    _require_shapes(graph)
    _require_computed(graph)
    graph = replace(graph, nodes=tuple(_with_refusals(graph)))
    for checked in graph.nodes:
        require_fitting(graph, checked)
    return graph


class _Settled(NamedTuple):
    """Nodes, constants and shapes once nothing more is known of them; `told`: the shapes among them
    that ONNX does not infer.
    """

    nodes: list[NodeProto]
    constants: dict[str, np.ndarray]
    tensors: dict[str, TensorInfo]
    told: dict[str, TensorInfo]
    opsets: Sequence[onnx.OperatorSetIdProto]


def _settled(
    model: ModelProto,
    weights: Arrays,
    nodes: Sequence[NodeProto],
    constants: Arrays,
    inputs: Sequence[onnx.ValueInfoProto],
) -> _Settled:
    """Infers shapes and folds what they make constant, in turn, until nothing changes."""
    stored = {*constants, *(node.output[0] for node in nodes if node.op_type == "Constant")}
    told: dict[str, TensorInfo] = {}
    light = light_model(model, nodes, inputs, constants)
    runtime = NodeShapes(light.opset_import)
    visits, left = 0, _MOST_ASKED
    while True:
        visits += len(nodes)
        tensors = infer(light, constants, told, asks=left > 0)
        before = _made(nodes)
        grown = sum(array.nbytes for name, array in constants.items() if name not in stored)
        nodes, constants, found = fold_constants(light, tensors, constants, runtime, grown)
        unknown = [made for made in _made(nodes) if made not in tensors]
        stuck = _made(nodes) == before and found.keys() <= told.keys()
        if not unknown or (stuck and not left) or visits >= _MOST_VISITS:
            return _Settled(nodes, constants, tensors, told, light.opset_import)
        if stuck:
            whole = filled(model, weights)
            found = told_shapes(whole, inputs, tensors, unknown)
            left = left - 1 if found.keys() - told.keys() else 0
            if not left and (declared := _declared(model, nodes, unknown)):
                found = confirmed_shapes(whole, inputs, declared)
        told |= found
        light = light_model(model, nodes, inputs, constants)


def _declared(
    model: ModelProto, nodes: Sequence[NodeProto], unknown: Collection[str]
) -> dict[str, TensorInfo]:
    """What the file says of tensors whose shapes cannot be inferred, but for those that depend on
    values whatever the file says.
    """
    free = {name for node in nodes if node.op_type in VALUE_SHAPED for name in node.output}
    values = (*model.graph.value_info, *model.graph.output)
    infos = {value.name: static_info(value) for value in values if value.name in unknown}
    return {name: info for name, info in infos.items() if info is not None and name not in free}


def graph_of(
    stored: StoredModel, name: str | None = None, room: Allocate = in_memory, *, ends: bool = False
) -> Graph:
    """The graph of a stored model, its weights in `room`.

    Raises:
        BadRequest: as `load_graph`, or the weights can no longer be read.
    """
    return load_graph(stored.proto, name, stored.read(room), ends=ends)


def _opset(model: ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            if entry.version not in OPSETS:
                raise BadRequest(
                    cause=f"the model uses ONNX opset {entry.version}",
                    cure=f"Convert it to opset {OPSETS.start} to {OPSETS.stop - 1}, for example "
                    "with onnx.version_converter.",
                )
            return int(entry.version)
    raise BadRequest(
        cause="the model names no ONNX opset", cure="Export it again with a current exporter."
    )


def _array(tensor: TensorProto) -> np.ndarray:
    if not is_numeric(tensor.data_type):
        raise BadRequest(
            cause=f"the constant {tensor.name!r} is of ONNX type {tensor.data_type}, no number of "
            "numpy's",
            cure="Export the model with numeric weights.",
        )
    try:
        if any(size < 0 for size in tensor.dims):
            raise ValueError(f"its shape is {list(tensor.dims)}")
        return numpy_helper.to_array(tensor)
    except Exception as error:  # of as many types as there are ways to damage a tensor
        raise BadRequest(
            cause=f"the constant {tensor.name!r} is damaged ({error})",
            cure="Export or download the model again.",
        ) from error


def _with_first_output(node: NodeProto) -> NodeProto:
    """The node with a name for its first output, which a recurrent layer may leave out: from it
    follows how a node is divided.
    """
    if node.output[0]:
        return node
    named = NodeProto()
    named.CopyFrom(node)
    named.output[0] = f"{next(filter(None, node.output))}__first"
    return named


def _made(nodes: Sequence[NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


def _node(proto: NodeProto, index: int, tensors: Mapping[str, TensorInfo]) -> Node:
    name = proto.name or f"{proto.op_type}_{index}"
    op = op_of(proto)
    with fitting(name, op):
        attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
        windows: tuple[Window, ...] = ()
        if has_windows(op) and proto.input[0] in tensors and proto.output[0] in tensors:
            kernel = attributes.get("kernel_shape")
            kernel = kernel or tensors[proto.input[weights_position(op)]].shape[2:]
            sizes, outputs = tensors[proto.input[0]].shape[2:], tensors[proto.output[0]].shape[2:]
            explicit = transposed_windows if op == "ConvTranspose" else explicit_windows
            windows = explicit(attributes, kernel, sizes, outputs)
    return Node(
        name=name,
        op=op,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=attributes,
        proto=proto,
        windows=windows,
    )


def _with_refusals(graph: Graph) -> Iterator[Node]:
    left = MOST_LINES_ASKED
    for node in graph.nodes:
        with fitting(node.name, node.op):
            refused = replace(node, refusal=refusal(graph, node))
            left -= lines_asked(graph, refused)
        if left < 0 and not refused.refusal and lines_asked(graph, refused):
            yield replace(node, refusal=f"it moves more than {MOST_LINES_ASKED} rows and columns")
        else:
            yield refused


def _require_shapes(graph: Graph) -> None:
    for node in graph.nodes:
        for name in node.outputs:
            if name and name not in graph.tensors:
                raise BadRequest(
                    cause=f"the shape of {name!r} (made by {node.op} {node.name!r}) is not known",
                    cure="Export the model with fixed shapes, or simplify it first.",
                )
    for name in (*graph.inputs, *graph.producer):
        if 0 in graph.tensors[name].shape:
            raise BadRequest(
                cause=f"the tensor {name!r} has no elements: its shape is "
                f"{list(graph.tensors[name].shape)}",
                cure="Export the model for larger inputs.",
            )


def _require_computed(graph: Graph) -> None:
    for name in graph.results:
        if name not in graph.producer:
            raise BadRequest(
                cause=f"the output {name!r} is an input of the model",
                cure="Remove it from the model's outputs.",
            )
    reached = set(graph.inputs)
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
    if not reached.intersection(graph.results):
        raise BadRequest(
            cause="no output depends on an input: the answer is always the same",
            cure="Export the model with its input as a variable, not as a constant.",
        )
