"""Where the rows of a map lie in every tensor that is made from it.

Networks with attention write a map's rows as tokens (N, H x W, C), split heads off, and transpose;
Swin's cut it into windows. Nothing of that mixes rows: along some axis the tensor still lies in the
order of the map's rows. This finds that axis. It only proposes: whether a node computes a part of
its rows from a part of its input's is for its declaration in the operator table to say.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence

from onnx import NodeProto

from models.graph.graph import ROWS
from models.graph.shapes import TensorInfo
from models.operators import LAYER_NORMS, LINEAR, REDUCING
from models.operators.arrange import DOMAIN
from models.operators.pointwise import BROADCASTING
from models.rewrite.draft import attributes_of, op_of
from models.tensors.arrays import Shape

# The axes of a node's inputs (None: constant, or without rows) to that of its output.
_Axes = Sequence[int | None]
# How many tensors are followed to see what a list is.
_FOLLOWED = 16
# Dimensions of a map.
_MAP = 4
_OF_TOKENS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "Gemm", *LAYER_NORMS})
_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
# Operators whose output has its rows where its inputs have them, counted from the end.
_KEEPING = BROADCASTING | {
    *("Concat", "Expand", "Gather", "Pad", "Slice", "Split", "Tile"),
    *("LogSoftmax", "Softmax", *LAYER_NORMS),
    *("com.microsoft.QLinearConcat", "com.microsoft.QLinearSoftmax"),
    *REDUCING,
}
# Operators whose other inputs are scales and zero points.
_ELEMENTWISE = LINEAR | {"DynamicQuantizeLinear"}
# What is done to a picture before it is transposed: numbers are converted, channels exchanged.
_KEEPING_SHAPE = BROADCASTING | _ELEMENTWISE | {"Concat", "Gather", "Slice", "Split"}


def row_axes(
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorInfo],
    constants: frozenset[str],
    gathered: Container[str] = (),
    by_columns: Container[str] = (),
) -> dict[str, int]:
    """The axis of the rows of each tensor where it is not axis 2. What is `gathered` on one device
    has no rows of a map; products that are to be divided `by_columns` have these for rows.
    """
    found: dict[str, int] = {}
    lost: set[str] = set()
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def axis_of(name: str) -> int | None:
        if not name or name in constants or name not in tensors:
            return None
        axis = found.get(name, ROWS)
        return axis if axis < len(tensors[name].shape) else None

    made_here = {name for node in nodes for name in node.output}
    for name in readers:
        if name not in tensors or name in made_here or name in constants:
            continue
        axis = _turned(name, tensors[name].shape, readers)
        if axis is not None and axis != ROWS:
            found[name] = axis
    for node in nodes:
        made = node.output[0] if node.output else ""
        if node.domain == DOMAIN or made not in tensors or made in gathered:
            continue
        shapes = [tensors[name].shape if name in tensors else () for name in node.input]
        out = tensors[made].shape
        axis = None
        if node.op_type != "Gather" or node.input[1] in constants:
            rule, axes = _rule(op_of(node)), [axis_of(name) for name in node.input]
            # Of inputs that disagree, one that is made from a map's rows.
            pairs = zip(node.input, axes, strict=True)
            axis = rule(node, shapes, out, [None if name in lost else axis for name, axis in pairs])
            if axis is None:
                lost.update(node.output)
                axis = rule(node, shapes, out, axes)
        if made in by_columns:
            axis = len(out) - 1
        elif axis is None or (axis == ROWS and made in lost):
            lost.update(node.output)
            axis = len(out) - 2 if _are_tokens(made, out, readers) else axis
        if axis is not None and axis != ROWS:
            like = (name for name in node.output if name and name in tensors)
            found |= {name: axis for name in like if len(tensors[name].shape) == len(out)}
    return found


def _turned(name: str, shape: Shape, readers: Mapping[str, Sequence[NodeProto]]) -> int | None:
    """The axis of a picture's rows that a network transposes before anything else, as one whose
    channels come last; None if it does not.
    """
    names, axes = [name], set[int]()
    for tensor in names:
        for node in readers.get(tensor, ()):
            if node.op_type == "Transpose" and len(shape) == _MAP:
                perm = attributes_of(node).get("perm", ())
                axes.add(perm[ROWS] if len(perm) == len(shape) else ROWS)
            elif op_of(node) in _KEEPING_SHAPE and len(names) < _FOLLOWED:
                names += node.output
            else:
                axes.add(ROWS)
    return axes.pop() if len(axes) == 1 else None


def _are_tokens(name: str, shape: Shape, readers: Mapping[str, Sequence[NodeProto]]) -> bool:
    """Whether what reads a list that is not made from a map's rows takes its elements for tokens:
    a product with weights or a normalisation of each.
    """
    if len(shape) not in (2, 3) or shape[-2] < 2:
        return False
    names = [name]
    for tensor in names:
        for node in readers.get(tensor, ()):
            if node.op_type in _OF_TOKENS and node.input[0] == tensor:
                return True
            if op_of(node) in _KEEPING | _ELEMENTWISE and len(names) < _FOLLOWED:
                names += node.output
    return False


_Rule = Callable[[NodeProto, Sequence[Shape], Shape, _Axes], int | None]


def _rule(op: str) -> _Rule:
    if op in _RESHAPING:
        return _reshaped
    if op in _KEEPING:
        return _kept
    return _RULES.get(op, lambda node, shapes, out, axes: None)


def _kept(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    """Counted from the end, as broadcasting does; the largest input decides."""
    places = [
        (math.prod(shape), len(out) - len(shape) + axis)
        for shape, axis in zip(shapes, axes, strict=True)
        if axis is not None and shape[axis] > 1 and len(shape) <= len(out)
    ]
    return max(places)[1] if places else None


def _same(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    return axes[0]


def _transposed(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    if axes[0] is None:
        return None
    order = attributes_of(node).get("perm") or list(reversed(range(len(out))))
    return order.index(axes[0])


def _reshaped(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    return None if axes[0] is None else reshaped_axis(shapes[0], axes[0], out)


def _product(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    """The rows of A, unless these are what is summed over; else the columns of B."""
    places = []
    factors = (0, 3) if node.op_type == "QLinearMatMul" else (0, 1)
    for place, summed in zip(factors, (1, 2), strict=True):
        shape, axis = shapes[place], axes[place]
        if axis is not None and 1 < len(shape) <= len(out) and len(shape) - axis != summed:
            places.append(len(out) - len(shape) + axis)
    return places[0] if places else None


def _connected(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    return 0 if axes[0] == 0 and not attributes_of(node).get("transA", 0) else None


def _windowed(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    return axes[0] if axes[0] is not None and axes[0] >= ROWS else None


def _sampled(node: NodeProto, shapes: Sequence[Shape], out: Shape, axes: _Axes) -> int | None:
    """The heads, if the values are divided by them; else where the grid's rows become the
    output's.
    """
    if axes[0] == 0 and shapes[0][0] > 1:
        return 0
    return axes[1] + 1 if axes[1] and axes[1] < len(out) - 1 else None


_RULES: Mapping[str, _Rule] = {
    "GridSample": _sampled,
    **dict.fromkeys(_ELEMENTWISE, _same),
    **dict.fromkeys(["Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"], _windowed),
    "com.microsoft.QLinearAveragePool": _windowed,
    "Transpose": _transposed,
    **dict.fromkeys(["MatMul", "MatMulInteger", "QLinearMatMul"], _product),
    **dict.fromkeys(["Gemm", "com.microsoft.QGemm"], _connected),
}


def reshaped_axis(shape: Shape, axis: int, out: Shape) -> int | None:
    """The axis of a reshaped tensor along which rows lie in the same order: as much comes before it
    as before `axis`. Of several, the one that keeps the most parts.
    """
    before = math.prod(shape[:axis])
    fits = [k for k in range(len(out)) if math.prod(out[:k]) == before]
    best = max(fits, key=lambda k: math.gcd(out[k], shape[axis]), default=None)
    return best if best is not None and math.gcd(out[best], shape[axis]) > 1 else None
