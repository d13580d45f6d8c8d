"""Drafts as searches handle them: blocks between marks, each on some devices in some form.

A form keeps its meaning when a cut moves: strips finish together wherever the block ends, grids and
bands stay in proportion to rates. `Forms` makes tiles of a form, `Search` improves drafts.
"""

from dataclasses import dataclass
from typing import Literal

from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.tile_shapes import TileShape
from coordinator.planning.search.tile_costs import TileShares

How = Literal["together", "in turn", "bands", "rows", "channels", "outputs", "inputs", "in place"]
# Forms that yield partial sums, which the host adds up.
SUMS: tuple[How, ...] = ("in place", "inputs")


@dataclass(frozen=True, slots=True)
class SlotForm:
    """Devices (indices into the cluster's, in the order of their tiles; none: the best one for the
    block) and how they share it.

    `together`: strips that would finish at the same time if all were sent at once [Eq. 6]; `in
    turn`: the same, if they are sent one after the other, as over one link; `bands`: tiles of
    `shape` in proportion to rates; `rows`: strips in proportion to rates, with the longer ones
    shifted by `turn` places; `channels`: slices
    of a unit's output channels in proportion to rates; `outputs`, `inputs`, `in place`: a fully
    connected layer divided over its output, over its input, or over the rows that its devices
    already have. The `edge_rows` at either end of a strip are computed first.
    """

    devices: tuple[int, ...]
    how: How = "together"
    shape: TileShape | None = None
    edge_rows: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """A block between two marks in a form; `shares` are its tiles if they were adjusted. `peers`:
    its devices get their input from each other where possible.
    """

    start: Mark
    end: Mark
    form: SlotForm
    barrier: bool = False
    shares: TileShares | None = None
    peers: bool = False


Slots = tuple[Slot, ...]


def put(slots: Slots, index: int, slot: Slot) -> Slots:
    """The slots with one of them replaced."""
    return (*slots[:index], slot, *slots[index + 1 :])
