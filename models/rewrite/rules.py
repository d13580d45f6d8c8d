"""The rules: one per operator that is replaced by simpler ones."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import NodeProto, helper

from models.graph.graph import ROWS
from models.graph.shapes import TensorInfo
from models.graph.soundness import is_newer, reads
from models.operators import REDUCING, TABLE
from models.operators.fitting import fitting
from models.rewrite.draft import Draft, attributes_of, op_of
from models.rewrite.fused_nodes import RULES as FUSED
from models.rewrite.fused_nodes import integer_products
from models.rewrite.narrow import narrow_between
from models.rewrite.normalise import RULES as NORMALISATIONS
from models.rewrite.products import attention, einsum, multi_head, self_attention
from models.rewrite.rows import row_axes
from models.tensors.arrays import Arrays
from models.tensors.wire import RUNTIME

Rule = Callable[[Draft, NodeProto], bool]


def simplified(
    nodes: Iterable[NodeProto],
    tensors: Mapping[str, TensorInfo],
    constants: Arrays,
    outputs: Iterable[str],
    opset: int,
) -> tuple[list[NodeProto], dict[str, np.ndarray], frozenset[str]]:
    """The nodes and constants of the same network in simpler operators, and the tensors that one
    device is to have whole.
    """
    written, known = integer_products(nodes, tensors, constants)
    by_row = any(node.op_type == "DynamicQuantizeLinear" for node in written)
    rows = row_axes(written, known, frozenset(constants)) if by_row else {}
    draft = Draft(opset, known, dict(constants), frozenset(outputs), rows=rows)
    read = {name for node in written for name in node.input} | draft.outputs
    # A mean in two steps may differ in the last bit, which a quantised network can turn into a
    # whole step further on: there, means are kept.
    exact = _MEANS if any(map(_is_quantised, written)) else frozenset[str]()
    for original in written:
        node = NodeProto()
        node.CopyFrom(original)
        rule = RULES.get(op_of(node))
        least = _fewest_outputs(node, opset, ours=rule is not None)
        while len(node.output) > least and node.output[-1] not in read:
            node.output.pop()
        with fitting(node.name, node.op_type):
            if is_newer(node) or node.op_type in exact:
                rule = None
            if rule is None or not rule(draft, node):
                draft.nodes.append(node)
    narrow = narrow_between(_in_chains(draft) if by_row else draft.nodes, draft.outputs)
    return narrow, draft.constants, frozenset(draft.gathered)


def _in_chains(draft: Draft) -> list[NodeProto]:
    """The nodes, where light ones follow what they alone read, and products of scales the scales:
    quantisers write the chains of several products node by node in turn.
    """
    readers: dict[str, list[int]] = {}
    missing: list[set[str]] = []
    made = {name for node in draft.nodes for name in node.output if name}
    for index, node in enumerate(draft.nodes):
        missing.append(made.intersection(reads(node)))
        for name in missing[index]:
            readers.setdefault(name, []).append(index)
    order: list[NodeProto] = []
    placed: set[int] = set()

    def followers(node: NodeProto) -> Iterator[int]:
        for name in node.output:
            after = readers.get(name, [])
            for index in after:
                missing[index].discard(name)
                declared = TABLE.get(op_of(draft.nodes[index]))
                if missing[index] or declared is None or declared.heavy:
                    continue
                if len(after) == 1 or _is_scale(draft, draft.nodes[index]):
                    yield index

    for first in range(len(draft.nodes)):
        waiting = [first]
        while waiting:
            index = waiting.pop()
            if index not in placed:
                placed.add(index)
                order.append(draft.nodes[index])
                found = sorted(set(followers(draft.nodes[index])), reverse=True)
                waiting += sorted(found, key=lambda number: _is_scale(draft, draft.nodes[number]))
    return order


def _is_scale(draft: Draft, node: NodeProto) -> bool:
    """Whether it multiplies numbers, and constants."""
    read = [name for name in node.input if name not in draft.constants]
    known = all(name in draft.tensors and not draft.shape(name) for name in read)
    return node.op_type == "Mul" and bool(read) and known


def _fewest_outputs(node: NodeProto, opset: int, *, ours: bool) -> int:
    """How many outputs an operator has at least; of one unknown to ONNX and to us, and of one that
    normalises by the statistics of its own input, all that are written.
    """
    if attributes_of(node).get("training_mode", 0):
        return len(node.output)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain.removeprefix("ai.onnx"))
    except onnx.defs.SchemaError:
        return 1 if ours else len(node.output)
    return max(1, int(schema.min_output))


def _is_quantised(node: NodeProto) -> bool:
    return node.op_type in _QUANTISING or node.op_type.startswith("QLinear")


def _split(draft: Draft, node: NodeProto) -> bool:
    """Split: each output becomes a Slice."""
    if node.input[0] not in draft.tensors:
        return False
    shape = draft.shape(node.input[0])
    axis = int(attributes_of(node).get("axis", 0)) % len(shape)
    ends = list(itertools.accumulate(draft.shape(name)[axis] for name in node.output))
    for output, start, end in zip(node.output, [0, *ends], ends, strict=False):
        draft.part(node.input[0], output, axis, start, end)
    return True


def _gather(draft: Draft, node: NodeProto) -> bool:
    """One element along an axis, which Gather removes."""
    index = draft.constants.get(node.input[1])
    if index is None or index.ndim or node.input[0] not in draft.tensors:
        return False
    shape, made = draft.shape(node.input[0]), node.output[0]
    axis = int(attributes_of(node).get("axis", 0)) % len(shape)
    start = int(index) % shape[axis]
    draft.part(node.input[0], f"{made}__kept", axis, start, start + 1)
    draft.reshape(f"{made}__kept", made, [*shape[:axis], *shape[axis + 1 :]])
    return True


def _reshape(draft: Draft, node: NodeProto) -> bool:
    """Back to the shape before another Reshape: the same tensor."""
    source, made = node.input[0], node.output[0]
    if source not in draft.tensors or made not in draft.tensors:
        return False
    before, shape = draft.reshaped.get(source, (source, draft.shape(source)))
    draft.reshaped[made] = (before, shape)
    if before == source or shape != draft.shape(made):
        return False
    draft.emit("Identity", [before], made)
    draft.nodes[-1].name = node.name or made
    return True


def _global_pool(draft: Draft, node: NodeProto) -> bool:
    rank = len(draft.shape(node.input[0]))
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[node.op_type]
    if rank != 4:
        return False
    draft.over_map(op, node.input[0], node.output[0], rank, channels=False)
    draft.nodes[-1].name = node.name or draft.nodes[-1].name
    return True


def _reduce(draft: Draft, node: NodeProto) -> bool:
    """A reduction over rows and other axes, in two steps. Dimensions are removed afterwards."""
    shape, attributes = draft.shape(node.input[0]), attributes_of(node)
    given = attributes.get("axes")
    if given is None and len(node.input) > 1 and node.input[1] in draft.constants:
        given = draft.constants[node.input[1]].tolist()
    axes = sorted(axis % len(shape) for axis in given or ())
    if node.op_type not in _IN_STEPS or len(shape) != 4 or axes not in ([2, 3], [1, 2, 3]):
        return _kept(draft, node)
    if node.op_type == "ReduceMean" and draft.tensors[node.input[0]].dtype.kind != "f":
        return _kept(draft, node)  # each mean of integers is rounded
    keeps = attributes.get("keepdims", 1)
    target = node.output[0] if keeps else f"{node.output[0]}__kept"
    draft.over_map(node.op_type, node.input[0], target, len(shape), channels=1 in axes)
    draft.nodes[-1].name = node.name or target
    if not keeps:
        draft.reshape(target, node.output[0], draft.shape(node.output[0]))
    return True


def _kept(draft: Draft, node: NodeProto) -> bool:
    """Dimensions that an operator removes are removed by a Reshape after it."""
    if attributes_of(node).get("keepdims", 1):
        return False
    kept = NodeProto()
    kept.CopyFrom(node)
    kept.output[0] = f"{node.output[0]}__kept"
    for attribute in kept.attribute:
        if attribute.name == "keepdims":
            attribute.i = 1
    draft.nodes.append(kept)
    draft.reshape(kept.output[0], node.output[0], draft.shape(node.output[0]))
    return True


def _product(draft: Draft, node: NodeProto) -> bool:
    """A matrix product of two matrices is a fully connected layer."""
    ranks = [len(draft.shape(name)) for name in node.input]
    if ranks != [2, 2] or draft.tensors[node.output[0]].dtype != np.float32:
        return False
    inputs = list(node.input)
    if draft.opset < 11:
        zero = np.zeros(draft.shape(node.output[0])[1], dtype=np.float32)
        inputs.append(draft.constant(f"{node.output[0]}__zero", zero))
    draft.emit("Gemm", inputs, node.output[0])
    draft.nodes[-1].name = node.name or node.output[0]
    return True


def _dynamic_quantise(draft: Draft, node: NodeProto) -> bool:
    """The extremes of each row, whose scale and zero point are those of all, then elementwise."""
    x, made = node.input[0], node.output[0]
    axis, rank = draft.rows.get(x, ROWS), len(draft.shape(x))
    across = [other for other in range(rank) if other != axis]
    if axis >= rank or not across:
        return False
    extremes = [
        draft.reduce(op, x, f"{made}__{bound}", across)
        for op, bound in (("ReduceMin", "least"), ("ReduceMax", "most"))
    ]
    both = draft.emit("Concat", extremes, f"{made}__extremes", axis=across[len(across) > 1])
    scale, point = [*node.output, *(f"{made}__{k}" for k in range(len(node.output), 3))][1:]
    whole = f"{made}__whole"
    draft.nodes.append(
        helper.make_node("DynamicQuantizeLinear", [both], [whole, scale, point], name=whole)
    )
    draft.emit("QuantizeLinear", [x, scale, point], made)
    return True


# A reduction of reductions is the reduction of all.
_IN_STEPS = frozenset({"ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"})
_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})
_QUANTISING = frozenset(
    {"DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"}
)
RULES: dict[str, Rule] = {
    "Split": _split,
    "Gather": _gather,
    "Reshape": _reshape,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    **dict.fromkeys(REDUCING, _reduce),
    "MatMul": _product,
    "DynamicQuantizeLinear": _dynamic_quantise,
    "Einsum": einsum,
    "Attention": attention,
    f"{RUNTIME}.MultiHeadAttention": multi_head,
    f"{RUNTIME}.Attention": self_attention,
    **NORMALISATIONS,
    **FUSED,
}
