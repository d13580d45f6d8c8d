"""The tolerance of a split answer against the whole model's, relative to the largest magnitude.

Sums in another order are rounded differently. A convolution adds some thousand products; statistics
over a map add as many values as it has pixels, and divide by their spread. Half precision has 11
bits: onnxruntime computes in float32 and rounds stored tensors, and a tile stores others.

onnxruntime on x86 converts signed 8-bit tensors to unsigned ones if a single node reads them, and
computes convolutions that mix the two in float: which ones depends on the neighbouring nodes in a
program, and their sums on the tile's size (docs/adr/0017-same-answer.md). A value between two steps
may then be rounded either way. Unsigned 8 bits are exact everywhere, signed ones only if they are
not converted.

A mean of floats is summed in an order that depends on the neighbouring nodes, too. Where it is
quantised further on, its last bit may decide to which of two steps a value is rounded.
"""

import platform
from collections.abc import Iterable, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from models.graph.graph import Graph, operators_behind, results_of
from models.operators import dequantises, moves
from models.tensors.precision import Precision

PLAIN = 1e-5
STATISTICS = 1e-4
HALF = 4 * 2.0**-10
# float32 between Arm and x86-64, whose kernels sum in different orders and widths.
ACROSS = 1e-4
# Seen: 0.008 for ResNet-50, 0.03 for MobileNetV2, both untrained.
SIGNED = 0.05
# Seen: 0.013 for hardcorenas_a, 0.002 for RegNetY-400MF, both untrained.
AVERAGED = 0.04
# Steps of the range, of 8 and of 16 bits, to which quantised maps are rounded.
STEP_8, STEP_16 = 2.0**-8, 2.0**-16
# A sum whose last bit decides is a step off; a few layers of that add up.
SIXTEEN = 8 * STEP_16
# In float32: more than onnxruntime was seen to differ by from itself where it is not chance that
# decides (a mean over a map: 1.6e-4).
NOISE = 1e-3
# How far a device may be from float32 where a model allows it: it computes in half precision, or
# rounds 8 bits differently.
_ALLOWED: Mapping[Precision, float] = {"exact": 0.0, "fp16": 0.02, "int8": SIGNED}

_REASONS = {
    STATISTICS: "statistics over the map are combined from parts",
    HALF: "half precision has 11 bits, and a tile rounds different tensors than the whole",
    SIXTEEN: "a value between two steps of sixteen bits may be rounded to either",
    SIGNED: "onnxruntime on x86 computes some convolutions of signed 8 bits in float, and a "
    "tile's sums are rounded differently; quantise activations as QUInt8 for identical "
    "bits",
    AVERAGED: "onnxruntime sums means in an order that depends on the neighbouring layers, and a "
    "value between two steps of eight bits may be rounded to either",
}

# onnxruntime's Sigmoid of f32 adds 0.5 to an odd function: it rounds small values to such steps.
_SIGMOID_STEP = 2.0**-24
# Seen: two, of the same logits in tiles.
_STEPS = 4

