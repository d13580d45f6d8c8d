"""SOYBEAN's conversions on a network's units: the bytes that one cut moves, from the exact boxes.

Tensors are those that units exchange; weights stay where they are used and cost nothing. A unit's
aligned forms are the splits of its output along rows, columns or channels (rows and columns take
the place of the batch, which is one in inference), and, for a fully connected layer, partial sums
over parts of its input [section 4.2.1: R, C and red]. What cannot be split goes to the group's
first half. A tensor is tiled by one of these splits, or replicated.

The cost of a cut is what the devices miss after it, beyond what the group missed before: the boxes
that they read minus the boxes that they own, halos included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coordinator.planning.geometry.box_arrays import MAP_AXES, common, stacked, volumes
from coordinator.planning.geometry.layouts import Divider, UnitTile, divider_of
from coordinator.planning.geometry.partition import channel_step, cut_span, owned_boxes
from coordinator.planning.papers.layered import makers
from models.cut.partial import summed_input
from models.cut.units import Network
from models.graph.graph import CHANNELS, ROWS
from models.tensors.arrays import Floats, Ints
from models.tensors.boxes import Box, Span

# Tilings of a tensor and forms of a unit: its channels, rows, columns (1, 2, 3), and these.
REPLICATED, FIRST_HALF, PARTIAL = 0, 4, 5
TILINGS = 5
# What determines how a tensor can be cut: its box, the step of its channels, where its rows lie.
_Lie = tuple[Box, int, int | None]
# The most tensors of a unit whose tilings are combined in one table.
_MOST_JOINED = 4


@dataclass(frozen=True, eq=False)
class Setting:
    """What all groups of one network share. `makers`: the unit that computes each tensor that units
    exchange or that is an output; the request's inputs come from outside any group. `steps`: the
    multiple of channels at which such a tensor can be cut.
    """

    network: Network
    divider: Divider
    makers: Mapping[str, int]
    steps: Mapping[str, int]

    @classmethod
    def of(cls, network: Network) -> "Setting":
        """The setting of a network."""
        made, units = makers(network), network.units
        steps = {name: channel_step(network.graph, units[unit]) for name, unit in made.items()}
        return cls(network, divider_of(network), made, steps)

    @cached_property
    def axes(self) -> int:
        """The most dimensions of a tensor."""
        tensors = self.network.graph.tensors.values()
        return max(MAP_AXES, *(len(tensor.shape) for tensor in tensors))

    def itemsize(self, tensor: str) -> int:
        """Bytes per element on the wire."""
        return self.network.graph.tensors[tensor].wire_itemsize


@dataclass(eq=False)
class _Kind:
    """Units that are alike and whose tensors have the same boxes: for one of them, what each half
    computes in every form, and what that moves, as `Cut.conversions` gives it.
    """

    unit: int
    forms: Mapping[int, Sequence[UnitTile | None]]
    moved: dict[int, list[Floats]] = field(default_factory=dict)
    cheapest: dict[tuple[int, ...], int] = field(default_factory=dict)

    @cached_property
    def stacked(self) -> list[Floats]:
        """Bytes moved, [form, tiling], from outside and for each tensor."""
        return [np.stack(parts) for parts in zip(*self.moved.values(), strict=True)]

    @cached_property
    def least(self) -> Floats | None:
        """Bytes moved in the cheapest form, by the tilings of all tensors."""
        fixed, *moved = self.stacked
        if len(moved) > _MOST_JOINED:
            return None
        total = fixed.reshape(-1, *(1 for _ in moved))
        for axis, costs in enumerate(moved, start=1):
            shape = [len(costs), *(1 for _ in moved)]
            shape[axis] = TILINGS
            total = total + costs.reshape(shape)
        least: Floats = total.min(axis=0)
        return least


class Cut:
    """One way to share a group's work between its halves, for all forms and tilings."""

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
        self._owned: dict[_Lie, list[list[Box]]] = {}
        known: dict[object, _Kind] = {}
        self._kinds: dict[int, _Kind] = {}
        for unit in self.active:
            traits = self._traits(unit)
            if traits not in known:
                known[traits] = _Kind(unit, self._forms(unit))
            self._kinds[unit] = known[traits]
        self._convert([*known.values()])

    def conversions(self, unit: int) -> tuple[tuple[str, ...], dict[int, list[Floats]]]:
        """The unit's tensors; for each form, the bytes that come from outside (one number), then
        those that each tensor moves in each of its tilings.
        """
        reads, made = self._exchanged(unit)
        return (*reads, *made), self._kinds[unit].moved

    def operation(self, unit: int) -> tuple[tuple[str, ...], list[Floats], Floats | None]:
        """As `conversions`, with the forms stacked: [form, 1], then [form, tiling] of each tensor;
        and the bytes moved in the cheapest form, by the tilings of all tensors, if they are few.
        """
        kind = self._kinds[unit]
        return self.conversions(unit)[0], kind.stacked, kind.least

    def cheapest(self, unit: int, tilings: Mapping[str, int]) -> int:
        """The form in which the unit moves least with these tilings of its tensors."""
        kind, names = self._kinds[unit], self.conversions(unit)[0]
        chosen = tuple(tilings[name] for name in names)
        if chosen not in kind.cheapest:
            moved = {
                form: fixed[0] + sum(part[k] for part, k in zip(parts, chosen, strict=True))
                for form, (fixed, *parts) in kind.moved.items()
            }
            kind.cheapest[chosen] = min(moved, key=moved.__getitem__)
        return kind.cheapest[chosen]

    def halves(self, unit: int, form: int) -> Sequence[UnitTile | None]:
        """What each half computes of a unit in a form."""
        kind, units, divider = self._kinds[unit], self.setting.network.units, self.setting.divider
        halves = kind.forms[form]
        if kind.unit == unit:
            return halves
        if form == FIRST_HALF:
            return [self.tiles[unit], *(None for _ in self.shares[1:])]
        mine = units[unit]
        names = dict(zip(units[kind.unit].outputs, mine.outputs, strict=True))
        return [
            half
            and (
                divider.partial_tile(mine, half.part)
                if half.part
                else divider.tile(mine, {names[name]: box for name, box in half.boxes.items()})
            )
            for half in halves
        ]

    def owned(self, tensor: str, tiling: int) -> list[Box]:
        """What each half owns of a tensor in a tiling."""
        return self._lying(tensor)[tiling]

    def _lying(self, tensor: str) -> list[list[Box]]:
        """For each tiling, what each half owns of a tensor."""
        key = self._lie(tensor)
        if key not in self._owned:
            self._owned[key] = [self._divided(*key, tiling) for tiling in range(TILINGS)]
        return self._owned[key]

    def _lie(self, tensor: str) -> _Lie:
        rows = self.setting.network.graph.rows.get(tensor)
        return self.own[tensor], self.setting.steps[tensor], rows

    def _traits(self, unit: int) -> object:
        """Everything except names that determines a unit's forms and what they move."""
        tile, setting, own = self.tiles[unit], self.setting, self.own
        assert tile is not None
        lies = [
            (self._lie(name), setting.itemsize(name)) if name in own else setting.itemsize(name)
            for name in (*tile.reads, *tile.boxes)
        ]
        return id(tile.computing), tuple(lies)

    def _exchanged(self, unit: int) -> tuple[list[str], list[str]]:
        """What a unit's tile reads and computes of the tensors that units exchange."""
        tile = self.tiles[unit]
        assert tile is not None
        reads = [name for name in tile.reads if name in self.own]
        return reads, [name for name in tile.boxes if name in self.own]

    def _convert(self, kinds: Sequence[_Kind]) -> None:
        """Bytes, by the tensor's tiling, to bring the halves what they read, or to bring what they
        compute to its place.
        """
        asked: list[tuple[_Kind, int, str, bool]] = []
        groups: list[Box | None] = []
        halves: list[Box | None] = []
        for kind in kinds:
            tile = self.tiles[kind.unit]
            assert tile is not None
            exchanged = self._exchanged(kind.unit)
            for form, parts in kind.forms.items():
                kind.moved[form] = [self._from_outside(tile, parts)]
                for made, names in zip((False, True), exchanged, strict=True):
                    for name in names:
                        asked.append((kind, form, name, made))
                        groups.append(_boxes(tile, made)[name])
                        halves += [
                            None if half is None else _boxes(half, made).get(name) for half in parts
                        ]
        if not asked:
            return
        for _, _, name, _ in asked:
            self._lying(name)
        places = {key: place for place, key in enumerate(self._owned)}
        where = np.array([places[self._lie(name)] for _, _, name, _ in asked])
        makes = np.array([made for *_, made in asked])[:, None, None]
        items = np.array([float(self.setting.itemsize(name)) for _, _, name, _ in asked])
        axes = self.setting.axes
        lies = stacked([box for box, *_ in self._owned], axes)[where, None, None]
        every = [box for by in self._owned.values() for boxes in by for box in boxes]
        tilings = stacked(every, axes)
        tilings = tilings.reshape(len(places), TILINGS, len(self.shares), -1, 2)[where]
        before = _missing(stacked(groups, axes)[:, None, None], lies, makes).sum(axis=2)
        boxes = stacked(halves, axes).reshape(len(asked), 1, len(self.shares), -1, 2)
        after = _missing(boxes, tilings, makes).sum(axis=2)
        moved = (after - before) * items[:, None]
        for (kind, form, name, made), found in zip(asked, moved, strict=True):
            tile = self.tiles[kind.unit]
            assert tile is not None
            is_sum = form == PARTIAL and made
            kind.moved[form].append(self._summed(tile, name) if is_sum else found)

    def _from_outside(self, tile: UnitTile, halves: Sequence[UnitTile | None]) -> Floats:
        """Bytes of the request's inputs that the halves read beyond what the group reads."""
        added = 0
        for name, box in tile.reads.items():
            if name not in self.own:
                boxes = (half.reads.get(name) for half in halves if half is not None)
                read = sum(box.volume for box in boxes if box is not None)
                added += (read - box.volume) * self.setting.itemsize(name)
        return np.array([added], dtype=np.float64)

    def _summed(self, tile: UnitTile, tensor: str) -> Floats:
        """Bytes to bring partial sums to their place: each half fetches the other's sums of its own
        half, after which they may be replicated.
        """
        item = self.setting.itemsize(tensor)
        added = np.full(TILINGS, float(tile.boxes[tensor].volume * item))
        added[REPLICATED] += self.own[tensor].volume * item
        return added

    def _forms(self, index: int) -> dict[int, list[UnitTile | None]]:
        """What each half computes, for every form that the unit can take; none is empty."""
        unit, tile = self.setting.network.units[index], self.tiles[index]
        assert tile is not None
        graph, divider = self.setting.network.graph, self.setting.divider
        forms: dict[int, list[UnitTile | None]] = {}
        if tile.part is None:
            whole = Box.whole(graph.shape(unit.outputs[-1]))
            main = tile.boxes[unit.outputs[-1]]
            for which in sorted(divider.splits(unit)):
                axis = graph.axis(unit.outputs[-1], which)
                assert axis is not None, "what can be split has such an axis"
                step = channel_step(graph, unit) if which == CHANNELS else 1
                mains = self._halves(main, axis, step)
                halves = [owned_boxes(graph, unit, whole, half) for half in mains]
                if not any(box.is_empty for half in halves for box in half.values()):
                    forms[which] = [divider.tile(unit, half) for half in halves]
        summed = summed_input(graph, unit.nodes)
        if summed is not None and all(
            box == Box.whole(graph.shape(name)) for name, box in tile.boxes.items()
        ):
            part = tile.part or tile.reads[summed]
            spans = cut_span(part[1], self.shares)
            if all(map(len, spans)):
                parts = [part.replace(1, span) for span in spans]
                forms[PARTIAL] = [divider.partial_tile(unit, piece) for piece in parts]
        return forms or {FIRST_HALF: [tile, *(None for _ in self.shares[1:])]}

    def _halves(self, box: Box, axis: int, step: int) -> list[Box]:
        spans = cut_span(box[axis], self.shares, step)
        return [box.replace(axis, span) for span in spans]

    def _divided(self, box: Box, step: int, rows: int | None, tiling: int) -> list[Box]:
        if tiling == REPLICATED:
            return [box] * len(self.shares)
        axis = tiling if rows is None else rows if tiling == ROWS else len(box)
        if tiling == FIRST_HALF or axis >= len(box):
            nothing = Box([Span(0, 0)] * len(box))
            return [box, *(nothing for _ in self.shares[1:])]
        return self._halves(box, axis, step if tiling == CHANNELS else 1)


def _boxes(tile: UnitTile, made: bool) -> Mapping[str, Box]:
    return tile.boxes if made else tile.reads


def _missing(tiles: Ints, lies: Ints, made: NDArray[np.bool_]) -> Ints:
    """Elements that tiles read but that are not there; or, if not `made` by the tiles, elements
    that are there.
    """
    sizes = np.where(made, volumes(lies), volumes(tiles))
    missing: Ints = sizes - common(tiles, lies)
    return missing
