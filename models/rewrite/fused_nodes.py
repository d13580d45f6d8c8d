"""What onnxruntime's optimisers fuse, as the operators that it was: those are divided, and each
worker's onnxruntime fuses its part again.

Its definitions are in its ContribOperators.md; what is not written out here runs whole.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto, helper

from models.graph.shapes import TensorInfo, info_of
from models.rewrite.draft import Draft, attributes_of
from models.tensors.arrays import Arrays
from models.tensors.wire import RUNTIME

# The settings of each activation that is fused with a convolution or a product.
_SETTINGS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
_OF_FUSION = frozenset(
    {"activation", "activation_params"} | {f"activation_{key}" for key in ("alpha", "beta")}
)
_HARD_SWISH_SINCE = 14
# The norms alone have another default.
_SKIP_EPSILON = 1e-12
_CLIP_BY_INPUTS_SINCE = 11
_GEMM_WITHOUT_C_SINCE = 11


class _Activation(NamedTuple):
    op: str
    settings: dict[str, float]


def _activation(draft: Draft, node: NodeProto) -> _Activation | None:
    """None if it is unknown or a setting is missing; the operator is empty if there is none."""
    given = attributes_of(node)
    op = given.get("activation", b"").decode()
    if not op:
        return _Activation("", {})
    if op not in _SETTINGS or (op == "HardSwish" and draft.opset < _HARD_SWISH_SINCE):
        return None
    names = _SETTINGS[op]
    values = given.get("activation_params") or [
        given[key] for key in map("activation_{}".format, names) if key in given
    ]
    if len(values) < len(names):
        return None
    return _Activation(op, dict(zip(names, map(float, values), strict=False)))


def _write(
    draft: Draft,
    node: NodeProto,
    op: str,
    inputs: Sequence[str],
    output: str,
    *,
    domain: str = "",
    without: Container[str] = (),
) -> str:
    """Writes an operator with the attributes of a node."""
    one = NodeProto(op_type=op, input=inputs, output=[output], name=output, domain=domain)
    one.attribute.extend(attribute for attribute in node.attribute if attribute.name not in without)
    draft.nodes.append(one)
    return output


def _finished(draft: Draft, node: NodeProto, source: str, activation: _Activation) -> bool:
    """Writes what follows, up to the node's output, and names the last step after the node."""
    made, (op, settings) = node.output[0], activation
    if op == "Clip" and draft.opset >= _CLIP_BY_INPUTS_SINCE:
        dtype = draft.tensors[made].dtype
        bounds = [
            draft.constant(f"{made}__{key}", np.array(value, dtype))
            for key, value in settings.items()
        ]
        draft.emit(op, [source, *bounds], made)
    else:
        draft.emit(op or "Identity", [source], made, **settings)
    draft.nodes[-1].name = node.name or made
    return True


def _conv(draft: Draft, node: NodeProto) -> bool:
    """FusedConv: activation(Conv(X, W, B) + Z)."""
    activation = _activation(draft, node)
    if activation is None:
        return False
    made = node.output[0]
    found = _write(draft, node, "Conv", node.input[:3], f"{made}__windows", without=_OF_FUSION)
    if len(node.input) > 3 and node.input[3]:
        found = draft.emit("Add", [found, node.input[3]], f"{made}__sum")
    return _finished(draft, node, found, activation)


def _gemm(draft: Draft, node: NodeProto) -> bool:
    """FusedGemm: activation(Gemm(A, B, C))."""
    activation = _activation(draft, node)
    bias = len(node.input) > 2 and bool(node.input[2])
    if activation is None or (not bias and draft.opset < _GEMM_WITHOUT_C_SINCE):
        return False
    product = f"{node.output[0]}__product"
    _write(draft, node, "Gemm", node.input, product, without=_OF_FUSION | {"activation_gamma"})
    return _finished(draft, node, product, activation)


def _matmul(draft: Draft, node: NodeProto) -> bool:
    """FusedMatMul: alpha times the product of A and B, the last two axes of which are exchanged
    first if transA, transB say so.
    """
    given, made = attributes_of(node), node.output[0]
    shapes = [draft.shape(name) if name in draft.tensors else () for name in node.input]
    if given.get("transBatchA") or given.get("transBatchB") or any(len(s) < 2 for s in shapes):
        return False
    sources = list(node.input)
    for k, (key, shape) in enumerate(zip("AB", shapes, strict=True)):
        if given.get(f"trans{key}"):
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            sources[k] = draft.emit("Transpose", [sources[k]], f"{made}__turned{k}", perm=order)
    alpha = draft.constant(
        f"{made}__alpha", np.array(given.get("alpha", 1.0), draft.tensors[made].dtype)
    )
    product = draft.emit("MatMul", sources, f"{made}__product")
    draft.emit("Mul", [product, alpha], made)
    draft.nodes[-1].name = node.name or made
    return True


