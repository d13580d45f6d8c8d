"""SOYBEAN's tilings of a dataflow graph: one cut by dynamic programming, k cuts recursively.

Tensors have *tilings*: divided along one dimension, or replicated. Given the tilings of its
tensors, the cost of an operation is that of converting them to and from one of its aligned forms
[section 4.2.1]. One cut divides a group of devices in two and minimises the sum [Eq. 3]; then each
half is cut again [Algorithm 1], until every group is one device. Groups may be uneven, so any
number of devices works: the total is the sum over all cuts, which for 2^k equal devices is that of
Theorem 1,

    c_k = sum over i of 2^(k-i) delta_i .
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol, Self, TypeVar

from coordinator.planning.papers.minsum import (
    Table,
    TooWideError,
    descend,
    greedy_order,
    minimise,
    total_of,
)
from models.tensors.arrays import Floats

# If a level has more states than this, another order is tried: 1 MB of float64.
_LEVEL_ENTRIES = 125_000


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation's part in a cut, for each of its aligned forms.

    `moved[i][form, tiling of tensors[i]]` are the bytes moved by converting that tensor;
    `fixed[form]` those that no tiling changes. The operation takes the form with the least sum:
    `least` are these sums, [tiling of tensors[0], tiling of tensors[1], ...], if they are few.
    """

    tensors: tuple[int, ...]
    moved: tuple[Floats, ...]
    fixed: Floats
    least: Floats | None = None


class Dataflow(Protocol):
    """A dataflow graph as one group of devices sees it, with the group's part of every tensor."""

    @property
    def sizes(self) -> Sequence[int]:
        """The number of possible tilings of each tensor."""
        ...

    def operations(self, shares: Sequence[float]) -> Sequence[Operation]:
        """The costs of all operations if the group is cut into parts with these shares."""
        ...

    def part(self, tilings: Sequence[int], shares: Sequence[float], index: int) -> Self:
        """The tile graph of part `index` of the group, after it was cut by these tilings."""
        ...


Flow = TypeVar("Flow", bound=Dataflow)


@dataclass(frozen=True, slots=True)
class Group:
    """Devices [start, stop), how they were cut, and what that cut moves; a leaf is one device."""

    start: int
    stop: int
    delta_bytes: float = 0.0
    tilings: tuple[int, ...] = ()
    parts: "tuple[Group, ...]" = ()

    @property
    def total_bytes(self) -> float:
        """Bytes moved by this cut and all cuts inside it [Theorem 1]."""
        return self.delta_bytes + sum(part.total_bytes for part in self.parts)


# The cheapest cut of a tile graph, by its id and the shares of its parts. The graph is stored with
# it, so that its id cannot be reused.
CutTable = dict[tuple[int, tuple[float, ...]], tuple[Dataflow, float, tuple[int, ...]]]


def k_cut(
    flow: Flow, weights: Sequence[float], start: int = 0, known: CutTable | None = None
) -> tuple[Group, list[Flow]]:
    """Cuts the devices in halves by number, each with a share in proportion to its weights, until
    each device is alone [Algorithm 1]; returns the cuts, and the tile graph of every device. Cuts
    that are `known` are not searched again, if tile graphs cache their parts.
    """
    known = {} if known is None else known
    stop = start + len(weights)
    if len(weights) == 1:
        return Group(start, stop), [flow]
    middle = (len(weights) + 1) // 2
    halves = (weights[:middle], weights[middle:])
    # With equal weights, a half is exactly one half, whatever their number.
    shares = tuple(fsum(half) / fsum(weights) for half in halves)
    if (id(flow), shares) not in known:
        known[id(flow), shares] = (flow, *one_cut(flow.sizes, flow.operations(shares)))
    _, delta_bytes, tilings = known[id(flow), shares]
    parts, leaves = [], []
    for index, (half, first) in enumerate(zip(halves, (start, start + middle), strict=True)):
        part, inside = k_cut(flow.part(tilings, shares, index), half, first, known)
        parts.append(part)
        leaves += inside
    return Group(start, stop, delta_bytes, tilings, tuple(parts)), leaves


def one_cut(sizes: Sequence[int], operations: Sequence[Operation]) -> tuple[float, tuple[int, ...]]:
    """The tilings that move the fewest bytes, and how many bytes that is [Eq. 3-5].

    The dynamic program walks the BFS levels of the graph of operations and tensors. A tensor is
    decided after the last level that mentions it, so the state is the tilings of tensors that
    levels share. If some level shares too many, the order of least fill is used instead, and the
    answer stays exact. Only if that is too wide as well, each tiling is merely optimal given the
    others.
    """
    tensors = len(sizes)
    tables = [
        Table(operation.tensors, operation.least)
        for operation in operations
        if operation.least is not None
    ]
    # Operations without a table of `least` choose their forms, as variables after the tensors.
    choosing = [o for o, operation in enumerate(operations) if operation.least is None]
    forms = {o: tensors + place for place, o in enumerate(choosing)}
    for o, form in forms.items():
        operation = operations[o]
        tables.append(Table((form,), operation.fixed))
        for tensor, moved in zip(operation.tensors, operation.moved, strict=True):
            tables.append(Table((form, tensor), moved))
    choices = (*sizes, *(len(operations[o].fixed) for o in choosing))
    try:
        cost, choice = minimise(
            choices, tables, _level_order(tensors, operations, forms), _LEVEL_ENTRIES
        )
    except TooWideError:
        try:
            cost, choice = minimise(choices, tables, greedy_order(choices, tables))
        except TooWideError:
            choice = descend(choices, tables)
            cost = total_of(tables, choice)
    return cost, choice[:tensors]


def levels(operations: Sequence[Operation]) -> list[list[int]]:
    """Operations by their distance from the first, where sharing a tensor makes operations
    adjacent: each level shares tensors only with adjacent levels. Separate graphs are processed
    side by side.
    """
    users: dict[int, list[int]] = {}
    for index, operation in enumerate(operations):
        for tensor in operation.tensors:
            users.setdefault(tensor, []).append(index)
    depth: dict[int, int] = {}
    for start in range(len(operations)):
        if start in depth:
            continue
        depth[start] = 0
        waiting = deque([start])
        while waiting:
            index = waiting.popleft()
            for tensor in operations[index].tensors:
                for other in users[tensor]:
                    if other not in depth:
                        depth[other] = depth[index] + 1
                        waiting.append(other)
    found: list[list[int]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for index in sorted(depth):
        found[depth[index]].append(index)
    return found


def _level_order(
    tensors: int, operations: Sequence[Operation], forms: Mapping[int, int]
) -> tuple[int, ...]:
    """The operations' `forms` level by level, and each tensor after the last level that uses it."""
    turn = {tensor: (-1, tensor, 1) for tensor in range(tensors)}
    for depth, level in enumerate(levels(operations)):
        for index in level:
            if index in forms:
                turn[forms[index]] = (depth, index, 0)
            turn.update({tensor: (depth, index, 1) for tensor in operations[index].tensors})
    return tuple(sorted(turn, key=turn.__getitem__))
