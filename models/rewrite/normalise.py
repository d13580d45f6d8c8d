"""Normalisations over the map, in one exchange.

Every device takes mean and variance of each of its rows. The rows' statistics are small, and one
device combines them: of parts of equal size with means m_i and variances v_i,

    mean = average(m_i),    variance = average(v_i + (m_i - mean)^2)    [Chan, Golub, LeVeque 1983]

in which a large mean causes no cancellation. The result is one value per channel and is sent to all
devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import NodeProto, TensorProto

from models.rewrite.draft import Draft, attributes_of

Average = Callable[[str, str], str]
"""Writes the average of the first tensor's parts into the second, which broadcasts to the parts."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The tensors that hold a mean and a variance."""

    mean: str
    variance: str


def _of_parts(draft: Draft, parts: Moments, label: str, average: Average) -> Moments:
    """The statistics of the whole, from those of equal parts."""
    mean = average(parts.mean, f"{label}_mean")
    apart = draft.emit("Sub", [parts.mean, mean], f"{label}_apart")
    between = draft.emit("Mul", [apart, apart], f"{label}_between")
    total = draft.emit("Add", [parts.variance, between], f"{label}_total")
    return Moments(mean, average(total, f"{label}_variance"))


def _of_map(draft: Draft, x: str, made: str, *, channels: bool) -> Moments:
    """Statistics per channel, or over all channels: of each row, then of the rows."""
    across = [1, 3] if channels else [3]
    means = draft.reduce("ReduceMean", x, f"{made}__rows_mean", across)
    apart = draft.emit("Sub", [x, means], f"{made}__rows_apart")
    squared = draft.emit("Mul", [apart, apart], f"{made}__rows_squared")
    variances = draft.reduce("ReduceMean", squared, f"{made}__rows_variance", across)

    # In one row, so that the rows' statistics are not split again.
    kept, height = 1 if channels else draft.shape(x)[1], draft.shape(x)[2]
    both = draft.emit("Concat", [means, variances], f"{made}__rows", axis=1)
    flat = draft.reshape(both, f"{made}__flat", [1, 2 * kept, 1, height])
    draft.gathered.add(flat)
    rows = Moments(
        draft.part(flat, f"{made}__means", 1, 0, kept),
        draft.part(flat, f"{made}__variances", 1, kept, 2 * kept),
    )

    def average(source: str, output: str) -> str:
        return draft.reduce("ReduceMean", source, output, [3])

    return _of_parts(draft, rows, f"{made}__map", average)


def _spread(draft: Draft, node: NodeProto, variance: str, epsilon: float) -> str:
    """The square root of variance + epsilon."""
    made = node.output[0]
    dtype = draft.tensors[node.input[0]].dtype
    label = draft.constant(f"{made}__epsilon", np.array(epsilon, dtype=dtype))
    above = draft.emit("Add", [variance, label], f"{made}__above")
    return draft.emit("Sqrt", [above], f"{made}__spread")


def _scaled(
    draft: Draft, node: NodeProto, found: Moments, scale: np.ndarray, bias: np.ndarray
) -> None:
    """(x - mean) * (scale / spread) + bias, both per channel."""
    made, rank = node.output[0], len(draft.shape(node.input[0]))
    shape = [-1, *[1] * (rank - 2)]
    labels = [
        draft.constant(f"{made}__{key}", values.reshape(shape))
        for key, values in (("scale", scale), ("bias", bias))
    ]
    spread = _spread(draft, node, found.variance, _epsilon(node))
    factor = draft.emit("Div", [labels[0], spread], f"{made}__factor")
    apart = draft.emit("Sub", [node.input[0], found.mean], f"{made}__apart")
    wide = draft.emit("Mul", [apart, factor], f"{made}__wide")
    draft.emit("Add", [wide, labels[1]], made)
    draft.nodes[-1].name = node.name or made


def _is_map(draft: Draft, node: NodeProto) -> bool:
    shape = draft.shape(node.input[0])
    known = all(name in draft.constants for name in node.input[1:])
    return len(shape) == 4 and shape[0] == 1 and known


def _epsilon(node: NodeProto) -> float:
    return float(attributes_of(node).get("epsilon", 1e-5))


def _instance(draft: Draft, node: NodeProto) -> bool:
    """One group for each channel, or, where a map was reshaped to (1, groups, elements), for some
    of the channels, as exporters write GroupNorm before opset 18.
    """
    if _is_map(draft, node):
        return _in_groups(draft, node, draft.shape(node.input[0])[1])
    source, made, shape = node.input[0], node.output[0], draft.shape(node.input[0])
    if source not in draft.reshaped or len(shape) != 3:
        return False
    of_map = NodeProto()
    of_map.CopyFrom(node)
    of_map.input[0], map_shape = draft.reshaped[source]
    of_map.output[0] = f"{made}__map"
    if of_map.input[0] not in draft.tensors or not _is_map(draft, of_map):
        return False
    if shape[0] != 1 or not _in_groups(draft, of_map, shape[1]):
        return False
    draft.reshaped[draft.reshape(of_map.output[0], made, shape)] = (of_map.output[0], map_shape)
    return True


