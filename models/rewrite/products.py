"""Einsum and Attention as the matrix products that they consist of, which are divided by rows."""

import math
from typing import NamedTuple

import numpy as np
from onnx import NodeProto

from models.rewrite.draft import Draft, attributes_of


def einsum(draft: Draft, node: NodeProto) -> bool:
    """A product of two tensors summed over what both have: transposed, multiplied and transposed
    back.
    """
    equation = attributes_of(node)["equation"].decode().replace(" ", "")
    operands, arrow, result = equation.partition("->")
    labels = operands.split(",")
    if not arrow:  # those that occur once, in the order of the alphabet
        result = "".join(
            sorted(letter for letter in {*operands} - {","} if operands.count(letter) == 1)
        )
    terms = _terms(labels, result) if result else None
    if terms is None or any(name not in draft.tensors for name in node.input):
        return False
    shapes = [draft.shape(name) for name in node.input]
    if any(len(label) != len(shape) for label, shape in zip(labels, shapes, strict=True)):
        return False
    sizes = dict(zip(labels[0], shapes[0], strict=True))
    if any(sizes.setdefault(k, n) != n for k, n in zip(labels[1], shapes[1], strict=True)):
        return False  # a size of one that is repeated
    batch, left, summed, right = terms
    made = node.output[0]

    def size(part: str) -> int:
        return math.prod(sizes[letter] for letter in part)

    def arranged(place: int, label: str, before: str, rows: str, columns: str) -> str:
        order = before + rows + columns
        source, given = node.input[place], labels[place]
        if given != order:
            perm = [given.index(letter) for letter in order]
            source = draft.emit("Transpose", [source], f"{made}__{label}", perm=perm)
        if len(rows) == len(columns) == 1:
            return source
        shape = [*(sizes[letter] for letter in before), size(rows), size(columns)]
        return draft.reshape(source, f"{made}__{label}_matrix", shape)

    first = arranged(0, "first", batch, left, summed)
    second = arranged(1, "second", batch, summed, right)
    found = draft.emit("MatMul", [first, second], f"{made}__product")
    order = batch + left + right
    if not len(left) == len(right) == 1:
        found = draft.reshape(found, f"{made}__whole", [sizes[letter] for letter in order])
    draft.emit("Transpose", [found], made, perm=[order.index(letter) for letter in result])
    draft.nodes[-1].name = node.name or made
    return True


def _terms(labels: list[str], result: str) -> tuple[str, str, str, str] | None:
    """The labels of both tensors that are kept, of the first, of both that are summed, and of the
    second; None unless it is a product of two tensors, of which each label occurs once.
    """
    if len(labels) != 2 or any(len(set(letters)) != len(letters) for letters in (*labels, result)):
        return None
    first, second = labels
    if not f"{first}{second}{result}".isalpha() or set(first) ^ set(second) != {
        letter for letter in result if (letter in first) != (letter in second)
    }:
        return None  # an ellipsis, or a sum over one of them alone
    both = [letter for letter in first if letter in second]
    summed = "".join(letter for letter in both if letter not in result)
    if not summed:
        return None
    return (
        "".join(letter for letter in result if letter in both),
        "".join(letter for letter in result if letter not in second),
        summed,
        "".join(letter for letter in result if letter not in first),
    )


def attention(draft: Draft, node: NodeProto) -> bool:
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
    parts = [_Part(name, draft.shape(name)) for name in inputs[:3]]
    if len(parts[0].shape) == 3:
        if int(given.get("kv_num_heads", 0)) != heads:
            return False
        parts = _in_heads(draft, parts, made, heads)
    queries, keys, _ = parts
    if queries.shape[1] != keys.shape[1]:
        return False
    dtype = draft.tensors[made].dtype
    scores_shape = (*queries.shape[:3], keys.shape[2])
    mask = _mask(draft, inputs[3], made, scores_shape, dtype, causal=bool(given.get("is_causal")))
    if mask is None:
        return False
    _attend(draft, node, parts, mask)
    return True


def multi_head(draft: Draft, node: NodeProto) -> bool:
    """onnxruntime's MultiHeadAttention: the same of tensors (B, S, H x D), to which a bias may be
    added first; without a cache, a padding or a causal mask.
    """
    names = [*node.input, *[""] * 6]
    heads, added = int(attributes_of(node)["num_heads"]), names[5]
    if any([names[4], *names[6:]]) or not _is_plain(draft, node, [*names[:3], added]):
        return False
    parts = [_Part(name, draft.shape(name)) for name in names[:3]]
    sizes = [part.shape[-1] for part in parts]
    if any(len(part.shape) != 3 for part in parts) or any(size % heads for size in sizes):
        return False
    if names[3]:
        bias = draft.constants.get(names[3])
        if bias is None or bias.shape != (sum(sizes),):
            return False
        made = node.output[0]
        apart = np.split(bias, np.cumsum(sizes)[:-1])
        for k, (part, values) in enumerate(zip(parts, apart, strict=True)):
            label = draft.constant(f"{made}__bias{k}", np.ascontiguousarray(values))
            biased = draft.emit("Add", [part.name, label], f"{made}__biased{k}")
            parts[k] = _Part(biased, part.shape)
    _attend(draft, node, _in_heads(draft, parts, node.output[0], heads), added)
    return True


