"""The minimum of a sum of cost tables over discrete choices, one variable at a time.

    min over x of  sum over tables t of  t(x restricted to t's variables)

Minimising out a variable joins the tables that mention it into one over their other variables. This
is exact, with time and memory exponential only in the widest joined table. SOYBEAN's dynamic
program over BFS levels is this method with the variables in the order of the levels; it also solves
the final graph after node and edge elimination.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from models.tensors.arrays import Floats, Ints

# Entries of the widest table that is joined: 64 MB of float64.
MAX_ENTRIES = 8_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs over the choices of some variables; axis i is variable `variables[i]`. Infinite entries
    exclude choices that are incompatible.
    """

    variables: tuple[int, ...]
    costs: Floats


class TooWideError(Exception):
    """An exact solution would need a table of `entries` numbers."""

    def __init__(self, entries: int) -> None:
        super().__init__(f"a table of {entries} entries")
        self.entries = entries


def minimise(
    sizes: Sequence[int],
    tables: Iterable[Table],
    order: Sequence[int],
    most_entries: float = math.inf,
) -> tuple[float, tuple[int, ...]]:
    """The least total and the choices that reach it.

    `sizes[v]` is the number of choices of variable v; `order` lists every variable once.

    Raises:
        TooWideError: minimising in this order joins a table of more than `most_entries`, or than
            MAX_ENTRIES.
    """
    pending = dict(enumerate(tables))
    entries = widest(sizes, pending.values(), order)
    if entries > min(most_entries, MAX_ENTRIES):
        raise TooWideError(entries)
    mentions: list[list[int]] = [[] for _ in sizes]
    for number, table in pending.items():
        for variable in table.variables:
            mentions[variable].append(number)
    undo: list[tuple[int, tuple[int, ...], Ints]] = []
    total = 0.0
    for number, variable in enumerate(order, start=len(pending)):
        mine = [pending.pop(index) for index in mentions[variable] if index in pending]
        others = tuple(dict.fromkeys(v for t in mine for v in t.variables if v != variable))
        joined = _join(mine, (*others, variable), sizes)
        undo.append((variable, others, joined.argmin(axis=-1)))
        best = joined.min(axis=-1)
        if others:
            pending[number] = Table(others, best)
            for other in others:
                mentions[other].append(number)
        else:
            total += float(best)
    choice = [0] * len(sizes)
    for variable, others, argmin in reversed(undo):
        choice[variable] = int(argmin[tuple(choice[other] for other in others)])
    return total + sum(float(table.costs) for table in pending.values()), tuple(choice)


def greedy_order(sizes: Sequence[int], tables: Iterable[Table]) -> tuple[int, ...]:
    """An order of variables in which each step joins the smallest possible table."""
    joined = _neighbours(len(sizes), tables)
    entries = {v: _entries(v, joined, sizes) for v in range(len(sizes))}
    order = []
    while entries:
        variable = min(entries, key=entries.__getitem__)
        del entries[variable]
        order.append(variable)
        for other in _minimise_out(variable, joined):
            entries[other] = _entries(other, joined, sizes)
    return tuple(order)


def widest(sizes: Sequence[int], tables: Iterable[Table], order: Sequence[int]) -> int:
    """Entries of the largest table that `minimise` would join in this order."""
    joined = _neighbours(len(sizes), tables)
    found = 1
    for variable in order:
        found = max(found, _entries(variable, joined, sizes))
        _minimise_out(variable, joined)
    return found


def descend(sizes: Sequence[int], tables: Sequence[Table]) -> tuple[int, ...]:
    """Choices that no change of a single variable improves; used if `minimise` is too wide.

    Descends from several starts, one for each choice number given to all variables, and returns the
    best.
    """
    mine = [[table for table in tables if v in table.variables] for v in range(len(sizes))]
    found: list[list[int]] = [
        _descend([min(start, size - 1) for size in sizes], sizes, mine)
        for start in range(max(sizes, default=1))
    ]
    totals = [total_of(tables, choice) for choice in found]
    return tuple(found[totals.index(min(totals))])


def _descend(choice: list[int], sizes: Sequence[int], mine: Sequence[Sequence[Table]]) -> list[int]:
    before: list[int] = []
    while choice != before:
        before = list(choice)
        for variable in range(len(sizes) - 1, -1, -1):
            costs = np.zeros(sizes[variable])
            for table in mine[variable]:
                index = tuple(slice(None) if v == variable else choice[v] for v in table.variables)
                costs = costs + table.costs[index]
            if costs[choice[variable]] > costs.min():
                choice[variable] = int(costs.argmin())
    return choice


def total_of(tables: Iterable[Table], choice: Sequence[int]) -> float:
    """The sum of the tables for these choices."""
    return float(sum(table.costs[tuple(choice[v] for v in table.variables)] for table in tables))


def _neighbours(count: int, tables: Iterable[Table]) -> list[set[int]]:
    """For each variable, the others that share a table with it."""
    joined: list[set[int]] = [set() for _ in range(count)]
    for table in tables:
        for variable in table.variables:
            joined[variable].update(table.variables)
    for variable, others in enumerate(joined):
        others.discard(variable)
    return joined


def _minimise_out(variable: int, joined: Sequence[set[int]]) -> set[int]:
    """Removes a variable, after which its neighbours share a table; returns them."""
    others = joined[variable]
    for other in others:
        joined[other] |= others
        joined[other] -= {variable, other}
    return others


def _entries(variable: int, joined: Sequence[set[int]], sizes: Sequence[int]) -> int:
    return sizes[variable] * math.prod(sizes[other] for other in joined[variable])


def _join(tables: Sequence[Table], variables: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """The sum of the tables over all these variables."""
    joined = np.zeros(tuple(sizes[v] for v in variables))
    for table in tables:
        axes = sorted(
            range(len(table.variables)), key=lambda i: variables.index(table.variables[i])
        )
        there = {table.variables[axis] for axis in axes}
        spread = tuple(sizes[v] if v in there else 1 for v in variables)
        joined += table.costs.transpose(axes).reshape(spread)
    return joined
