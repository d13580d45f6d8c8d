"""SOYBEAN's own graphs: matrices, their conversions, and what a cut moves, by algebra alone.

A matrix is split by rows (R) or columns (C), or replicated (r). A product has three aligned
forms: R x r -> R, r x C -> C, and C x R -> red, partial sums that must be added up
[section 4.2.1]. An operation on elements keeps R or C; all replicated would compute twice.

Converting costs "the area required minus the area that already exists on the device". For a
group of devices, `Part.need` and `Part.held` count both in bytes, summed over its devices: a cut
into parts with shares p multiplies them, for each part, by

    from -> to      R -> R    R -> C    R -> r    r -> R    r -> r    red, adding up
    need            p         p         1         p         1         p times the number of parts
    held            p         p p       p         p         1         p

and moves what `need - held` grows by. Splits of different cuts are independent of each other
(the paper's "orthogonal ways of partitioning"), so the factors commute: the order of the cuts
changes no total [Theorem 2]. Partial sums are added up into a split (each device fetches the
others' parts of its own share); if the tensor is to be replicated, that is a second conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coordinator.planning.papers.kcut_search import Operation

ROWS, COLUMNS, REPLICATED, PARTIAL = range(4)
TILINGS = 3

Counting = Literal["ghost", "whole"]
"""`ghost` counts as section 4.2.1 does. `whole` counts as section 2.2 does: what a device owns
already is counted too, as if everything went through a server that is none of the devices."""


@dataclass(frozen=True, slots=True)
class Form:
    """How each input must be tiled, and how the output then lies there."""

    needs: tuple[int, ...]
    makes: int


@dataclass(frozen=True, slots=True)
class MatrixOperation:
    """An operation on matrices (by index) and its aligned forms."""

    inputs: tuple[int, ...]
    output: int
    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of an operand that a group's devices need, and hold already, counted per device."""

    need: float
    held: float

    @property
    def missing(self) -> float:
        """Bytes that must be moved inside the group."""
        return self.need - self.held


def product(
    x: int, y: int, z: int, *, x_transposed: bool = False, y_transposed: bool = False
) -> MatrixOperation:
    """z = x y; a transposed operand is stored the other way round."""
    aligned = (
        ((ROWS, REPLICATED), ROWS),
        ((REPLICATED, COLUMNS), COLUMNS),
        ((COLUMNS, ROWS), PARTIAL),
    )
    forms = tuple(
        Form((_stored(a, x_transposed), _stored(b, y_transposed)), makes)
        for (a, b), makes in aligned
    )
    return MatrixOperation((x, y), z, forms)


def elementwise(inputs: Sequence[int], output: int) -> MatrixOperation:
    """An operation on elements: all matrices tiled alike, none replicated."""
    forms = tuple(Form((tiling,) * len(inputs), tiling) for tiling in (ROWS, COLUMNS))
    return MatrixOperation(tuple(inputs), output, forms)


