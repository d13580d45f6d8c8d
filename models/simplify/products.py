"""Einsum and Attention as the matrix products that they consist of, which are divided by rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx

from models.simplify.draft import Draft, attributes_of


class _Terms(NamedTuple):
    """The labels of an Einsum of two tensors: of both and kept, of the first, of both and summed,
    and of the second.
    """

    batch: str
    left: str
    summed: str
    right: str


def einsum(draft: Draft, node: onnx.NodeProto) -> bool:
    """A product of two tensors summed over what both have: transposed, multiplied and transposed
    back.
    """
    equation = attributes_of(node)["equation"].decode().replace(" ", "")
    operands, _, result = equation.partition("->")
    labels = operands.split(",")
    terms = _terms(labels, result)
    if terms is None or any(name not in draft.tensors for name in node.input):
        return False
    shapes = [draft.shape(name) for name in node.input]
    if any(len(each) != len(shape) for each, shape in zip(labels, shapes, strict=True)):
        return False
    sizes = dict(zip(labels[0], shapes[0], strict=True))
    if any(sizes.setdefault(k, n) != n for k, n in zip(labels[1], shapes[1], strict=True)):
        return False  # a size of one that is repeated
    made = node.output[0]

    def size(part: str) -> int:
        return math.prod(sizes[each] for each in part)

    def arranged(place: int, label: str, before: str, rows: str, columns: str) -> str:
        order = before + rows + columns
        source = _transposed(draft, node.input[place], f"{made}__{label}", labels[place], order)
        if len(rows) == len(columns) == 1:
            return source
        shape = [*(sizes[each] for each in before), size(rows), size(columns)]
        return draft.reshape(source, f"{made}__{label}_matrix", shape)

    first = arranged(0, "first", terms.batch, terms.left, terms.summed)
    second = arranged(1, "second", terms.batch, terms.summed, terms.right)
    found = draft.emit("MatMul", [first, second], f"{made}__product")
    order = terms.batch + terms.left + terms.right
    if not len(terms.left) == len(terms.right) == 1:
        found = draft.reshape(found, f"{made}__whole", [sizes[each] for each in order])
    draft.emit("Transpose", [found], made, perm=[order.index(each) for each in result])
    draft.nodes[-1].name = node.name or made
    return True


def _terms(labels: list[str], result: str) -> _Terms | None:
    """None unless it is a product of two tensors, of which each label occurs once."""
    if len(labels) != 2 or any(len(set(each)) != len(each) for each in (*labels, result)):
        return None
    first, second = labels
    if not f"{first}{second}{result}".isalpha() or set(first) ^ set(second) != {
        each for each in result if (each in first) != (each in second)
    }:
        return None  # an ellipsis, or a sum over one of them alone
    both = [each for each in first if each in second]
    summed = "".join(each for each in both if each not in result)
    if not summed:
        return None
    return _Terms(
        "".join(each for each in result if each in both),
        "".join(each for each in result if each not in second),
        summed,
        "".join(each for each in result if each not in first),
    )


def _transposed(draft: Draft, source: str, made: str, given: str, wanted: str) -> str:
    if given == wanted:
        return source
    return draft.emit("Transpose", [source], made, perm=[given.index(each) for each in wanted])


def attention(draft: Draft, node: onnx.NodeProto) -> bool:
    """softmax(Q K^T / sqrt(D) + mask) V [ONNX, Attention], without a cache of keys, with as many
    heads of keys as of queries.
    """
    given = attributes_of(node)
    inputs = [*node.input, *[""] * 4][:4]
    if len(node.output) > 1 or any(node.input[4:]) or given.get("softcap", 0):
        return False
    if given.get("softmax_precision") or any(name not in draft.tensors for name in inputs[:3]):
        return False
    made, heads = node.output[0], int(given.get("q_num_heads", 0))
    split = len(draft.shape(inputs[0])) == 3
    if split and int(given.get("kv_num_heads", 0)) != heads:
        return False
    queries, keys, values = (
        _heads(draft, name, f"{made}__{label}", heads) if split else _Part(name, draft.shape(name))
        for name, label in zip(inputs, ("queries", "keys", "values"), strict=False)
    )
    if queries.shape[1] != keys.shape[1]:
        return False
    dtype = draft.tensors[made].dtype
    scores_shape = (*queries.shape[:3], keys.shape[2])
    mask = _mask(draft, inputs[3], made, scores_shape, dtype, causal=bool(given.get("is_causal")))
    if mask is None:
        return False
    scale = given.get("scale") or 1 / math.sqrt(queries.shape[3])
    # Both are scaled, so that the product does not overflow in half precision.
    root = draft.constant(f"{made}__root", np.array(math.sqrt(scale), dtype))
    scaled = draft.emit("Mul", [queries.name, root], f"{made}__scaled")
    turned = draft.emit("Transpose", [keys.name], f"{made}__turned", perm=[0, 1, 3, 2])
    turned = draft.emit("Mul", [turned, root], f"{made}__turned_scaled")
    scores = draft.emit("MatMul", [scaled, turned], f"{made}__scores")
    if mask:
        scores = draft.emit("Add", [scores, mask], f"{made}__masked")
    weights = draft.emit("Softmax", [scores], f"{made}__weights", axis=3)
    if not split:
        draft.emit("MatMul", [weights, values.name], made)
    else:
        found = draft.emit("MatMul", [weights, values.name], f"{made}__heads")
        found = draft.emit("Transpose", [found], f"{made}__tokens", perm=[0, 2, 1, 3])
        draft.reshape(found, made, draft.shape(made))
    draft.nodes[-1].name = node.name or made
    return True


class _Part(NamedTuple):
    """A tensor (B, H, S, D) of queries, keys or values."""

    name: str
    shape: tuple[int, ...]


def _heads(draft: Draft, source: str, made: str, heads: int) -> _Part:
    batch, length, width = draft.shape(source)
    shape = (batch, length, heads, width // heads)
    found = draft.reshape(source, f"{made}_split", shape)
    found = draft.emit("Transpose", [found], made, perm=[0, 2, 1, 3])
    return _Part(found, (batch, heads, length, width // heads))


def _mask(
    draft: Draft,
    mask: str,
    made: str,
    scores: tuple[int, ...],
    dtype: np.dtype,
    *,
    causal: bool,
) -> str | None:
    """What is added to the scores, "" for nothing; None if it is not a constant that fits."""
    if not mask and not causal:
        return ""
    added = np.zeros(scores[2:], dtype)
    lowest = np.array(-np.inf, dtype)
    if mask:
        found = draft.constants.get(mask)
        if found is None or not found.ndim or found.shape[-1] != scores[-1]:
            return None
        added = np.where(found, dtype.type(0), lowest) if found.dtype == bool else found
    if causal:
        later = ~np.tri(scores[2], scores[3], dtype=bool)
        added = np.where(later, lowest, added)
    # A row without any key is none's: kernels differ there.
    if not np.isfinite(added.max(axis=-1)).all():
        return None
    return draft.constant(f"{made}__mask", np.ascontiguousarray(added, dtype))
