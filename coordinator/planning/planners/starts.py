"""Starting drafts for searches: the dynamic program of Eq. 5 over two additive costs.

Eq. 3 adds up all transfers, as on one link; Eq. 6 lets all devices send at once. The truth lies
between. AOFL's own blocks and each device alone are always among the drafts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.tile_shapes import shapes_of
from coordinator.planning.planners.aofl import options_by_count
from coordinator.planning.search.connected import divided
from coordinator.planning.search.cuts import best_cuts, cheapest
from coordinator.planning.search.division_options import Option, alone, strips, tiled
from coordinator.planning.search.slots import Slot, SlotForm, Slots
from coordinator.planning.search.subsets import subsets_of
from coordinator.planning.search.tables import Rank, Tables
from models.cut.units import Network
from models.tensors.arrays import Floats
from protos.wire.facts import DeviceId

Costing = Callable[[Option], Floats]
# For each number of devices: strips, and shapes with up to this many fewer bands.
_SHAPES = 6


# Whether transfers share a link, or all run at once.
_SERIAL: Costing = attrgetter("seconds")
_PARALLEL: Costing = attrgetter("finish_s")


class Starts:
    """The options of one network on one cluster, and drafts made of them."""

    def __init__(self, network: Network, tables: Tables, places: Mapping[DeviceId, int]) -> None:
        self.tables, self.places = tables, places
        self.published = [option for options in options_by_count(tables) for option in options]
        members = subsets_of(tables)
        chosen = [[Rank(int(d)) for d in np.flatnonzero(row)] for row in members]
        rates = [1.0 / float(seconds) for seconds in tables.compute_s[:, 0, tables.last]]
        shaped = [
            (subset, shape) for subset in chosen for shape in shapes_of(len(subset))[1:_SHAPES]
        ]
        several = members[members.sum(axis=1) > 1]
        singles = alone(tables)
        connected = divided(network, tables, chosen)
        self.options = [
            *singles,
            *strips(tables, several),
            *tiled(tables, shaped, rates),
            *connected,
        ]
        self._widths = [
            *(1 for _ in singles),
            *(int(count) for count in several.sum(axis=1)),
            *(len(subset) for subset, _ in shaped),
            *(len(option.devices) for option in connected),
        ]

    def all(self) -> Iterator[Slots]:
        """Drafts, first those of the dynamic program."""
        for costs in (_SERIAL, _PARALLEL):
            for slots in self._best(self.options, costs):
                yield slots
                yield from _in_place(slots)
        for slots in self._best(self.published, _SERIAL):
            yield slots
            yield tuple(replace(slot, barrier=True) for slot in slots)
        first, last = self.tables.marks[0], self.tables.last
        for d, device in enumerate(self.tables.devices):
            if self.tables.fits[d, first, last]:
                yield (Slot(first, last, SlotForm((self.places[device.id],))),)

    def at_most(self, count: int, serial: bool) -> Iterator[Slots]:
        """The draft with at most `count` devices in any block, if there is one. `serial`: transfers
        share a link.
        """
        few = [
            option
            for option, width in zip(self.options, self._widths, strict=True)
            if width <= count
        ]
        yield from self._best(few, _SERIAL if serial else _PARALLEL)

    def unplaced(self) -> Mark:
        """The first mark after which no option can run a block."""
        least, _ = cheapest(self.options)
        return Mark(int(np.argmin(np.isfinite(least[:-1]).any(axis=1))))

    def _best(self, options: Sequence[Option], cost: Costing) -> Iterator[Slots]:
        least, option_of = cheapest(options, cost)
        _, cuts = best_cuts(least)
        if cuts:
            yield tuple(self._slot(start, end, option_of(start, end)) for start, end in cuts)

    def _slot(self, start: Mark, end: Mark, option: Option) -> Slot:
        shares = tuple((self.places[device.id], part) for device, part in option.shares(start, end))
        devices = tuple(d for d, _ in shares)
        if len(devices) == 1:
            return Slot(start, end, SlotForm(devices))
        if option.units:
            sums = option.units[0].part is not None
            return Slot(start, end, SlotForm(devices, "inputs" if sums else "outputs"))
        form = SlotForm(devices)
        if option.shape is not None and len(devices) == option.shape.count:
            form = SlotForm(devices, "bands", option.shape)
        return Slot(start, end, form, shares=shares)


def _in_place(slots: Slots) -> Iterator[Slots]:
    """The first divided fully connected layer, over the rows that its devices already have."""
    for index, slot in enumerate(slots):
        if index and slot.form.how in ("inputs", "outputs"):
            there = SlotForm(slots[index - 1].form.devices, "in place")
            yield (*slots[:index], replace(slot, form=there, shares=None), *slots[index + 1 :])
            return
