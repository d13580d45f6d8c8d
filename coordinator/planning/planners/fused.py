"""`fused`: fused blocks as in AOFL, with a search over everything that AOFL fixes.

It searches which devices to use, in which order, in which shape (strips that finish together,
uneven grids, bands), fully connected layers over their output or input, with or without barriers.
Drafts from the dynamic program of Eq. 5, AOFL's own blocks, and each device alone are costed by the
event simulator's rules; the best are improved by the same rules, and the simulator itself chooses
among the results.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import finished
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.tile_shapes import shapes_of
from coordinator.planning.plan_memory import overfilled, too_little_memory
from coordinator.planning.planners.reasons import Reasons
from coordinator.planning.planners.starts import Starts
from coordinator.planning.search.block_costs import PlanDraft, Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.decide import check_room, no_room
from coordinator.planning.search.improve import Cost, Search, is_better
from coordinator.planning.search.slots import SlotForm, Slots, put
from coordinator.planning.search.tables import tables_of
from coordinator.planning.search.tile_costs import TileShares
from coordinator.tasks.plan import Plan
from models.cut.tiles import MapTile, grain
from models.cut.units import Network
from models.tensors.boxes import Span

# Simulated tasks per search: about 0.3 s for eight devices.
EFFORT = 12_000
# Drafts that are improved, the best first, until the budget is used.
_STARTS = 3
# Plans that the simulator itself compares, and by how much they may be worse than the best draft.
_FINALISTS = 4
_CLOSE = 1.03
# A smaller gain is not worth another round.
_WORTHWHILE = 1e-4


def fused(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency that the search finds.

    Raises:
        Infeasible: no device, or none with enough memory for some layer.
    """
    return _Fused(network, cluster).plan()


class _Fused:
    """One search: drafts, their improvement, and the plan."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        self.tables = tables_of(network, cluster)
        self.stages = Stages(network, cluster, self.tables)
        forms = Forms(self.stages)
        check_room(network, self.tables, forms.connected)
        self.search = Search(forms, EFFORT)
        places = {device.id: d for d, device in enumerate(cluster.devices)}
        self.starts = Starts(network, self.tables, places)

    def plan(self) -> Plan:
        """The best of the improved drafts, by the simulator itself."""
        pool: dict[PlanDraft, Cost] = {}
        slots_of: dict[PlanDraft, Slots] = {}
        for slots in self.starts.all():
            self._add(pool, slots_of, slots)
        if not pool:
            raise no_room(self.network, self.tables, self.starts.unplaced())
        self.search.left = EFFORT
        for draft in sorted(pool, key=pool.__getitem__)[:_STARTS]:
            if self.search.left > 0:
                better = self._improved(slots_of[draft])
                self._add(pool, slots_of, better)
        ranked = sorted(pool, key=pool.__getitem__)
        excess, best_s = pool[ranked[0]]
        # What a draft takes is an estimate, what its plan takes is known.
        if excess and (over := overfilled(self.network, self.cluster, self._plan(ranked[0]))):
            raise too_little_memory(self.network, self.cluster, over)
        close = [draft for draft in ranked if pool[draft] <= (excess, best_s * _CLOSE)]
        plans = {draft: self._plan(draft) for draft in close[:_FINALISTS]}
        chosen = min(plans, key=lambda draft: plans[draft].predicted_latency_s)
        reasons = Reasons(self.search, self.starts, slots_of[chosen], plans[chosen])
        return replace(plans[chosen], notes=reasons.notes(), unused=reasons.unused())

    def _improved(self, slots: Slots) -> Slots:
        """Improves slots in rounds of moves, until none helps or the budget is used."""
        best = self.search.cost_of(slots)
        while True:
            before = best
            for moves in (_cuts, _devices, _shapes, _borders):
                slots, best = self.search.climb(slots, best, partial(moves, self.search))
            if self.search.left <= 0 or not is_better(best, before, _WORTHWHILE):
                return slots

    def _add(
        self, pool: dict[PlanDraft, Cost], slots_of: dict[PlanDraft, Slots], slots: Slots
    ) -> None:
        draft = self.search.draft(slots)
        if draft is not None and draft not in pool:
            pool[draft], slots_of[draft] = self.search.cost(draft), slots

    def _plan(self, draft: PlanDraft) -> Plan:
        return finished("fused", self.stages.blocks(draft), self.network, self.cluster)


# ------------------------------------------------- moves: drafts that differ at one block


def _cuts(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
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


def _devices(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
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
            yield _with(slots, index, tuple(rank for rank in used if rank != d))
            yield _with(slots, index, (d,))
    for one in _distinct(search, used):
        for other in _distinct(search, others):
            if not _alike(search, one, other):
                yield _with(slots, index, tuple(other if d == one else d for d in used))
    for place in range(len(used) - 1):
        if not _alike(search, used[place], used[place + 1]):
            turned = (*used[:place], used[place + 1], used[place], *used[place + 2 :])
            yield _with(slots, index, turned)


def _shapes(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
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


def _borders(search: Search, slots: Slots, index: int) -> Iterator[Slots]:
    """Tries shifting rows from one strip to its neighbour."""
    slot = slots[index]
    draft = search.draft(slots)
    assert draft is not None
    shares, step_rows = draft[index].shares, grain(search.forms.geometry.sizes[slot.end][0])
    if slot.form.how not in ("together", "in turn") or draft[index].direct:
        return
    for place in range(len(shares) - 1):
        for rows in (1, -1, 2, -2):
            shifted = _shifted(shares, place, rows * step_rows)
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
