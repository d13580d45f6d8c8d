"""Constant folding: values that depend only on constants and static shapes are computed once."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from models.graph.runtime_shapes import NodeShapes, session
from models.graph.shapes import TensorInfo, infer_node, info_of
from models.graph.soundness import outer_names, reads, rename, require_schema, without_unread
from models.operators.fitting import fitting
from models.operators.pointwise import BROADCASTING
from models.tensors.arrays import Arrays

# Folding must not blow up a model, nor take long: nodes stay that would make it larger by more than
# this, or by more than all of them may, and when so much has been computed.
_GROWN_BYTES = 8 << 20
_GROWN_BYTES_IN_ALL = 64 << 20
_COMPUTED_BYTES = 2 << 30
# The reference evaluator loops over the elements of some operators in Python. Beyond so many,
# onnxruntime computes those whose time follows from their sizes.
_LOOPED_ELEMENTS = 1 << 12
_OPS = (
    "BatchNormalization Concat ConstantOfShape Conv CumSum Einsum Expand Flatten Gather "
    "GatherElements GatherND Gemm LayerNormalization LogSoftmax MatMul Pad QuantizeLinear "
    "ReduceMax ReduceMean ReduceMin ReduceSum Reshape Resize ScatterElements ScatterND Slice "
    "Softmax Split Squeeze Tile Transpose Trilu Unsqueeze"
)
_BOUNDED = BROADCASTING.union(_OPS.split())
# Ten milliseconds.
_MULTIPLIED = 1 << 24
_TRANSPARENT = frozenset({"Identity", "Dropout"})
_NO = np.array(False)


def fold_constants(
    model: ModelProto,
    tensors: Mapping[str, TensorInfo],
    constants: Arrays,
    runtime: NodeShapes,
    grown: int = 0,
) -> tuple[list[NodeProto], dict[str, np.ndarray], dict[str, TensorInfo]]:
    """The remaining nodes, the constants they use, and shapes that only `runtime` knew; `model`'s
    nodes are in topological order. `grown`: bytes folded so far.

    Removes Identity and inference-time Dropout, turns Constant, Shape and what has no elements into
    constants, and evaluates nodes all of whose inputs are constant. An If becomes the branch that
    is taken, where that is known, and CastLike a Cast. Also drops nodes whose outputs are not read.
    Nodes that make an output of the model always stay.
    """
    known, shapes, told = dict(constants), dict(tensors), dict[str, TensorInfo]()
    renamed: dict[str, str] = {}
    empty = {name for name, array in constants.items() if not array.size}
    opsets = list(model.opset_import)
    outputs = {value.name for value in model.graph.output}
    inside = {name for node in model.graph.node for name in outer_names(node)}
    read = {name for node in model.graph.node for name in node.input} | outputs | inside
    kept: list[NodeProto] = []
    budget = _Budget(model.graph.node, outputs, constants, grown)
    left = deque(model.graph.node)
    while left:
        node = NodeProto()
        node.CopyFrom(left.popleft())
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "If" and node.input[0] in known:
            left.extendleft(reversed(taken_branch(node, known[node.input[0]], opsets)))
            continue
        if node.op_type == "CastLike" and (kind := _type_of(node.input[1], shapes, known)):
            node.op_type = "Cast"
            node.attribute.append(helper.make_attribute("to", kind))
            del node.input[1]
        if node.op_type == "Concat" and not empty.issuperset(node.input):
            node.input[:] = [name for name in node.input if name not in empty]
        if not all(name in shapes for name in node.output if name):
            # Sizes that were folded before it may have made them known.
            shapes.update(infer_node(node, shapes, known, opsets))
        if not all(name in shapes for name in node.output if name):
            found = runtime.of(node, shapes, known)
            told |= found
            shapes |= found
        if outputs.intersection(node.output):
            kept.append(node)
        elif (
            _is_transparent(node, known)
            and node.output[0] not in inside
            and not read.intersection(node.output[1:])
        ):
            renamed[node.output[0]] = node.input[0]
            budget.rename(node.output[0], node.input[0])
        elif (
            values := _empty(node, shapes) or _evaluate(node, shapes, known, opsets, budget)
        ) is not None:
            known.update(values)
            empty.update(name for name, value in values.items() if not value.size)
            shapes.update((name, info_of(value)) for name, value in values.items())
            for name in budget.spend(node, values):
                del known[name]
        else:
            kept.append(node)
    alive = without_unread(kept, outputs)
    needed = outputs.union(*map(reads, alive))
    return alive, {k: v for k, v in known.items() if k in needed}, told


def _is_transparent(node: NodeProto, known: Arrays) -> bool:
    """Whether its first output is its first input: a Dropout's, unless it is trained."""
    trained = known.get(node.input[2]) if node.op_type == "Dropout" and node.input[2:] else _NO
    return node.op_type in _TRANSPARENT and trained is not None and not trained.any()