def _gelu(draft: Draft, node: NodeProto) -> bool:
    """BiasGelu, and FastGelu with a bias."""
    if len(node.input) < 2 or not node.input[1]:
        return False
    op, made = node.op_type.removeprefix("Bias"), node.output[0]
    total = draft.emit("Add", list(node.input), f"{made}__sum")
    _write(draft, node, op, [total], made, domain=RUNTIME)
    draft.nodes[-1].name = node.name or made
    return True


def _skip_norm(draft: Draft, node: NodeProto) -> bool:
    """(Skip)LayerNormalization of a sum of the input, the skipped tensor and a bias."""
    op, made = node.op_type.removeprefix("Skip"), node.output[0]
    _, mean, spread, total = [*node.output, *[""] * 3][:4]
    if mean or spread:
        return False
    parts = 2 if op.startswith("Simplified") else 3  # the norm's inputs, before the bias
    source, skip, *weights = node.input
    weights, bias = (
        [weight for weight in weights[: parts - 1] if weight],
        "".join(weights[parts - 1 :]),
    )
    total = total or f"{made}__total"
    found = draft.emit("Add", [source, skip], f"{made}__sum" if bias else total)
    if bias:
        draft.emit("Add", [found, bias], total)
    epsilon = float(attributes_of(node).get("epsilon", _SKIP_EPSILON))
    draft.emit(op, [total, *weights], made, epsilon=epsilon)
    draft.nodes[-1].name = node.name or made
    return True


_Nodes = list[NodeProto]


def integer_products(
    nodes: Iterable[NodeProto], tensors: Mapping[str, TensorInfo], constants: Arrays
) -> tuple[_Nodes, dict[str, TensorInfo]]:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat as the integer products that they are, and the
    tensors that are known then.
    """
    written: _Nodes = []
    known = dict(tensors)
    for node in nodes:
        if node.domain != RUNTIME or node.op_type not in _INTEGER:
            written.append(node)
            continue
        known.update({name: info_of(constants[name]) for name in node.input if name in constants})
        if all(name in known for name in (*node.input, *node.output) if name):
            written += _integer_product(node, known)
        else:
            written.append(node)
    return written, known


# The number of inputs of each.
_INTEGER = {"DynamicQuantizeMatMul": 5, "MatMulIntegerToFloat": 7}


def _integer_product(node: NodeProto, known: dict[str, TensorInfo]) -> _Nodes:
    """scale_A scale_B (A - zero_A)(B - zero_B) + bias."""
    made, written = node.output[0], _Nodes()
    result = known[made]
    names = [*node.input, *[""] * _INTEGER[node.op_type]][: _INTEGER[node.op_type]]

    def write(op: str, inputs: Sequence[str], *outputs: tuple[str, TensorInfo]) -> str:
        label = outputs[0][0]
        name = (node.name or made) if label == made else label
        written.append(helper.make_node(op, inputs, [output for output, _ in outputs], name=name))
        known.update(outputs)
        return label

    if node.op_type == "DynamicQuantizeMatMul":
        source, second, second_scale, second_point, bias = names
        first, scale, point = f"{made}__first", f"{made}__first_scale", f"{made}__first_point"
        write(
            "DynamicQuantizeLinear",
            [source],
            (first, TensorInfo(known[source].shape, TensorProto.UINT8)),
            (scale, TensorInfo((), TensorProto.FLOAT)),
            (point, TensorInfo((), TensorProto.UINT8)),
        )
    else:
        first, second, scale, second_scale, point, second_point, bias = names
    factors = [first, second, point, second_point]
    while not factors[-1]:
        factors.pop()
    integers = (f"{made}__integers", TensorInfo(result.shape, TensorProto.INT32))
    found = write("MatMulInteger", factors, integers)
    found = write("Cast", [found], (f"{made}__wide", result))
    written[-1].attribute.append(helper.make_attribute("to", result.data_type))
    both = write("Mul", [scale, second_scale], (f"{made}__scale", known[second_scale]))
    label = f"{made}__product" if bias else made
    found = write("Mul", [found, both], (label, result))
    if bias:
        write("Add", [found, bias], (made, result))
    return written


RULES = {
    f"{RUNTIME}.{op}": rule
    for op, rule in {
        "FusedConv": _conv,
        "FusedGemm": _gemm,
        "FusedMatMul": _matmul,
        "TransposeMatMul": _matmul,
        "BiasGelu": _gelu,
        "FastGelu": _gelu,
        "SkipLayerNormalization": _skip_norm,
        "SkipSimplifiedLayerNormalization": _skip_norm,
    }.items()
}
