"""Normalisations over the map: statistics in two passes, mean first, then what deviates from it.

Each pass is a reduction of which devices compute the rows that they have; the values per channel
that come of it are small and go to all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from models.simplify.draft import Draft, attributes_of

Average = Callable[[str, str], str]


def _standardised(draft: Draft, node: onnx.NodeProto, epsilon: float, average: Average) -> str:
    """(x - mean) / sqrt(variance + epsilon); `average(source, output)` writes a mean."""
    x, made = node.input[0], node.output[0]
    mean = average(x, f"{made}__mean")
    apart = draft.emit("Sub", [x, mean], f"{made}__apart")
    squared = draft.emit("Mul", [apart, apart], f"{made}__squared")
    variance = average(squared, f"{made}__variance")
    dtype = draft.tensors[x].dtype
    label = draft.constant(f"{made}__epsilon", np.array(epsilon, dtype=dtype))
    above = draft.emit("Add", [variance, label], f"{made}__above")
    spread = draft.emit("Sqrt", [above], f"{made}__spread")
    return draft.emit("Div", [apart, spread], f"{made}__standard")


def _scaled(draft: Draft, node: onnx.NodeProto, standard: str, scale: str, bias: str) -> None:
    """y = standard * scale + bias, per channel."""
    made, rank = node.output[0], len(draft.shape(node.input[0]))
    shape = [-1, *[1] * (rank - 2)]
    labels = [
        draft.constant(f"{made}__{key}", draft.constants[name].reshape(shape))
        for key, name in (("scale", scale), ("bias", bias))
    ]
    wide = draft.emit("Mul", [standard, labels[0]], f"{made}__wide")
    draft.emit("Add", [wide, labels[1]], made)
    draft.nodes[-1].name = node.name or made


def _is_map(draft: Draft, node: onnx.NodeProto) -> bool:
    shape = draft.shape(node.input[0])
    known = all(name in draft.constants for name in node.input[1:])
    return len(shape) == 4 and shape[0] == 1 and known


def _epsilon(node: onnx.NodeProto) -> float:
    return float(attributes_of(node).get("epsilon", 1e-5))


def _instance(draft: Draft, node: onnx.NodeProto) -> bool:
    if not _is_map(draft, node):
        return False

    def average(source: str, output: str) -> str:
        return draft.over_map("ReduceMean", source, output, 4, channels=False)

    standard = _standardised(draft, node, _epsilon(node), average)
    _scaled(draft, node, standard, node.input[1], node.input[2])
    return True


def _group(draft: Draft, node: onnx.NodeProto) -> bool:
    channels = draft.shape(node.input[0])[1]
    groups = int(attributes_of(node).get("num_groups", 1))
    if not _is_map(draft, node) or channels % groups:
        return False
    # Until opset 21 scale and bias were per group.
    parts = [draft.constants[name] for name in node.input[1:3]]
    each = channels // groups
    wide = [part if part.size == channels else np.repeat(part, each) for part in parts]
    labels = [draft.constant(f"{node.output[0]}__given{k}", part) for k, part in enumerate(wide)]
    standard = _standardised(draft, node, _epsilon(node), _group_average(draft, channels, groups))
    _scaled(draft, node, standard, *labels)
    return True


def _group_average(draft: Draft, channels: int, groups: int) -> Average:
    """Of each channel, then of each group's channels, then one for every channel again."""
    each = channels // groups

    def average(source: str, output: str) -> str:
        means = draft.over_map("ReduceMean", source, f"{output}_channels", 4, channels=False)
        if each == 1:
            return means
        grouped = draft.reshape(means, f"{output}_grouped", [1, groups, each, 1])
        found = draft.reduce("ReduceMean", grouped, f"{output}_groups", [2])
        owner = draft.ints(f"{output}_owner", np.repeat(np.arange(groups), each).tolist())
        return draft.emit("Gather", [found, owner], output, axis=1)

    return average


def _mean_variance(draft: Draft, node: onnx.NodeProto) -> bool:
    axes = attributes_of(node).get("axes", [0, 2, 3])
    if not _is_map(draft, node) or axes not in ([0, 2, 3], [2, 3]):
        return False

    def average(source: str, output: str) -> str:
        return draft.over_map("ReduceMean", source, output, 4, channels=False)

    standard = _standardised(draft, node, 1e-9, average)
    draft.nodes[-1].output[0] = node.output[0]
    assert standard
    return True


def _layer(draft: Draft, node: onnx.NodeProto) -> bool:
    """Over channels, rows and columns at once; what is over the last axis alone stays."""
    shape = draft.shape(node.input[0])
    axis = int(attributes_of(node).get("axis", -1)) % len(shape)
    if not _is_map(draft, node) or axis != 1 or len(node.output) > 1:
        return False

    def average(source: str, output: str) -> str:
        return draft.over_map("ReduceMean", source, output, 4, channels=True)

    standard = _standardised(draft, node, _epsilon(node), average)
    made = node.output[0]
    if len(node.input) < 3 or not node.input[2]:
        draft.emit("Mul", [standard, node.input[1]], made)
    else:
        wide = draft.emit("Mul", [standard, node.input[1]], f"{made}__wide")
        draft.emit("Add", [wide, node.input[2]], made)
    return True


RULES = {
    "InstanceNormalization": _instance,
    "GroupNormalization": _group,
    "MeanVarianceNormalization": _mean_variance,
    "LayerNormalization": _layer,
}
