"""`halo`: tiles stay on their devices, which exchange only halos, peer to peer.

No task waits for more than its boxes: there are no barriers, and a device's edge rows are computed
first if that lets its neighbours continue sooner. The search starts from an exchange before every
unit, over all devices and over the fastest few, if these start better; and from the best drafts of
the dynamic program at several prices of an exchange: each leads to plans that the others miss, and
parts of two plans often make a better one. It improves the blocks one after the other, as long as
the event simulator's rules predict a gain:

* fuse a block with the next (fewer messages, some redundant computation);
* divide a block among fewer devices, down to one (small maps have fewer rows than devices);
* compute edge rows before the interior, or a strip of two rows in two tasks: a neighbour gets the
  first while the second is computed;
* where rows cannot be divided evenly, give the longer strips to other devices than in earlier
  blocks;
* cut a few blocks anew, where the dynamic program would at some price of an exchange;
* exchange a little earlier or later;
* divide layers with small maps and many weights over their channels;
* exchange once more anywhere, or once less before a fully connected layer, if nothing else helps.

At least one exchange remains: plans without any are `fused`'s, and `auto` compares the two.

What cannot be divided is gathered on the device that is best for it; fully connected layers are
divided over their output or input if that is faster. If some devices can't reach each other, halos
go through the host, or only devices that can reach each other take part, whichever is faster.
"""

import itertools
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import finished
from coordinator.planning.geometry.blocks import geometry_of
from coordinator.planning.planners.single import on_one
from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.decide import fitting
from coordinator.planning.search.improve import Cost, Search, is_better
from coordinator.planning.search.peer_moves import (
    at_most,
    crossed,
    edges,
    edges_everywhere,
    is_in_strips,
    merged,
    parted,
    shifted,
    strips,
    through_host,
    together_everywhere,
    united,
    with_edges,
    with_turn,
)
from coordinator.planning.search.recuts import PRICES, Recuts
from coordinator.planning.search.slots import How, Slot, SlotForm, Slots, put
from coordinator.planning.search.subsets import counts_of
from coordinator.planning.search.tables import Tables
from coordinator.planning.single_device import computing_s
from coordinator.tasks.plan import Block, Plan
from models.cut.tiles import places
from models.cut.units import Network, Unit, groups_rows
from models.graph.graph import ROWS
from models.operators import Kind, operator
from models.tensors.memory import megabytes

# Simulated tasks for the first round from each start, about a second; and how many times as many
# for improving and crossing what these lead to.
EFFORT = 70_000
_FINAL = 2
# A smaller improvement is not worth a change of the plan.
WORTHWHILE = 1e-4
# All devices are also tried as a start, unless the best start is faster by more than this share.
_FAR = 1 - 1 / 1.25
# Strips that finish together are a start where they are faster by more than this share.
_MUCH = 0.03
# Fewer devices are tried as a start until so many numbers in a row were no better than the best.
_HOPELESS = 3