def _group(draft: Draft, node: NodeProto) -> bool:
    groups = int(attributes_of(node).get("num_groups", 1))
    return _is_map(draft, node) and _in_groups(draft, node, groups)


def _in_groups(draft: Draft, node: NodeProto, groups: int) -> bool:
    channels = draft.shape(node.input[0])[1]
    if channels % groups:
        return False
    _in_single(draft, node, partial(_write_groups, groups=groups))
    return True


def _in_single(draft: Draft, node: NodeProto, write: Callable[[Draft, NodeProto], None]) -> None:
    """Writes a normalisation, that of halves in single precision, as onnxruntime computes it: the
    squares of a map's values may be too large for halves.
    """
    if draft.tensors[node.input[0]].data_type != TensorProto.FLOAT16:
        write(draft, node)
        return
    made, wide = node.output[0], NodeProto()
    wide.CopyFrom(node)
    wide.name, wide.output[0] = "", f"{made}__single"
    for place, name in enumerate(node.input):
        label = f"{made}__single{place}"
        if name in draft.constants:
            wide.input[place] = draft.constant(label, draft.constants[name].astype(np.float32))
        elif name:
            wide.input[place] = draft.cast(name, label, TensorProto.FLOAT)
    write(draft, wide)
    draft.emit("Cast", [wide.output[0]], made, to=TensorProto.FLOAT16)
    draft.nodes[-1].name = node.name or made


def _write_groups(draft: Draft, node: NodeProto, groups: int) -> None:
    channels = draft.shape(node.input[0])[1]
    of_group = channels // groups
    found = _of_map(draft, node.input[0], node.output[0], channels=groups == 1)
    if 1 < groups < channels:
        average = _group_average(draft, channels, groups)
        found = _of_parts(draft, found, f"{node.output[0]}__groups", average)
    # GroupNormalization's scale and bias are per group until opset 21.
    given = [draft.constants[name] for name in node.input[1:3]]
    wide = [part if part.size == channels else np.repeat(part, of_group) for part in given]
    _scaled(draft, node, found, *wide)


def _group_average(draft: Draft, channels: int, groups: int) -> Average:
    """Statistics of each group's channels, expanded to one value per channel."""
    of_group = channels // groups

    def average(source: str, output: str) -> str:
        grouped = draft.reshape(source, f"{output}_grouped", [1, groups, of_group, 1])
        found = draft.reduce("ReduceMean", grouped, f"{output}_groups", [2])
        owner = draft.ints(f"{output}_owner", np.repeat(np.arange(groups), of_group).tolist())
        return draft.emit("Gather", [found, owner], output, axis=1)

    return average


def _mean_variance(draft: Draft, node: NodeProto) -> bool:
    axes = attributes_of(node).get("axes", [0, 2, 3])
    if not _is_map(draft, node) or axes not in ([0, 2, 3], [2, 3]):
        return False
    _in_single(draft, node, _write_mean_variance)
    return True


def _write_mean_variance(draft: Draft, node: NodeProto) -> None:
    """(x - mean) / (sqrt(variance) + 1e-9) [ONNX, MeanVarianceNormalization]."""
    x, made = node.input[0], node.output[0]
    found = _of_map(draft, x, made, channels=False)
    root = draft.emit("Sqrt", [found.variance], f"{made}__root")
    least = draft.constant(f"{made}__least", np.array(1e-9, draft.tensors[x].dtype))
    spread = draft.emit("Add", [root, least], f"{made}__spread")
    apart = draft.emit("Sub", [x, found.mean], f"{made}__apart")
    draft.emit("Div", [apart, spread], made)


def _layer(draft: Draft, node: NodeProto) -> bool:
    """Normalisation over channels, rows and columns at once; one over the last axis only stays."""
    shape = draft.shape(node.input[0])
    axis = int(attributes_of(node).get("axis", -1)) % len(shape)
    if not _is_map(draft, node) or axis != 1 or len(node.output) > 1:
        return False
    _in_single(draft, node, _write_layer)
    return True


def _write_layer(draft: Draft, node: NodeProto) -> None:
    x, made = node.input[0], node.output[0]
    found = _of_map(draft, x, made, channels=True)
    spread = _spread(draft, node, found.variance, _epsilon(node))
    apart = draft.emit("Sub", [x, found.mean], f"{made}__apart")
    standard = draft.emit("Div", [apart, spread], f"{made}__standard")
    if len(node.input) < 3 or not node.input[2]:
        draft.emit("Mul", [standard, node.input[1]], made)
    else:
        wide = draft.emit("Mul", [standard, node.input[1]], f"{made}__wide")
        draft.emit("Add", [wide, node.input[2]], made)


RULES = {
    "InstanceNormalization": _instance,
    "GroupNormalization": _group,
    "MeanVarianceNormalization": _mean_variance,
    "LayerNormalization": _layer,
}
