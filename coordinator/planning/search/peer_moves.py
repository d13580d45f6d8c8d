"""Moves for blocks that exchange from peer to peer: each yields drafts that differ a little."""

from collections.abc import Iterator
from dataclasses import replace

from coordinator.planning.geometry.marks import Mark
from coordinator.planning.search.slots import SUMS, How, Slot, SlotForm, Slots, put

# By how many units an exchange is moved.
_SHIFTS = (-1, 1, -2, 2)
# Edge rows: a neighbour's 3x3 window reads one; two also cover a pool between.
_EDGE_ROWS = (2, 1)
# Forms that divide a block into strips of rows, whatever their heights.
STRIPS: tuple[How, ...] = ("rows", "together")


def with_edges(form: SlotForm, rows: int) -> SlotForm:
    """The form with so many edge rows, which are computed first."""
    return replace(form, edge_rows=rows)


def with_turn(slot: Slot, turn: int) -> Slot:
    """The slot whose longer strips are `turn` devices further on."""
    return replace(slot, form=replace(slot.form, turn=turn))


def edges_everywhere(slots: Slots) -> Iterator[Slots]:
    """Tries computing edge rows first in all strips."""
    for rows in _EDGE_ROWS:
        yield tuple(
            replace(slot, form=with_edges(slot.form, rows)) if slot.form.devices else slot
            for slot in slots
        )


def together_everywhere(slots: Slots) -> Slots:
    """Strips that finish together in all blocks."""
    return tuple(_in_strips(slot, "together") for slot in slots)


def strips(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries strips that finish together instead of those in proportion to rates, or vice versa."""
    slot = slots[index]
    for how in STRIPS if is_in_strips(slot) else ():
        if how != slot.form.how:
            yield put(slots, index, _in_strips(slot, how))


def _in_strips(slot: Slot, how: How) -> Slot:
    if not is_in_strips(slot):
        return slot
    return replace(slot, form=replace(slot.form, how=how, turn=0))


def edges(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries another number of edge rows that are computed first."""
    form = slots[index].form
    for rows in (0, *_EDGE_ROWS) if form.how in STRIPS else ():
        if rows != form.edge_rows:
            yield put(slots, index, replace(slots[index], form=with_edges(form, rows)))


def is_in_strips(slot: Slot) -> bool:
    """Whether it is divided into strips, if only one: no device means the best one alone."""
    return bool(slot.form.devices) and slot.form.how in STRIPS


def _are_alike(one: Slot, other: Slot) -> bool:
    """Whether both are divided into strips in the same way."""
    return is_in_strips(one) and is_in_strips(other) and one.form.how == other.form.how


def merged(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries fusing the block with the next, if both are in strips."""
    if index + 1 < len(slots) and _are_alike(*slots[index : index + 2]):
        yield _fused(slots, index)


def united(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries fusing the block with the next, if each is on one device."""
    if index + 1 < len(slots) and slots[index].form == slots[index + 1].form == SlotForm(()):
        yield _fused(slots, index)


def _fused(slots: Slots, index: int) -> Slots:
    one, other = slots[index : index + 2]
    fused = replace(other, start=one.start, peers=one.peers)
    return (*slots[:index], fused, *slots[index + 2 :])


def shifted(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries exchanging a little earlier or later."""
    if index + 1 < len(slots):
        one, other = slots[index : index + 2]
        for step in _SHIFTS if _are_alike(one, other) else ():
            if one.start < one.end + step < other.end:
                cut = Mark(one.end + step)
                moved = (replace(one, end=cut), replace(other, start=cut))
                yield (*slots[:index], *moved, *slots[index + 2 :])


def parted(slots: Slots, index: int) -> Iterator[Slots]:
    """Tries an exchange within the block."""
    slot = slots[index]
    inside = range(slot.start + 1, slot.end) if is_in_strips(slot) else ()
    for cut in map(Mark, inside):
        for how in STRIPS:
            rest = _in_strips(replace(slot, start=cut, peers=True), how)
            yield (*slots[:index], replace(slot, end=cut), rest, *slots[index + 1 :])


def crossed(one: Slots, other: Slots) -> Iterator[Slots]:
    """Tries the first part of a draft with the rest of another, wherever both cut at one mark."""
    after = {slot.end: index for index, slot in enumerate(one[:-1], 1)}
    for there, slot in enumerate(other[:-1], 1):
        here = after.get(slot.end)
        if here is not None and one != other:
            yield through_host((*one[:here], *other[there:]))
            yield through_host((*other[:there], *one[here:]))


def at_most(slot: Slot, devices: tuple[int, ...]) -> Slot:
    """The slot on these devices, if it is on more of them."""
    few = len(slot.form.devices) <= len(devices)
    return slot if few else replace(slot, form=replace(slot.form, devices=devices))


def through_host(slots: Slots) -> Slots:
    """Makes readers of partial sums get them from the host, which adds them up."""
    return tuple(
        replace(slot, peers=False) if index and slots[index - 1].form.how in SUMS else slot
        for index, slot in enumerate(slots)
    )