# These divide by statistics over rows and columns.
_NORMALISING = frozenset(
    {"InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}
)

# What is discontinuous: inputs that differ by rounding may have quite another result.
_DECIDING = frozenset(
    {
        *("ArgMax", "ArgMin", "TopK", "Hardmax", "NonMaxSuppression"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"),
        *("Round", "Floor", "Ceil", "Sign"),
    }
)

_EIGHT_BITS = frozenset({TensorProto.UINT8, TensorProto.INT8})
_SIXTEEN_BITS = frozenset({TensorProto.UINT16, TensorProto.INT16})

_X86 = frozenset({"x86_64", "AMD64", "i386", "i686"})


def tolerance(graph: Graph) -> float:
    """The largest relative error with which an answer counts as the same."""
    if _computes_half(graph):
        return HALF
    if platform.machine() in _X86 and any(
        dequantises(node)
        and node.inputs[0] not in graph.constants
        and graph.tensors[node.inputs[0]].data_type == TensorProto.INT8
        for node in graph.nodes
    ):
        return SIGNED
    if _quantises_means(graph):
        return AVERAGED
    if step_of(graph) == STEP_16:
        return SIXTEEN
    return STATISTICS if graph.written & _NORMALISING else PLAIN


def most_allowed(graph: Graph) -> float:
    """However far onnxruntime is from itself, a larger error never counts as its rounding."""
    return SIGNED if is_quantised(graph) else NOISE * max(1.0, tolerance(graph) / STATISTICS)


def step_of(graph: Graph) -> float:
    """The steps to which a network rounds its maps, relative to their range; 0 if to none."""
    made = {graph.tensors[name].data_type for name in graph.producer}
    read = {
        graph.tensors[node.inputs[0]].data_type
        for node in graph.nodes
        if dequantises(node) and node.inputs[0] not in graph.constants
    }
    if (made | read) & _EIGHT_BITS:
        return STEP_8
    return STEP_16 if (made | read) & _SIXTEEN_BITS else 0.0


def _computes_half(graph: Graph) -> bool:
    """Whether a node makes a tensor in half precision, of which weights may be stored so."""
    return any(graph.tensors[name].data_type == TensorProto.FLOAT16 for name in graph.producer)


def rounding(graph: Graph, output: str) -> float:
    """By how much values of an output may differ however small they are: some of them are made by a
    Sigmoid, and only moved afterwards.
    """
    maker = {name: node.proto for node in graph.nodes for name in node.outputs}
    return _steps(results_of((output,), graph.joined, graph.ending), maker)


def rounding_in(program: GraphProto, output: str) -> float:
    """The same of a program's output."""
    return _steps([output], {name: node for node in program.node for name in node.output})


def decides_in(program: GraphProto, output: str) -> bool:
    """Whether rounding may decide values of a program's output: a rank, a comparison or a step is
    part of what makes them.
    """
    maker = {name: node for node in program.node for name in node.output}
    return any(op in _DECIDING for op in operators_behind([output], maker, lambda _: True))


def _steps(outputs: Iterable[str], maker: Mapping[str, NodeProto]) -> float:
    found = "Sigmoid" in operators_behind(outputs, maker, moves)
    return _STEPS * _SIGMOID_STEP if found else 0.0


def without_rounding(actual: np.ndarray, expected: np.ndarray, steps: float) -> np.ndarray:
    """`actual`, but `expected` where the two differ by no more than `steps`."""
    if not steps or actual.shape != expected.shape:
        return actual
    with np.errstate(all="ignore"):
        return np.where(np.abs(actual - expected) <= steps, expected, actual)


def between_devices(graph: Graph) -> float:
    """How far two devices may differ on the same inputs, relative to the largest magnitude of the
    output. Processors round sums of 8 bits differently, and a value between two steps may be
    rounded either way; no honest device may be accused.
    """
    return max(_as_written(graph), _ALLOWED[graph.precision])


def of_engine(precision: Precision) -> float:
    """How far an engine may be from onnxruntime in a program of this precision. Answers are
    promised within PLAIN, and errors of programs add up. One program may be a whole network, where
    kernels of float32 differ by up to 4e-6 (YOLOv8n); half precision or a wrong conversion differs
    by a hundred times as much.
    """
    return max(PLAIN / 2, _ALLOWED[precision])


def is_quantised(graph: Graph) -> bool:
    """Whether values are rounded to steps of eight bits, of which the last bit of a sum decides."""
    return _as_written(graph) == SIGNED


def _as_written(graph: Graph) -> float:
    made = {graph.tensors[name].on_wire.data_type for name in graph.producer}
    if any(dequantises(node) for node in graph.nodes) or made & _EIGHT_BITS:
        return SIGNED
    if _computes_half(graph) or TensorProto.FLOAT16 in made:
        return HALF
    return STATISTICS if graph.written & _NORMALISING else PLAIN


def told(limit: float) -> str:
    """A tolerance as text, with the reason if it is wide."""
    reason = _REASONS.get(limit)
    return f"limit {limit:g}: {reason}" if reason else f"limit {limit:g}"


def _quantises_means(graph: Graph) -> bool:
    """Whether maps have eight bits, and some are made of means of floats. For a GlobalAveragePool
    whose result is rounded at once, onnxruntime has a kernel of integers.
    """
    if not any(graph.tensors[name].data_type in _EIGHT_BITS for name in graph.producer):
        return False
    pooled = {node.outputs[0] for node in graph.nodes if node.op == "GlobalAveragePool"}
    return any(node.op == "ReduceMean" for node in graph.nodes) or any(
        node.op != "QuantizeLinear" for node in graph.nodes if not pooled.isdisjoint(node.inputs)
    )
