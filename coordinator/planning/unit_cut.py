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
from numpy.typing import NDArray

from coordinator.planning.layered import Floats, Ints, makers
from coordinator.planning.layouts import Divider, UnitTile, divider_of
from coordinator.planning.partition import channel_step, cut_span, owned_boxes
from models.boxes import Box, Span
from models.partial import summed_input
from models.units import Network, Unit

# Tilings of a tensor and forms of a unit: the axes 1, 2, 3 and these.
REPLICATED, FIRST_HALF, PARTIAL = 0, 4, 5
TILINGS = 5
# A unit, its form, a tensor, and whether the unit makes it, or reads it.
_Conversion = tuple[int, int, str, bool]


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
        self._moved = self._conversions()

    def conversions(self, unit: int) -> tuple[tuple[str, ...], dict[int, list[Floats]]]:
        """The unit's tensors; per form, bytes that come from outside (one number), then what each
        tensor moves in each of its tilings.
        """
        tile = self.tiles[unit]
        assert tile is not None
        reads, made = self._exchanged(tile)
        return (*reads, *made), {
            form: [
                self._from_outside(tile, halves),
                *(self._moved[unit, form, name, False] for name in reads),
                *(
                    self._summed(tile, name)
                    if form == PARTIAL
                    else self._moved[unit, form, name, True]
                    for name in made
                ),
            ]
            for form, halves in self.forms[unit].items()
        }

    def owned(self, tensor: str, tiling: int) -> list[Box]:
        """What each half owns of a tensor."""
        key = (tensor, tiling)
        if key not in self._owned:
            self._owned[key] = self._divided(tensor, tiling)
        return self._owned[key]

    def _exchanged(self, tile: UnitTile) -> tuple[list[str], list[str]]:
        """What a tile reads and makes of the tensors that units exchange."""
        reads = [name for name in tile.reads if name in self.own]
        return reads, [name for name in tile.boxes if name in self.own]

    def _conversions(self) -> dict[_Conversion, Floats]:
        """Bytes, by the tensor's tiling, to get what the halves read from where it lies, or to
        bring what they make there.
        """
        asked: list[_Conversion] = []
        groups: list[Box | None] = []
        halves: list[Box | None] = []
        for unit in self.active:
            tile = self.tiles[unit]
            assert tile is not None
            for form, parts in self.forms[unit].items():
                for made, names in zip((False, True), self._exchanged(tile), strict=True):
                    for name in names:
                        asked.append((unit, form, name, made))
                        groups.append(_boxes(tile, made)[name])
                        halves += [
                            None if half is None else _boxes(half, made)[name] for half in parts
                        ]
        if not asked:
            return {}
        numbers = {name: number for number, name in enumerate(self.own)}
        tensors = np.array([numbers[name] for _, _, name, _ in asked])
        makes = np.array([made for *_, made in asked])[:, None, None]
        items = np.array([float(self.setting.itemsize(name)) for name in self.own])[tensors]
        lies = _stacked([*self.own.values()])[tensors, None, None]
        tilings = _stacked([b for n in self.own for t in range(TILINGS) for b in self.owned(n, t)])
        tilings = tilings.reshape(len(self.own), TILINGS, len(self.shares), -1, 2)[tensors]
        before = _missing(_stacked(groups)[:, None, None], lies, makes).sum(axis=2)
        each = _stacked(halves).reshape(len(asked), 1, len(self.shares), -1, 2)
        after = _missing(each, tilings, makes).sum(axis=2)
        return dict(zip(asked, (after - before) * items[:, None], strict=True))

    def _from_outside(self, tile: UnitTile, halves: Sequence[UnitTile | None]) -> Floats:
        """Bytes of the request's inputs that the halves read beyond what the group reads."""
        added = 0
        for name, box in tile.reads.items():
            if name not in self.own:
                read = sum(half.reads[name].volume for half in halves if half is not None)
                added += (read - box.volume) * self.setting.itemsize(name)
        return np.array([added], dtype=np.float64)

    def _summed(self, tile: UnitTile, tensor: str) -> Floats:
        """Bytes to bring partial sums to where they shall lie: each half fetches the other's sums
        of its own half; then they may be replicated.
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


def _boxes(tile: UnitTile, made: bool) -> Mapping[str, Box]:
    return tile.boxes if made else tile.reads


def _stacked(boxes: Sequence[Box | None]) -> Ints:
    """[box, axis, start or stop]; nothing where there is no box."""
    axes = max(len(box) for box in boxes if box is not None)
    nothing, more = [0] * (2 * axes), [0, 1] * axes
    flat: list[int] = []
    for box in boxes:
        if box is None:
            flat += nothing
        else:
            for span in box.spans:
                flat += (span.start, span.stop)
            flat += more[2 * len(box) :]
    return np.array(flat).reshape(-1, axes, 2)


def _missing(tiles: Ints, lies: Ints, made: NDArray[np.bool_]) -> Ints:
    """Elements that tiles read and that do not lie there; or that lie there, if not `made` by the
    tiles.
    """
    both = np.stack(np.broadcast_arrays(tiles, lies))
    common = np.minimum.reduce(both[..., 1]) - np.maximum.reduce(both[..., 0])
    sizes = np.where(made, _volumes(lies), _volumes(tiles))
    missing: Ints = sizes - common.clip(0).prod(axis=-1)
    return missing


def _volumes(boxes: Ints) -> Ints:
    sizes: Ints = (boxes[..., 1] - boxes[..., 0]).clip(0).prod(axis=-1)
    return sizes
