"""Moves for blocks that exchange from peer to peer: each yields drafts that differ a little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coordinator.planning.search.slots import SUMS, Slot, Slots, put

# By how many units an exchange is moved.
_SHIFTS = (-1, 1, -2, 2)
# Edge rows: a neighbour's 3x3 window reads one; two also cover a pool between.
_EDGE_ROWS = (2, 1)


def _with_edges(slot: Slot, rows: int) -> Slot:
    return replace(slot, form=replace(slot.form, edge_rows=rows))


def with_turn(slot: Slot, turn: int) -> Slot:
    """The slot whose longer strips are `turn` devices further on."""
    return replace(slot, form=replace(slot.form, turn=turn))


def edges_everywhere(slots: Slots) -> Iterator[Slots]:
    """Tries computing edge rows first in all strips."""
    for rows in _EDGE_ROWS:
        yield tuple(_with_edges(slot, rows) if slot.form.devices else slot for slot in slots)


def edges(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries another number of edge rows that are computed first."""
    form = slots[index].form
    for rows in (0, *_EDGE_ROWS) if form.how == "rows" else ():
        if rows != form.edge_rows:
            yield put(slots, index, _with_edges(slots[index], rows))


def merged(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries fusing the block with the next."""
    if index + 1 < len(slots):
        one, other = slots[index : index + 2]
        if one.form.how == other.form.how == "rows":
            fused = replace(other, start=one.start, peers=one.peers)
            yield (*slots[:index], fused, *slots[index + 2 :])


def shifted(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries exchanging a little earlier or later."""
    if index + 1 < len(slots):
        one, other = slots[index : index + 2]
        for step in _SHIFTS if one.form.how == other.form.how == "rows" else ():
            if one.start < one.end + step < other.end:
                cut = one.end + step
                moved = (replace(one, end=cut), replace(other, start=cut))
                yield (*slots[:index], *moved, *slots[index + 2 :])


def at_most(slot: Slot, devices: tuple[int, ...]) -> Slot:
    """The slot on these devices, if it is on more of them."""
    few = len(slot.form.devices) <= len(devices)
    return slot if few else replace(slot, form=replace(slot.form, devices=devices))


def in_pairs(slots: Slots) -> Slots:
    """Keeps every other exchange: each divided block is fused with the next divided one."""
    found: list[Slot] = []
    waits = False
    for slot in slots:
        if waits and slot.form.devices:
            found[-1] = replace(slot, start=found[-1].start)
            waits = False
        else:
            found.append(slot)
            waits = bool(slot.form.devices)
    return tuple(found)


def through_host(slots: Slots) -> Slots:
    """Makes readers of partial sums get them from the host, which adds them up."""
    return tuple(
        replace(slot, peers=False) if index and slots[index - 1].form.how in SUMS else slot
        for index, slot in enumerate(slots)
    )
