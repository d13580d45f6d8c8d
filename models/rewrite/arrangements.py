"""Chains of Reshape and Transpose through which rows survive become one node.

ShuffleNet's channel shuffle, a detector's heads, and Darknet's reorg (with its wrap-around) take a
map apart and put it together again, with no rows in between. The effect of such a chain is found by
applying it to the indices of the elements.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnx import NodeProto, helper

from models.graph.shapes import TensorInfo
from models.operators.arrange import DOMAIN, OP, Step, rearranged
from models.rewrite.draft import attributes_of
from models.tensors.arrays import Ints

_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_MAP_AXES = (2, 3)
# Numbering the elements of larger tensors would take long, and much memory.
_MOST_ELEMENTS = 1 << 24
# An axis survives if its elements read, all in all, no more than this many times the input's.
_MOST_READ = 3


def arranged(
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorInfo],
    outputs: Iterable[str],
    rows: Container[str] = (),
) -> list[NodeProto]:
    """The nodes, with each chain that keeps rows along axis 2 as one; `rows` are the tensors whose
    rows lie elsewhere.
    """
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, []).append(index)
    ends = frozenset(outputs)
    gone: set[int] = set()
    whole: dict[int, NodeProto] = {}
    for index in range(len(nodes)):
        if index in gone:
            continue
        if nodes[index].input and nodes[index].input[0] in rows:
            continue
        chain = tuple(_chain(nodes, index, readers, ends))
        for length in range(len(chain), 0, -1):
            one = _as_one([nodes[k] for k in chain[:length]], tensors)
            if one is not None and one.output[0] not in rows:
                gone.update(chain[:length])
                whole[chain[length - 1]] = one
                break
    kept = (whole.get(k) or (None if k in gone else node) for k, node in enumerate(nodes))
    return [node for node in kept if node is not None]


def _chain(
    nodes: Sequence[NodeProto],
    index: int,
    readers: Mapping[str, Sequence[int]],
    ends: frozenset[str],
) -> Iterator[int]:
    """Nodes that only move elements, each the only reader of the one before."""
    while nodes[index].op_type in (*_RESHAPING, "Transpose"):
        yield index
        made = nodes[index].output[0]
        after = readers.get(made, ())
        if made in ends or len(after) != 1 or nodes[after[0]].input[0] != made:
            return
        index = after[0]


def _as_one(chain: Sequence[NodeProto], tensors: Mapping[str, TensorInfo]) -> NodeProto | None:
    """One node for a chain; None where rows don't survive."""
    source, made = chain[0].input[0], chain[-1].output[0]
    if source not in tensors:
        return None
    shape = tensors[source].shape
    out = tensors[made].shape
    small = np.prod(shape, dtype=np.int64) <= _MOST_ELEMENTS
    if len(shape) not in (3, 4) or len(out) < 3 or shape[2] < 2 or out[2] < 2 or not small:
        return None
    sizes = {np.prod(tensors[node.output[0]].shape, dtype=np.int64) for node in chain}
    if sizes != {np.prod(shape, dtype=np.int64)}:
        return None  # an invalid Reshape: onnxruntime will report it
    steps = [_step(node, tensors) for node in chain]
    reads = _survivors(shape, rearranged(shape, steps))
    if 2 not in reads:
        return None
    proto = helper.make_node(OP, [source], [made], name=chain[-1].name or made, domain=DOMAIN)
    for k, step in enumerate(steps):
        proto.attribute.append(helper.make_attribute(f"step{k}", [int(step.moves), *step.axes]))
    for axis, (first, last) in reads.items():
        proto.attribute.append(helper.make_attribute(f"first{axis}", first.tolist()))
        proto.attribute.append(helper.make_attribute(f"last{axis}", last.tolist()))
    return proto


def _step(node: NodeProto, tensors: Mapping[str, TensorInfo]) -> Step:
    shape = tensors[node.output[0]].shape
    if node.op_type in _RESHAPING:
        return Step(False, shape)
    backwards = tuple(reversed(range(len(shape))))
    return Step(True, tuple(attributes_of(node).get("perm", backwards)))


def _survivors(shape: Sequence[int], index: Ints) -> dict[int, tuple[Ints, Ints]]:
    """Per surviving output axis: start and stop, along the same input axis, of what each of its
    elements reads.
    """
    found = {}
    for axis in _MAP_AXES[: len(shape) - 2]:
        if axis >= index.ndim:
            continue
        stride = int(np.prod(shape[axis + 1 :], dtype=np.int64))
        places = index // stride % shape[axis]
        others = tuple(k for k in range(index.ndim) if k != axis)
        first, last = places.min(axis=others), places.max(axis=others) + 1
        if int((last - first).sum()) <= _MOST_READ * shape[axis]:
            found[axis] = (first, last)
    return found
