"""Local search over drafts: whatever the simulator's rules say is better, is kept.

Moves: move, remove or add a cut; give a block to fewer, more, other or reordered devices; change
its shape; shift rows from one tile to its neighbour; set or lift a barrier. Memory comes first:
as long as a draft overfills a device, a move is better if it overfills less, so that a small
device ends with fewer blocks rather than with none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coordinator.planning.forms import Form, Forms
from coordinator.planning.loads import Shares
from coordinator.planning.shapes import shapes_of
from coordinator.planning.stages import Draft, Stage
from models.boxes import Span
from models.tiles import MapTile

# A gain below this is not worth another round.
_WORTHWHILE = 1e-4
Cost = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Slot:
    """A block between two marks, in a form; `shares` are its tiles where they were adjusted."""

    start: int
    end: int
    form: Form
    barrier: bool = False
    shares: Shares | None = None


Slots = tuple[Slot, ...]


class Improver:
    """Improves slots within a budget of simulated tasks."""

    def __init__(self, forms: Forms, effort: int) -> None:
        self.forms, self.stages = forms, forms.stages
        self.left = effort

    def draft(self, slots: Slots) -> Draft | None:
        """The stages of these slots; None if a form does not suit its block."""
        found: list[Stage] = []
        for slot in slots:
            stage: Stage | None
            if slot.shares is not None:
                stage = self.stages.stage(slot.start, slot.end, slot.shares, barrier=slot.barrier)
            else:
                before = found[-1] if found else None
                stage = self.forms.stage(
                    slot.start, slot.end, slot.form, before, barrier=slot.barrier
                )
            if stage is None:
                return None
            found.append(stage)
        # Where boxes pass between peers every task is assigned at once: nothing is held back.
        if any(stage.direct for stage in found) and any(stage.barrier for stage in found):
            return None
        return tuple(found)

    def cost(self, draft: Draft) -> Cost:
        """Bytes that don't fit, then seconds; smaller is better."""
        self.left -= sum(len(stage.shares) for stage in draft)
        return self.stages.overflow_bytes(draft), self.stages.latency_s(draft)

    def improve(self, slots: Slots) -> tuple[Slots, Cost]:
        """Takes moves that help, round after round, until none does or the budget is used."""
        draft = self.draft(slots)
        assert draft is not None, "the first draft suits its blocks"
        best = self.cost(draft)
        while True:
            before = best
            for moves in (self._cuts, self._devices, self._shapes, self._borders):
                slots, best = self._climb(slots, best, moves)
            if self.left <= 0 or not _is_better(best, before, _WORTHWHILE):
                return slots, best

    def _climb(self, slots: Slots, best: Cost, moves: object) -> tuple[Slots, Cost]:
        """Walks over the blocks; at each takes the moves that help, one after the other."""
        assert callable(moves)
        index = 0
        while index < len(slots) and self.left > 0:
            for candidate in moves(slots, index):
                draft = self.draft(candidate)
                if draft is None:
                    continue
                cost = self.cost(draft)
                if _is_better(cost, best):
                    slots, best = candidate, cost
                    break
                if self.left <= 0:
                    break
            else:
                index += 1
        return slots, best

    # ------------------------------------------------------------ moves

    def _cuts(self, slots: Slots, index: int) -> Iterator[Slots]:
        here = replace(slots[index], shares=None)
        head, tail = slots[:index], slots[index + 1 :]
        if tail:
            there = replace(tail[0], shares=None)
            for kept in (here, there):
                yield (*head, replace(kept, start=here.start, end=there.end), *tail[1:])
            for step in (-1, 1, -2, 2):
                cut = here.end + step
                if here.start < cut < there.end:
                    yield (*head, replace(here, end=cut), replace(there, start=cut), *tail[1:])
        middle = (here.start + here.end) // 2
        for cut in sorted(range(here.start + 1, here.end), key=lambda cut: abs(cut - middle)):
            yield (*head, replace(here, end=cut), replace(here, start=cut), *tail)

    def _devices(self, slots: Slots, index: int) -> Iterator[Slots]:
        slot = slots[index]
        used, every = slot.form.devices, range(len(self.stages.cluster.devices))
        others = [d for d in every if d not in used]
        for d in _distinct(self, others):
            yield _with(slots, index, (*used, d))
        for d in _distinct(self, used):
            if len(used) > 1:
                yield _with(slots, index, tuple(each for each in used if each != d))
                yield _with(slots, index, (d,))
        for one in _distinct(self, used):
            for other in _distinct(self, others):
                if not self._alike(one, other):
                    yield _with(slots, index, tuple(other if d == one else d for d in used))
        for place in range(len(used) - 1):
            if not self._alike(used[place], used[place + 1]):
                turned = (*used[:place], used[place + 1], used[place], *used[place + 2 :])
                yield _with(slots, index, turned)

    def _shapes(self, slots: Slots, index: int) -> Iterator[Slots]:
        slot = slots[index]
        forms: list[Form] = []
        if slot.start in self.forms.connected and slot.end == slot.start + 1:
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
                yield _put(slots, index, replace(slot, form=form, shares=None))
        yield _put(slots, index, replace(slot, barrier=not slot.barrier))

    def _borders(self, slots: Slots, index: int) -> Iterator[Slots]:
        slot = slots[index]
        draft = self.draft(slots)
        assert draft is not None
        shares = draft[index].shares
        if slot.form.how not in ("together", "in turn") or draft[index].direct:
            return
        for place in range(len(shares) - 1):
            for rows in (1, -1, 2, -2):
                shifted = _shifted(shares, place, rows)
                if shifted is not None:
                    yield _put(slots, index, replace(slot, shares=shifted))

    def _alike(self, one: int, other: int) -> bool:
        """Whether two devices can take each other's place."""
        a, b = self.stages.cluster.devices[one], self.stages.cluster.devices[other]
        return (a.costs, a.link, a.host, a.memory_bytes) == (
            b.costs,
            b.link,
            b.host,
            b.memory_bytes,
        )


def _distinct(improver: Improver, devices: Sequence[int]) -> list[int]:
    """One device of each kind."""
    found: list[int] = []
    for d in devices:
        if not any(improver._alike(d, other) for other in found):
            found.append(d)
    return found


def _with(slots: Slots, index: int, devices: tuple[int, ...]) -> Slots:
    """Another set of devices; a shape of another number of tiles becomes strips."""
    slot = slots[index]
    form = replace(slot.form, devices=devices)
    if form.shape is not None and form.shape.count != len(devices):
        form = replace(form, how="together", shape=None)
    return _put(slots, index, replace(slot, form=form, shares=None))


def _put(slots: Slots, index: int, slot: Slot) -> Slots:
    return (*slots[:index], slot, *slots[index + 1 :])


def _shifted(shares: Shares, place: int, rows: int) -> Shares | None:
    """`rows` rows from one strip to the one before it; None if that empties a strip."""
    (d, one), (e, other) = shares[place : place + 2]
    if not isinstance(one, MapTile) or not isinstance(other, MapTile):
        return None
    cut = one.rows.stop + rows
    if one.rows.stop != other.rows.start or not one.rows.start < cut < other.rows.stop:
        return None
    upper = MapTile(Span(one.rows.start, cut), one.cols)
    lower = MapTile(Span(cut, other.rows.stop), other.cols)
    return (*shares[:place], (d, upper), (e, lower), *shares[place + 2 :])


def _is_better(one: Cost, other: Cost, by: float = 1e-9) -> bool:
    """Less overflow, or as little and less time by a share `by`."""
    if one[0] != other[0]:
        return one[0] < other[0]
    return one[1] < other[1] * (1 - by)