@dataclass(frozen=True, slots=True)
class MatrixFlow:
    """A graph of matrix operations as one group of devices sees it.

    `parts[o]` are the operands of operation o: each input, the adding up of partial sums, and the
    output's way to the tiling of its tensor.
    """

    names: tuple[str, ...]
    flow: tuple[MatrixOperation, ...]
    parts: tuple[tuple[Part, ...], ...]
    counting: Counting = "ghost"

    @classmethod
    def of(
        cls,
        size_bytes: dict[str, float],
        flow: Sequence[MatrixOperation],
        counting: Counting = "ghost",
    ) -> MatrixFlow:
        """The graph before any cut: the group has everything that it needs."""
        sizes = [Part(size, size) for size in size_bytes.values()]
        parts = tuple(
            (*(sizes[i] for i in step.inputs), sizes[step.output], sizes[step.output])
            for step in flow
        )
        return cls(tuple(size_bytes), tuple(flow), parts, counting)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every matrix has the three basic tilings."""
        return (TILINGS,) * len(self.names)

    def operations(self, shares: Sequence[float]) -> list[Operation]:
        """Equation 2 for every operation, for all tilings of its matrices."""
        return [self._table(index, shares) for index in range(len(self.flow))]

    def part(self, tilings: Sequence[int], shares: Sequence[float], index: int) -> MatrixFlow:
        """One part of the group, each operation in its cheapest form."""
        forms = [self.best_form(o, tilings, shares) for o in range(len(self.flow))]
        return self.part_in(forms, tilings, shares, index)

    def part_in(
        self, forms: Sequence[int], tilings: Sequence[int], shares: Sequence[float], index: int
    ) -> MatrixFlow:
        """One part of the group, each operation in the given form."""
        parts = tuple(
            tuple(
                Part(part.need * need, part.held * held)
                for part, (need, held) in zip(
                    self.parts[o], self._factors(o, form, tilings, shares, index), strict=True
                )
            )
            for o, form in enumerate(forms)
        )
        return replace(self, parts=parts)

    def best_form(self, operation: int, tilings: Sequence[int], shares: Sequence[float]) -> int:
        """The aligned form that moves least."""
        costs = [
            self.moved(operation, form, tilings, shares)
            for form in range(len(self.flow[operation].forms))
        ]
        return costs.index(min(costs))

    def moved(
        self, operation: int, form: int, tilings: Sequence[int], shares: Sequence[float]
    ) -> float:
        """Bytes that this cut adds to an operation in one of its forms."""
        product = self.flow[operation]
        chosen = [tilings[matrix] for matrix in (*product.inputs, product.output)]
        added = self._summed(operation, form, shares)
        for place, tiling in enumerate(chosen):
            added += self._converted(operation, form, place, tiling, shares)
        return added

    def _converted(
        self, operation: int, form: int, place: int, tiling: int, shares: Sequence[float]
    ) -> float:
        """Bytes to convert the matrix at `place` (the output is last) from or to a tiling."""
        pairs = [self._conversion(operation, form, place, tiling, share) for share in shares]
        parts = self.parts[operation]
        return self._added(parts[place if place < len(parts) - 2 else -1], pairs)

    def _summed(self, operation: int, form: int, shares: Sequence[float]) -> float:
        """Bytes to add up partial sums, if the form makes any."""
        pairs = [self._sum(operation, form, share, len(shares)) for share in shares]
        return self._added(self.parts[operation][-2], pairs)

    def _added(self, part: Part, pairs: Sequence[tuple[float, float]]) -> float:
        after = sum(part.need * need - part.held * held for need, held in pairs)
        factor = len(pairs) / (len(pairs) - 1) if self.counting == "whole" else 1.0
        return (after - part.missing) * factor

    def _conversion(
        self, operation: int, form: int, place: int, tiling: int, share: float
    ) -> tuple[float, float]:
        product = self.flow[operation]
        if place < len(product.inputs):
            return _conversion(tiling, product.forms[form].needs[place], share)
        makes = product.forms[form].makes
        if makes == PARTIAL:
            makes = ROWS if tiling == REPLICATED else tiling
        return _conversion(makes, tiling, share)

    def _sum(self, operation: int, form: int, share: float, ways: int) -> tuple[float, float]:
        partial = self.flow[operation].forms[form].makes == PARTIAL
        return (share * ways if partial else share), share

    def _factors(
        self, operation: int, form: int, tilings: Sequence[int], shares: Sequence[float], index: int
    ) -> list[tuple[float, float]]:
        """Factors of `need` and `held` of every operand, for one part."""
        product, share = self.flow[operation], shares[index]
        chosen = [tilings[matrix] for matrix in (*product.inputs, product.output)]
        factors = [
            self._conversion(operation, form, place, tiling, share)
            for place, tiling in enumerate(chosen)
        ]
        return [*factors[:-1], self._sum(operation, form, share, len(shares)), factors[-1]]

    def _table(self, index: int, shares: Sequence[float]) -> Operation:
        product = self.flow[index]
        forms = range(len(product.forms))
        return Operation(
            (*product.inputs, product.output),
            tuple(
                np.array(
                    [
                        [self._converted(index, f, place, t, shares) for t in range(TILINGS)]
                        for f in forms
                    ]
                )
                for place in range(len(product.inputs) + 1)
            ),
            np.array([self._summed(index, f, shares) for f in forms]),
        )


def _stored(tiling: int, transposed: bool) -> int:
    """The tiling of a matrix as stored, of which the transpose must be tiled so."""
    return {ROWS: COLUMNS, COLUMNS: ROWS}.get(tiling, tiling) if transposed else tiling


def _conversion(source: int, target: int, share: float) -> tuple[float, float]:
    """Factors of `need` and `held` for one part."""
    if target == REPLICATED:
        return 1.0, 1.0 if source == REPLICATED else share
    if source in (target, REPLICATED):
        return share, share
    return share, share * share
