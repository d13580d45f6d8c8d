"""Pointwise operators: an output element needs the elements at its own place."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.graph.graph import Graph, Node
from models.operators.declaration import Boxes, BoxPiece, Emitter, Kind, Operator
from models.tensors.boxes import Box, Span

_OPS = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Cast Ceil Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu "
    "Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual "
    "Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid "
    "Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)
_EXTENSIONS = (
    "FastGelu Gelu QuickGelu QLinearAdd QLinearMul QLinearLeakyRelu QLinearSigmoid QLinearWhere"
)
# They broadcast all of their inputs.
BROADCASTING = frozenset([*_OPS.split(), *map("com.microsoft.{}".format, _EXTENSIONS.split())])


def project(box: Box, shape: Sequence[int]) -> Box:
    """The part of a broadcast operand of `shape` that an output box reads."""
    if 1 not in shape and len(shape) == len(box):
        return box
    spans = box[len(box) - len(shape) :]
    return Box([Span(0, 1) if size == 1 else span for size, span in zip(shape, spans, strict=True)])


def _reads(graph: Graph, node: Node, box: Box) -> Boxes:
    return tuple([project(box, graph.shape(name)) if name else None for name in node.inputs])


def _per_channel(graph: Graph, node: Node, box: Box) -> Boxes:
    """First input as the output; the others are vectors over channels (BatchNormalization)."""
    return (box, *(Box((box[1],)) if name else None for name in node.inputs[1:]))


def _expand(graph: Graph, node: Node, box: Box) -> Boxes:
    return (project(box, graph.shape(node.inputs[0])), None)


def _build_expand(piece: BoxPiece, program: Emitter) -> None:
    shape = np.array(piece.output.shape, dtype=np.int64)
    label = program.constant(f"{piece.name}__shape", shape)
    program.emit("Expand", [piece.inputs[0], label], piece.name)


def _draws(graph: Graph, node: Node) -> str:
    if len(node.inputs) < _TRAINED_BY or not node.inputs[_TRAINED_BY - 1]:
        return ""
    training = graph.constants.get(node.inputs[_TRAINED_BY - 1])
    draws = training is None or bool(training.any())
    return f"{node.op} may draw numbers at random, as in training" if draws else ""


def _trains(graph: Graph, node: Node) -> str:
    return f"{node.op} takes the statistics of its input" if node.int("training_mode", 0) else ""


# The inputs of a Dropout with the one that says whether it is trained.
_TRAINED_BY = 3
_POINTWISE = Operator(Kind.POINTWISE, "elementwise", _reads, aligned=True)

POINTWISE = {
    **dict.fromkeys(BROADCASTING, _POINTWISE),
    "Dropout": replace(_POINTWISE, refuses=_draws),
    "BatchNormalization": Operator(
        Kind.POINTWISE, "normalisation", _per_channel, refuses=_trains, aligned=True
    ),
    "Expand": Operator(Kind.POINTWISE, "elementwise", _expand, build=_build_expand, aligned=True),
}