def halo(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency that the search finds.

    Raises:
        Infeasible: no device, or none with enough memory.
    """
    return fitting(network, cluster, partial(_plan, network))


def _plan(network: Network, cluster: Cluster) -> Plan:
    if len(cluster.devices) < 2:
        return replace(on_one(network, cluster), strategy="halo")
    clusters = [cluster]
    if cluster.apart and len(cluster.mutual) > 1:
        clusters.append(replace(cluster, devices=cluster.mutual, apart=frozenset()))
    plans = [_finished(network, cluster, _Halo(network, subset).blocks()) for subset in clusters]
    return min(plans, key=lambda plan: plan.predicted_latency_s)


class _Halo:
    """One search: from exchanges everywhere to those that are worth it."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network, self.cluster = network, cluster
        geometry = geometry_of(network, fine=True)
        tables = Tables(geometry, cluster)
        self._marks, self._boundaries = geometry.marks, geometry.boundaries
        self._rows = geometry.axes[ROWS]
        self.stages = Stages(network, cluster, tables)
        self.forms = Forms(self.stages)
        self.search = Search(self.forms, EFFORT, WORTHWHILE, self._keeps_an_exchange)
        self._recuts = Recuts(self.forms)
        seconds = computing_s(network, cluster.devices)
        self._ranking = sorted(range(len(cluster.devices)), key=seconds.__getitem__)

    def blocks(self) -> list[Block]:
        """The blocks of the best draft found: of the starts after a coarse round of moves each, and
        of what improving and crossing these leads to.
        """
        drafts: list[Slots] = []
        for slots in self._begun():
            self.search.left = EFFORT
            drafts.append(self._coarsely(slots, self._cost(slots))[0])
        self.search.left = _FINAL * EFFORT
        draft = self.search.draft(self._best_of([*dict.fromkeys(drafts)]))
        assert draft is not None, "its cost was computed"
        return self.stages.blocks(draft)

    def _best_of(self, drafts: list[Slots]) -> Slots:
        """The best of these drafts and their descendants, as in a memetic algorithm: each draft is
        crossed with all others, and the best one that has not been improved is, as long as the
        effort lasts.
        """
        waiting: list[Slots] = []
        fresh = list(drafts)
        while True:
            for slots in fresh:
                child, cost = slots, self._cost(slots)
                for other in drafts:
                    child, cost = self.search.take(child, cost, crossed(child, other))
                drafts += [child] if child not in drafts else []
                waiting += dict.fromkeys((slots, child))
            if not waiting or self.search.left <= 0:
                return min(drafts, key=self._cost)
            best = min(waiting, key=self._cost)
            waiting.remove(best)
            better = self._improved(best, self._cost(best))
            fresh = [better] if better not in drafts else []
            drafts += fresh

    def _begun(self) -> list[Slots]:
        """An exchange everywhere, over as many devices as start best and over all, and the best
        drafts of the dynamic program over these, one for each number of edge rows.
        """
        starts = self._starts()
        best = min(starts, key=self._cost)
        begun = [best]
        if not is_better(self._cost(best), self._cost(starts[0]), _FAR):
            begun.append(starts[0])
        forms = [self._on(max(len(slot.form.devices) for slot in slots)) for slots in begun]
        for edge_rows in PRICES:
            drafts = [
                draft
                for form in dict.fromkeys(forms)
                for draft in self._recuts.drafts(with_edges(form, edge_rows))
                if self._keeps_an_exchange(best, draft)
            ]
            begun += [min(drafts, key=self._cost)] if drafts else []
        return [*dict.fromkeys(begun)]

    def _starts(self) -> list[Slots]:
        """An exchange everywhere, over all devices and ever fewer, until that no longer helps."""
        starts: list[Slots] = []
        best = 0
        for count in counts_of(len(self.cluster.devices))[:0:-1]:
            starts.append(self._start(count))
            if self._cost(starts[-1]) < self._cost(starts[best]):
                best = len(starts) - 1
            if len(starts) - 1 - best == _HOPELESS:
                break
        return starts

    def _cost(self, slots: Slots) -> Cost:
        return self.search.cost_of(slots)

    def _start(self, count: int) -> Slots:
        """An exchange wherever one is needed, over the `count` fastest devices."""
        divided, alone = self._on(count), SlotForm(())
        slots = [
            Slot(start, end, divided if unit.is_divisible else alone, peers=True)
            for (start, end), unit in zip(
                itertools.pairwise(self._marks), self.network.units, strict=True
            )
        ]
        return tuple(self._without_idle_cuts(slots))

    def _on(self, count: int) -> SlotForm:
        """Rows on the fastest devices, in the cluster's order, so that a device keeps its position
        when others are dropped.
        """
        return SlotForm(tuple(sorted(self._ranking[:count])), "rows")

    def _improved(self, slots: Slots, best: Cost) -> Slots:
        """A round of all moves, and if that gains nothing one more exchange anywhere, or one less
        before a fully connected layer.
        """
        improved, cost = self._finely(*self._coarsely(slots, best))
        if not is_better(cost, best, WORTHWHILE):
            improved, cost = self.search.climb(improved, cost, parted)
            improved, _ = self.search.sweep(improved, cost, self._in_place)
        return improved

    def _coarsely(self, slots: Slots, best: Cost) -> tuple[Slots, Cost]:
        """A round of the moves that gain most."""
        search = self.search
        slots, best = search.take(slots, best, edges_everywhere(slots))
        slots, best = search.take(slots, best, [together_everywhere(slots)], _MUCH)
        slots, best = search.climb(slots, best, merged)
        slots, best = self._on_fewer(slots, best)
        slots, best = search.sweep(slots, best, self._connected)
        # Not earlier: of several connected layers in one block, none could be divided.
        slots, best = search.climb(slots, best, united)
        slots, best = search.sweep(slots, best, edges)
        slots, best = search.sweep(slots, best, self._turns)
        return search.climb(slots, best, self._recuts.moves)

    def _finely(self, slots: Slots, best: Cost) -> tuple[Slots, Cost]:
        """A round of the others."""
        search = self.search
        slots, best = search.sweep(slots, best, shifted)
        slots, best = search.sweep(slots, best, strips)
        slots, best = search.take(slots, best, self._turned(slots))
        # The layers at the end of each block, whose maps are smallest, in slices of channels, from
        # the last block on: each device reads only its share of the weights, and all of the map.
        for index in range(len(slots) - 1, -1, -1):
            if is_in_strips(slots[index]) and search.left > 0:
                slots, best = search.take(slots, best, self._slices(slots, index))
        return slots, best

    def _keeps_an_exchange(self, slots: Slots, trial: Slots) -> bool:
        """A plan without any exchange would be another strategy's."""
        return self._exchanges(trial) or not self._exchanges(slots)

    def _exchanges(self, slots: Slots) -> bool:
        """Whether any halo is exchanged."""
        return not self.cluster.apart and any(
            slot.start > 0 and slot.peers and self._is_shared(slot) for slot in slots
        )

    def _is_shared(self, slot: Slot) -> bool:
        """Whether several devices compute: to finish together, some may get no rows."""
        if slot.form.how != "together":
            return len(slot.form.devices) > 1
        stage = self.forms.stage(slot)
        return stage is not None and len(set(stage.devices)) > 1

    # ------------------------------------------------------------ moves

    def _units(self, slot: Slot) -> Sequence[Unit]:
        return self.network.units[self._boundaries[slot.start] : self._boundaries[slot.end]]

    def _rows_of(self, slot: Slot) -> int:
        """The rows of the map at the end of a block."""
        return self.forms.geometry.sizes[slot.end][0]

    def _without_idle_cuts(self, slots: Sequence[Slot]) -> Iterator[Slot]:
        """Fuses units that need no exchange with the previous unit, which costs nothing: they read
        their own rows, or all rows of what travels at the same time as that for which the block
        already waits.
        """
        held: Slot | None = None
        starts: list[int] = []
        awaited: set[int] = set()
        for slot in slots:
            units = self._units(slot)
            reaches = any(map(_reaches, units))
            needed = set() if reaches else self._needed(units, starts)
            local = needed <= awaited and not reaches
            if held is not None and slot.form.devices and held.form == slot.form and local:
                held = replace(held, end=slot.end)
                continue
            if held is not None:
                yield held
            held, awaited = slot, needed
            starts.append(units[0].start)
        assert held is not None
        yield held

    def _needed(self, units: Sequence[Unit], starts: Sequence[int]) -> set[int]:
        """Which of the blocks that begin at these nodes make something that a unit reads all rows
        of.
        """
        graph = self.network.graph
        return {
            bisect(starts, graph.producer.get(name, -1))
            for unit in units
            for index in range(unit.start, unit.stop)
            for name, read in zip(
                graph.nodes[index].inputs, self._rows.of(index).reads, strict=True
            )
            if read is not None and read.is_everything
        }

    def _on_fewer(self, slots: Slots, best: Cost) -> tuple[Slots, Cost]:
        """Tries the last blocks, whose maps are small, on fewer devices, from the end."""
        for index in range(len(slots) - 1, -1, -1):
            form = slots[index].form
            if not form.devices or self.search.left <= 0:
                continue
            before = best
            rows = self._rows_of(slots[index])
            for count in sorted({rows, -(-rows // 2), 1} - {0}, reverse=True):
                if count < len(slots[index].form.devices):
                    fewer = self._on(count).devices
                    trial = (*slots[:index], *(at_most(slot, fewer) for slot in slots[index:]))
                    slots, best = self.search.take(slots, best, [trial])
            if best == before and rows > 2 * len(self.cluster.devices):
                break
        return slots, best

    def _connected(self, slots: Slots, index: int) -> Iterator[Slots]:
        """Tries a fully connected layer over its output or input, on all devices or where the rows
        before it are.
        """
        slot = slots[index]
        if not index or not self._is_connected(slot):
            return
        before = slots[index - 1].form.devices
        stays = SlotForm(before, "in place")
        hows: tuple[How, ...] = ("outputs", "inputs")
        others = [
            SlotForm(self._on(count).devices, how)
            for count in dict.fromkeys((len(self.cluster.devices), len(before)))
            for how in hows
        ]
        for form in (stays, *others):
            if len(form.devices) > 1:
                peers = slot.peers and form is stays
                yield through_host(put(slots, index, replace(slot, form=form, peers=peers)))

    def _in_place(self, slots: Slots, index: int) -> Iterator[Slots]:
        """Tries a fully connected layer where the rows of the last but one block would be if that
        reached up to it.
        """
        # Blocks that were united are fewer.
        if not 1 < index < len(slots) or not self._is_connected(slots[index]):
            return
        longer, layer = replace(slots[index - 2], end=slots[index].start), slots[index]
        if len(longer.form.devices) > 1:
            layer = replace(layer, form=SlotForm(longer.form.devices, "in place"))
            yield through_host((*slots[: index - 2], longer, layer, *slots[index + 1 :]))

    def _is_connected(self, slot: Slot) -> bool:
        """Whether it is a single fully connected layer."""
        return slot.end == slot.start + 1 and slot.start in self.forms.connected

    def _slices(self, slots: Slots, index: int) -> Iterator[Slots]:
        slot = slots[index]
        for count in dict.fromkeys((len(self.cluster.devices), len(slot.form.devices))):
            form = SlotForm(self._on(count).devices, "channels")
            for cut in self._marks[slot.start : slot.end][::-1]:
                rows = (replace(slot, end=cut),) if cut > slot.start else ()
                edges = itertools.pairwise(self._marks[cut : slot.end + 1])
                units = (Slot(start, end, form, peers=True) for start, end in edges)
                yield (*slots[:index], *rows, *units, *slots[index + 1 :])

    def _is_uneven(self, slot: Slot) -> bool:
        """Whether some devices' strips are longer than in proportion to their rate."""
        rows = places(self._rows_of(slot))
        count = len(slot.form.devices)
        return slot.form.how == "rows" and count > 1 and rows % count != 0

    def _turned(self, slots: Slots) -> Iterator[Slots]:
        """Tries the longer strips of each block on other devices than in the previous block."""
        uneven = [index for index, slot in enumerate(slots) if self._is_uneven(slot)]
        for step in range(1, len(self.cluster.devices) if uneven else 0):
            trial = slots
            for place, index in enumerate(uneven):
                turn = place * step % len(slots[index].form.devices)
                trial = put(trial, index, with_turn(slots[index], turn))
            yield trial

    def _turns(self, slots: Slots, index: int) -> Iterator[Slots]:
        slot = slots[index]
        for turn in range(len(slot.form.devices)) if self._is_uneven(slot) else ():
            yield put(slots, index, with_turn(slot, turn))


def _reaches(unit: Unit) -> bool:
    """Whether a unit reads neighbouring rows, or moves rows."""
    if any(w.reach > 1 or w.stride > 1 for node in unit.nodes for w in node.windows):
        return True
    if any(operator(node).heavy and operator(node).kind is Kind.LAYOUT for node in unit.nodes):
        return True
    return any(groups_rows(unit.graph, node) for node in unit.nodes)


def _finished(network: Network, cluster: Cluster, blocks: Sequence[Block]) -> Plan:
    reason = "every map has fewer rows than there are faster devices"
    plan = finished("halo", blocks, network, cluster, otherwise=reason)
    gain = plan.single_device_latency_s / plan.predicted_latency_s
    exchanges = sum(block.exchange == "peer" for block in blocks)
    note = (
        f"Halos travel from peer to peer at {exchanges} boundaries "
        f"({megabytes(plan.traffic.halo, 2)}); {gain:.2f} times as fast as one device."
    )
    return replace(plan, notes=(note,))
