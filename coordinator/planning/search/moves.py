"""Moves for blocks that exchange through the host: each yields drafts that differ at one block."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.tile_shapes import shapes_of
from coordinator.planning.search.improve import Search
from coordinator.planning.search.slots import SlotForm, Slots, put
from coordinator.planning.search.tile_costs import TileShares
from models.cut.tiles import MapTile, grain
from models.tensors.boxes import Span


def cuts(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
    """Tries without the cut after the block, with that cut moved, or with another one inside."""
    here = replace(slots[index], shares=None)
    head, tail = slots[:index], slots[index + 1 :]
    if tail:
        there = replace(tail[0], shares=None)
        for kept in (here, there):
            yield (*head, replace(kept, start=here.start, end=there.end), *tail[1:])
        for step in (-1, 1, -2, 2):
            cut = Mark(here.end + step)
            if here.start < cut < there.end:
                yield (*head, replace(here, end=cut), replace(there, start=cut), *tail[1:])
    middle = (here.start + here.end) // 2
    inside = map(Mark, range(here.start + 1, here.end))
    for cut in sorted(inside, key=lambda cut: abs(cut - middle)):
        yield (*head, replace(here, end=cut), replace(here, start=cut), *tail)


def devices(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
    """Tries one device more, one less, a single one, others, or another order."""
    slot, draft = slots[index], search.draft(slots)
    used, every = slot.form.devices, range(len(search.stages.cluster.devices))
    others = [d for d in every if d not in used]
    for d in _distinct(search, others):
        yield _with(slots, index, (*used, d))
    if draft is not None and search.stages.overflow_bytes(draft):
        # Devices that are alike have other blocks to hold.
        for d in every:
            yield _with(slots, index, (d,))
    for d in _distinct(search, used):
        if len(used) > 1:
            yield _with(slots, index, tuple(each for each in used if each != d))
            yield _with(slots, index, (d,))
    for one in _distinct(search, used):
        for other in _distinct(search, others):
            if not _alike(search, one, other):
                yield _with(slots, index, tuple(other if d == one else d for d in used))
    for place in range(len(used) - 1):
        if not _alike(search, used[place], used[place + 1]):
            turned = (*used[:place], used[place + 1], used[place], *used[place + 2 :])
            yield _with(slots, index, turned)


def shapes(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
    """Tries another form, or the block with its barrier set or lifted."""
    slot = slots[index]
    forms: list[SlotForm] = []
    if slot.start in search.forms.connected and slot.end == slot.start + 1:
        forms = [
            replace(slot.form, how="in place", shape=None),
            replace(slot.form, how="inputs", shape=None),
            replace(slot.form, how="outputs", shape=None),
        ]
    elif len(slot.form.devices) > 1:
        forms = [
            replace(slot.form, how="in turn", shape=None),
            replace(slot.form, how="together", shape=None),
        ]
        shapes = shapes_of(len(slot.form.devices))
        forms += [replace(slot.form, how="bands", shape=shape) for shape in shapes[1:5]]
    for form in forms:
        if form != slot.form:
            yield put(slots, index, replace(slot, form=form, shares=None))
    yield put(slots, index, replace(slot, barrier=not slot.barrier))


def borders(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
    """Tries shifting rows from one strip to its neighbour."""
    slot = slots[index]
    draft = search.draft(slots)
    assert draft is not None
    shares, each = draft[index].shares, grain(search.forms.geometry.sizes[slot.end][0])
    if slot.form.how not in ("together", "in turn") or draft[index].direct:
        return
    for place in range(len(shares) - 1):
        for rows in (1, -1, 2, -2):
            shifted = _shifted(shares, place, rows * each)
            if shifted is not None:
                yield put(slots, index, replace(slot, shares=shifted))


def _alike(search: Search, one: int, other: int) -> bool:
    """Whether two devices are interchangeable."""
    a, b = (search.stages.cluster.devices[d] for d in (one, other))
    return (a.costs, a.link, a.host, a.memory_bytes) == (b.costs, b.link, b.host, b.memory_bytes)


def _distinct(search: Search, devices: Sequence[int]) -> list[int]:
    """One device of each kind."""
    found: list[int] = []
    for d in devices:
        if not any(_alike(search, d, other) for other in found):
            found.append(d)
    return found


def _with(slots: Slots, index: int, devices: tuple[int, ...]) -> Slots:
    """The slots with other devices for a block; a shape for another number of tiles becomes
    strips.
    """
    slot = slots[index]
    form = replace(slot.form, devices=devices)
    if form.shape is not None and form.shape.count != len(devices):
        form = replace(form, how="together", shape=None)
    return put(slots, index, replace(slot, form=form, shares=None))


def _shifted(shares: TileShares, place: int, rows: int) -> TileShares | None:
    """Moves `rows` rows from one strip to the previous one; None if that empties a strip."""
    (d, one), (e, other) = shares[place : place + 2]
    if not isinstance(one, MapTile) or not isinstance(other, MapTile):
        return None
    cut = one.rows.stop + rows
    if one.rows.stop != other.rows.start or not one.rows.start < cut < other.rows.stop:
        return None
    upper = MapTile(Span(one.rows.start, cut), one.cols)
    lower = MapTile(Span(cut, other.rows.stop), other.cols)
    return (*shares[:place], (d, upper), (e, lower), *shares[place + 2 :])