class _Budget:
    """What may still be folded. Constants that nothing reads any more make room."""

    def __init__(
        self, nodes: Iterable[NodeProto], outputs: Iterable[str], constants: Arrays, grown: int
    ) -> None:
        self._left, self._computed = _GROWN_BYTES_IN_ALL - grown, 0
        self._readers = Counter(name for node in nodes for name in reads(node))
        self._readers.update(outputs)
        self._sizes = {name: array.nbytes for name, array in constants.items()}

    def rename(self, name: str, source: str) -> None:
        """What read `name` will read `source`."""
        self._readers[source] += self._readers[name] - 1

    def allows(self, node: NodeProto, size_bytes: int) -> bool:
        """Whether a node may be folded that makes so much."""
        if node.op_type == "Constant":  # its values are in the file
            return True
        grows = size_bytes - sum(self._sizes[name] for name in self._last_read(node))
        most = min(_GROWN_BYTES, self._left)
        return grows <= most and self._computed + size_bytes <= _COMPUTED_BYTES

    def spend(self, node: NodeProto, values: Arrays) -> list[str]:
        """A node was folded: which constants nothing reads any more."""
        sizes = {name: value.nbytes for name, value in values.items()}
        unread = self._last_read(node)
        self._readers.subtract(node.input)
        self._left += sum(self._sizes.pop(name) for name in unread)
        if node.op_type != "Constant":
            self._left -= sum(sizes.values())
            self._computed += sum(sizes.values())
        self._sizes |= sizes
        return unread

    def _last_read(self, node: NodeProto) -> list[str]:
        """The constants that only this node still reads."""
        times = Counter(node.input)
        return [
            name for name in times if name in self._sizes and self._readers[name] == times[name]
        ]


def _type_of(name: str, tensors: Mapping[str, TensorInfo], known: Arrays) -> int:
    """The element type of a tensor; 0 if it is not known."""
    if name in known:
        return info_of(known[name]).data_type
    return tensors[name].data_type if name in tensors else TensorProto.UNDEFINED


def _empty(node: NodeProto, tensors: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    """The node's outputs, if none of them has elements."""
    made = [name for name in node.output if name]
    if not all(name in tensors and 0 in tensors[name].shape for name in made):
        return {}
    return {name: np.empty(tensors[name].shape, tensors[name].dtype) for name in made}


def _evaluate(
    node: NodeProto,
    tensors: Mapping[str, TensorInfo],
    known: Arrays,
    opsets: list[onnx.OperatorSetIdProto],
    budget: _Budget,
) -> dict[str, np.ndarray] | None:
    """The node's outputs, if they are constant and small; None if the node must stay."""
    if node.op_type == "Shape" and node.input[0] in tensors:
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        shape = np.array(tensors[node.input[0]].shape, dtype=np.int64)
        return {node.output[0]: shape[ends.get("start") : ends.get("end")]}
    made = [name for name in node.output if name]
    feeds = {name: known[name] for name in node.input if name in known}
    if not _foldable(node) or len(feeds) < len({name for name in node.input if name}):
        return None
    if not all(name in tensors for name in made):
        return None  # of unknown, possibly unbounded size
    size = sum(math.prod(tensors[name].shape) for name in made)
    size_bytes = sum(math.prod(tensors[name].shape) * tensors[name].itemsize for name in made)
    large = size > _LOOPED_ELEMENTS and node.op_type != "Constant"
    if (
        not budget.allows(node, size_bytes)
        or (large and node.op_type not in _BOUNDED)
        or _multiplied(node, feeds, size) > _MULTIPLIED
    ):
        return None
    model = helper.make_model(
        helper.make_graph(
            [node],
            "fold",
            [
                helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for k, v in feeds.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in made],
        ),
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets, ignore_unknown=True),
    )
    try:
        runner = session(model) if large else ReferenceEvaluator(model)
        results: Any = runner.run(None, feeds)
    except Exception:  # the reference lacks an operator or a type: the node simply stays
        return None
    values = {name: np.asarray(value) for name, value in zip(made, results, strict=True)}
    return values if all(value.dtype.kind in "fiub" for value in values.values()) else None


def _multiplied(node: NodeProto, feeds: Arrays, size: int) -> int:
    """At most how many multiplications a product takes."""
    match node.op_type:
        case "MatMul":
            return size * int(feeds[node.input[0]].shape[-1])
        case "Gemm":
            return size * int(max(feeds[node.input[0]].shape))
        case "Conv":
            return size * int(math.prod(feeds[node.input[1]].shape[1:]))
        case "Einsum":
            return math.prod(int(array.size) for array in feeds.values())
    return 0


def _foldable(node: NodeProto) -> bool:
    """Whether the node is deterministic and takes bounded time. Dequantised weights are not folded:
    quantised ones have special kernels and a quarter of the bytes.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type.startswith("Random"):
        return False
    if node.op_type == "DequantizeLinear":
        return False
    return not any(attribute.HasField("g") for attribute in node.attribute)


def taken_branch(
    node: NodeProto, condition: np.ndarray, opsets: Iterable[onnx.OperatorSetIdProto]
) -> list[NodeProto]:
    """The nodes of the branch, which make the outputs of the If. What else they make has names that
    begin with its first output: both branches may use the same.

    Raises:
        BadRequest: the branch does not follow ONNX's declarations.
    """
    (opset,) = (opset.version for opset in opsets if opset.domain in ("", "ai.onnx"))
    wanted = "then_branch" if condition.all() else "else_branch"
    (branch,) = (attribute.g for attribute in node.attribute if attribute.name == wanted)
    for inner in branch.node:
        require_schema(inner, opset)
    with fitting(node.name, node.op_type):
        return _nodes(node, branch)


def _nodes(node: NodeProto, branch: GraphProto) -> list[NodeProto]:
    own = [*(tensor.name for tensor in branch.initializer)]
    own += [name for inner in branch.node for name in inner.output if name]
    made = next(filter(None, node.output))
    renamed = {name: f"{made}__branch_{name}" for name in own}
    nodes = [
        helper.make_node("Constant", [], [renamed[tensor.name]], value=tensor)
        for tensor in branch.initializer
    ]
    for inner in branch.node:
        copied = NodeProto()
        copied.CopyFrom(inner)
        rename(copied, renamed)
        nodes.append(copied)
    for output, result in zip(node.output, branch.output, strict=True):
        if output:
            source = renamed.get(result.name, result.name)
            nodes.append(helper.make_node("Identity", [source], [output], name=node.name))
    return nodes
