"""SOYBEAN's conversions on a network's units: what one cut moves, on the real boxes.

Tensors are those that units exchange; weights stay where they are computed with and cost nothing.
A unit's aligned forms are the splits of its output along rows, columns or channels (rows and
columns take the place of the batch, of which an inference has one), and, for a fully connected
layer, partial sums over parts of its input [section 4.2.1: R, C and red]. What cannot be split
goes to the group's first half. A tensor is tiled by one of these splits, or replicated.

The cost of a cut is what the group's devices miss afterwards, beyond what the group missed:
the boxes that they read less the boxes that they own, halos included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.layered import Floats, makers
from coordinator.planning.layouts import Divider, UnitTile, divider_of
from coordinator.planning.partition import channel_step, cut_span, owned_boxes
from models.boxes import Box, Span
from models.partial import summed_input
from models.units import Network, Unit

# Tilings of a tensor and forms of a unit: the axes 1, 2, 3 and these.
REPLICATED, FIRST_HALF, PARTIAL = 0, 4, 5
TILINGS = 5


@dataclass(frozen=True, eq=False)
class Setting:
    """What all groups of one network share. `makers`: the unit that makes each tensor that units
    exchange or that is an output; the request's inputs come from outside any group.
    """

    network: Network
    divider: Divider
    makers: Mapping[str, int]

    @classmethod
    def of(cls, network: Network) -> Setting:
        """The setting of a network."""
        return cls(network, divider_of(network), makers(network))

    def itemsize(self, tensor: str) -> int:
        """Bytes per element on the wire."""
        return self.network.graph.tensors[tensor].wire_itemsize


class Cut:
    """One way to share a group's work among its halves, for all forms and tilings."""

    def __init__(
        self,
        setting: Setting,
        tiles: Sequence[UnitTile | None],
        own: Mapping[str, Box],
        shares: Sequence[float],
    ) -> None:
        self.setting = setting
        self.tiles = tiles
        self.own = own
        self.shares = shares
        self.active = [unit for unit, tile in enumerate(tiles) if tile is not None]
        self.forms = {unit: self._forms(unit) for unit in self.active}
        self._owned: dict[tuple[str, int], list[Box]] = {}
        self._known: dict[int, tuple[tuple[str, ...], dict[int, list[Floats]]]] = {}

    def conversions(self, unit: int) -> tuple[tuple[str, ...], dict[int, list[Floats]]]:
        """The unit's tensors; per form, bytes that come from outside (one number), then what each
        tensor moves in each of its tilings.
        """
        if unit not in self._known:
            self._known[unit] = self._conversions(unit)
        return self._known[unit]

    def _conversions(self, unit: int) -> tuple[tuple[str, ...], dict[int, list[Floats]]]:
        tile = self.tiles[unit]
        assert tile is not None
        reads = [name for name in tile.reads if name in self.own]
        made = [name for name in tile.boxes if name in self.own]
        return (*reads, *made), {
            form: [
                self._from_outside(tile, halves),
                *(self._fetched(tile, halves, name) for name in reads),
                *(self._stored(tile, form, halves, name) for name in made),
            ]
            for form, halves in self.forms[unit].items()
        }

    def owned(self, tensor: str, tiling: int) -> list[Box]:
        """What each half owns of a tensor."""
        key = (tensor, tiling)
        if key not in self._owned:
            self._owned[key] = self._divided(tensor, tiling)
        return self._owned[key]

    def _from_outside(self, tile: UnitTile, halves: Sequence[UnitTile | None]) -> Floats:
        """Bytes of the request's inputs that the halves read beyond what the group reads."""
        added = 0
        for name, box in tile.reads.items():
            if name not in self.own:
                read = sum(half.reads[name].volume for half in halves if half is not None)
                added += (read - box.volume) * self.setting.itemsize(name)
        return np.array([added], dtype=np.float64)

    def _fetched(self, tile: UnitTile, halves: Sequence[UnitTile | None], tensor: str) -> Floats:
        """Bytes to get what the halves read from where it lies, by its tiling."""
        needs = [None if half is None else half.reads[tensor] for half in halves]
        before = _missing(tile.reads[tensor], self.own[tensor])
        return self._added(tensor, before, needs)

    def _stored(
        self, tile: UnitTile, form: int, halves: Sequence[UnitTile | None], tensor: str
    ) -> Floats:
        """Bytes to bring what the halves make to where it shall lie, by its tiling."""
        own, item = self.own[tensor], self.setting.itemsize(tensor)
        if form == PARTIAL:
            # Each half fetches the other's sums of its own half; then they may be replicated.
            added = np.full(TILINGS, float(tile.boxes[tensor].volume * item))
            added[REPLICATED] += own.volume * item
            return added
        made = [None if half is None else half.boxes[tensor] for half in halves]
        before = _missing(own, tile.boxes[tensor])
        after = [
            sum(
                _missing(box, part)
                for box, part in zip(self.owned(tensor, tiling), made, strict=True)
            )
            for tiling in range(TILINGS)
        ]
        return (np.array(after, dtype=np.float64) - before) * item

    def _added(self, tensor: str, before: int, needs: Sequence[Box | None]) -> Floats:
        after = [
            sum(
                _missing(need, box)
                for need, box in zip(needs, self.owned(tensor, tiling), strict=True)
                if need is not None
            )
            for tiling in range(TILINGS)
        ]
        return (np.array(after, dtype=np.float64) - before) * self.setting.itemsize(tensor)

    def _forms(self, index: int) -> dict[int, list[UnitTile | None]]:
        """What each half computes, for every form that the unit can take; none is empty."""
        unit, tile = self.setting.network.units[index], self.tiles[index]
        assert tile is not None
        graph, divider = self.setting.network.graph, self.setting.divider
        forms: dict[int, list[UnitTile | None]] = {}
        if tile.part is None:
            whole = Box.whole(graph.shape(unit.outputs[-1]))
            main = tile.boxes[unit.outputs[-1]]
            for axis in sorted(divider.splits(unit)):
                mains = self._halves(unit, main, axis)
                halves = [owned_boxes(graph, unit, whole, half) for half in mains]
                if not any(box.is_empty for half in halves for box in half.values()):
                    forms[axis] = [divider.tile(unit, half) for half in halves]
        summed = summed_input(graph, unit.nodes)
        if summed is not None and all(
            box == Box.whole(graph.shape(name)) for name, box in tile.boxes.items()
        ):
            part = tile.part or tile.reads[summed]
            spans = cut_span(part[1], self.shares)
            if all(map(len, spans)):
                parts = [part.replace(1, span) for span in spans]
                forms[PARTIAL] = [divider.partial_tile(unit, each) for each in parts]
        return forms or {FIRST_HALF: [tile, *(None for _ in self.shares[1:])]}

    def _halves(self, unit: Unit, box: Box, axis: int) -> list[Box]:
        step = channel_step(self.setting.network.graph, unit) if axis == 1 else 1
        return [box.replace(axis, span) for span in cut_span(box[axis], self.shares, step)]

    def _divided(self, tensor: str, tiling: int) -> list[Box]:
        box = self.own[tensor]
        if tiling == REPLICATED:
            return [box] * len(self.shares)
        if tiling == FIRST_HALF or tiling >= len(box):
            nothing = box.replace(0, Span(0, 0))
            return [box, *(nothing for _ in self.shares[1:])]
        unit = self.setting.network.units[self.setting.makers[tensor]]
        return self._halves(unit, box, tiling)


def _missing(need: Box, own: Box | None) -> int:
    """Elements of `need` that are not in `own`."""
    volume = common = 1
    for index, span in enumerate(need.spans):
        volume *= max(0, span.stop - span.start)
        if own is not None:
            other = own.spans[index]
            common *= max(0, min(span.stop, other.stop) - max(span.start, other.start))
    return volume - (0 if own is None else common)
