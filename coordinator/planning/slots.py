"""Drafts in the words of a search: blocks between marks, each on some devices in some form.

A form keeps its meaning when a cut moves: strips finish together wherever the block ends, grids
and bands stay in proportion to rates. `Forms` makes tiles of it, `Search` improves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coordinator.planning.loads import Shares
from coordinator.planning.shapes import Shape

How = Literal["together", "in turn", "bands", "rows", "outputs", "inputs", "in place"]
# Whoever reads what these make reads sums, which are added up at the host.
SUMS: tuple[How, ...] = ("in place", "inputs")


@dataclass(frozen=True, slots=True)
class Form:
    """Devices (indices into the cluster's, in the order of their tiles; none: the one that is best
    at the block) and how they share.

    `together`: strips that would finish at the same time if all were sent at once [Eq. 6];
    `in turn`: the same, but each is sent after those before it, as one link does; `bands`: tiles
    of `shape` in proportion to rates; `rows`: strips in proportion to rates, whose `edge_rows` at
    either end are computed first, the longer ones moved on by `turn` places; `outputs`, `inputs`,
    `in place`: a fully connected layer over its output, its input, or over the rows that its
    devices have already.
    """

    devices: tuple[int, ...]
    how: How = "together"
    shape: Shape | None = None
    edge_rows: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """A block between two marks, in a form; `shares` are its tiles where they were adjusted.
    `peers`: its devices get its input from each other, where they can.
    """

    start: int
    end: int
    form: Form
    barrier: bool = False
    shares: Shares | None = None
    peers: bool = False


Slots = tuple[Slot, ...]


def put(slots: Slots, index: int, slot: Slot) -> Slots:
    """The slots with another one in a place."""
    return (*slots[:index], slot, *slots[index + 1 :])
