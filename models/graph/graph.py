"""A network as data: nodes in topological order, static shapes, and separate constants.

Every other module reads a `Graph`; `importer` makes it from ONNX.

A map (N, C, H, W) has its rows along axis 2 and its columns along axis 3. Exporters also write the
same rows elsewhere: as tokens (N, H x W, C), as windows, or as heads of an attention. A graph knows
where a tensor's rows lie, so that a device keeps its part of them all the way.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from onnx import NodeProto

from models.graph.ending import Ending
from models.graph.shapes import TensorInfo
from models.tensors.arrays import Arrays
from models.tensors.precision import Precision
from models.tensors.windows import Window

OPSETS = range(7, 29)
# The dimensions of a map.
CHANNELS, ROWS, COLS = 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One ONNX operator; a missing optional input is the empty string.

    `windows`: one per spatial dimension of a convolution or pool, empty for other operators.
    `refusal`: why the operator table's declaration does not fit this node; empty if it does.
    `timed_flop`: how many FLOPs of a convolution take as long as the node did, on one core
    (`models.run.timed`); 0 if it was not timed.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: NodeProto = field(repr=False)
    windows: tuple[Window, ...] = ()
    refusal: str = ""
    timed_flop: int = 0

    def ints(self, name: str, default: Iterable[int]) -> tuple[int, ...]:
        """An integer-list attribute."""
        return tuple(int(value) for value in self.attributes.get(name, default))

    def int(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(name, default))


class JoinedOutput(NamedTuple):
    """An output that no device computes: its parts, one after the other along an axis."""

    axis: int
    parts: tuple[str, ...]


def operators_behind(
    outputs: Iterable[str], maker: Mapping[str, NodeProto], passes: Callable[[str], bool]
) -> Iterator[str]:
    """The operators (of other domains with these before them) that make the outputs; behind those
    that `passes` lets through, those that make their inputs, too. `maker`: nodes by what they make.
    """
    waiting, seen = [*outputs], set[str]()
    while waiting:
        name = waiting.pop()
        node = maker.get(name) if name not in seen else None
        seen.add(name)
        if node is None:
            continue
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        yield operator
        if passes(operator):
            waiting += node.input


def results_of(
    outputs: Iterable[str], joined: Mapping[str, JoinedOutput], ending: Ending | None = None
) -> tuple[str, ...]:
    """What nodes have to make for these outputs: themselves, what the ending reads, or parts."""
    if ending is not None:
        outputs = ending.ahead(tuple(outputs))
    parts = (joined[output].parts if output in joined else (output,) for output in outputs)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(parts)))


@dataclass(frozen=True, eq=False)
class Graph:
    """A network with static shapes. `constants` holds every initialiser; `tensors` describes
    inputs, constants and everything that a node produces. `written`: the operators of the model
    as it was written, before some became simpler ones. `rows`: the axis along which a tensor's rows
    lie, where that is not axis 2; such a tensor has neither columns nor channels. `joined`: the
    outputs that are made of others when the answer is put together, and `ending`: the nodes that
    run then. `precision`: what its answers promise (`models.tensors.precision`). `file`: the
    SHA-256 of the ONNX file that it comes from; empty: it was built by code.
    """

    name: str
    opset: int
    opset_imports: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, TensorInfo]
    constants: Arrays
    written: frozenset[str] = frozenset()
    rows: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, JoinedOutput] = field(default_factory=dict)
    ending: Ending | None = None
    precision: Precision = "exact"
    file: str = ""

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Index of the node that makes each tensor."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the nodes that read each tensor."""
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(index)
        return {name: tuple(indices) for name, indices in readers.items()}

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of its constants, nearly all of them weights."""
        return sum(array.nbytes for array in self.constants.values())

    @cached_property
    def last_reader(self) -> Mapping[str, int]:
        """Index of the last node that reads each tensor; for an output of the network, the number
        of nodes.
        """
        last = {name: readers[-1] for name, readers in self.consumers.items()}
        return last | dict.fromkeys(self.results, len(self.nodes))

    @cached_property
    def results(self) -> tuple[str, ...]:
        """What nodes have to make for the outputs: these, or their parts."""
        return results_of(self.outputs, self.joined, self.ending)

    @cached_property
    def output_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the outputs, by name and in order."""
        return {name: self.shape(name) for name in self.outputs}

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Static shape of a tensor."""
        return self.tensors[tensor].shape

    def axis(self, tensor: str, which: int) -> int | None:
        """The axis of a tensor along which its channels, rows or columns lie; None if it has none.
        A vector's elements are its channels.
        """
        moved = self.rows.get(tensor)
        if moved is not None:
            return moved if which == ROWS else None
        return which if which < len(self.tensors[tensor].shape) else None

    def size(self, tensor: str, which: int) -> int:
        """The number of a tensor's channels, rows or columns; 1 if it has none."""
        axis = self.axis(tensor, which)
        return 1 if axis is None else self.tensors[tensor].shape[axis]