def self_attention(draft: Draft, node: NodeProto) -> bool:
    """onnxruntime's Attention: queries, keys and values are one product of the input (B, S, C) with
    weights (C, Q + K + V); without a cache or a mask.
    """
    names, given = [*node.input, *[""] * 6], attributes_of(node)
    source, weights, bias, heads, added = *names[:3], int(given["num_heads"]), names[5]
    used = [source, weights, *([bias] if bias else []), added]
    if any([*names[3:5], *names[6:]]) or given.get("do_rotary"):
        return False
    if not _is_plain(draft, node, used) or len(draft.shape(source)) != 3:
        return False
    width, made = draft.shape(weights)[1], node.output[0]
    sizes = [*given.get("qkv_hidden_sizes", [width // 3] * 3)]
    if sum(sizes) != width or any(size % heads for size in sizes):
        return False
    every = draft.emit("MatMul", [source, weights], f"{made}__product")
    if bias:
        every = draft.emit("Add", [every, bias], f"{made}__biased")
    stops = np.cumsum(sizes).tolist()
    parts = [
        _Part(
            draft.part(every, f"{made}__part{k}", 2, stop - size, stop),
            (*draft.shape(source)[:2], size),
        )
        for k, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]
    _attend(draft, node, _in_heads(draft, parts, made, heads), added)
    return True


def _is_plain(draft: Draft, node: NodeProto, names: list[str]) -> bool:
    """Whether an attention has one output, no causal mask, and all of these inputs, of which the
    last is added to the scores, if it is given.
    """
    *read, added = names
    known = all(name in draft.tensors for name in [*read, *([added] if added else [])])
    if not known or len(node.output) > 1 or attributes_of(node).get("unidirectional"):
        return False
    return not added or len(draft.shape(added)) == 4


class _Part(NamedTuple):
    """A tensor (B, H, S, D), or (B, S, H x D), of queries, keys or values."""

    name: str
    shape: tuple[int, ...]


def _in_heads(draft: Draft, parts: list[_Part], made: str, heads: int) -> list[_Part]:
    """Queries, keys and values (B, H, S, D)."""
    found = []
    for (name, (batch, length, width)), label in zip(
        parts, ("queries", "keys", "values"), strict=True
    ):
        shape = (batch, length, heads, width // heads)
        apart = draft.reshape(name, f"{made}__{label}_split", shape)
        turned = draft.emit("Transpose", [apart], f"{made}__{label}", perm=[0, 2, 1, 3])
        found.append(_Part(turned, (batch, heads, length, width // heads)))
    return found


def _attend(draft: Draft, node: NodeProto, parts: list[_Part], mask: str) -> None:
    """Writes the products of queries, keys and values (B, H, S, D); the mask may be empty."""
    queries, keys, values = parts
    made = node.output[0]
    shape, dtype = draft.shape(made), draft.tensors[made].dtype
    scale = attributes_of(node).get("scale") or 1 / math.sqrt(queries.shape[3])
    # Both are scaled, so that the product does not overflow in half precision.
    root = draft.constant(f"{made}__root", np.array(math.sqrt(scale), dtype))
    scaled = draft.emit("Mul", [queries.name, root], f"{made}__scaled")
    turned = draft.emit("Transpose", [keys.name], f"{made}__turned", perm=[0, 1, 3, 2])
    turned = draft.emit("Mul", [turned, root], f"{made}__turned_scaled")
    scores = draft.emit("MatMul", [scaled, turned], f"{made}__scores")
    if mask:
        scores = draft.emit("Add", [scores, mask], f"{made}__masked")
    weights = draft.emit("Softmax", [scores], f"{made}__weights", axis=3)
    if len(shape) == 4:
        draft.emit("MatMul", [weights, values.name], made)
    else:
        found = draft.emit("MatMul", [weights, values.name], f"{made}__heads")
        found = draft.emit("Transpose", [found], f"{made}__tokens", perm=[0, 2, 1, 3])
        draft.reshape(found, made, shape)
    draft.nodes[-1].name = node.name or made


def _mask(
    draft: Draft, mask: str, made: str, scores: tuple[int, ...], dtype: np.dtype, *, causal: bool
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
