"""A network's units as SOYBEAN's dataflow graph: what a group of devices computes and owns."""

from collections.abc import Mapping, Sequence

from coordinator.planning.geometry.layouts import UnitTile
from coordinator.planning.papers.kcut_search import Operation
from coordinator.planning.papers.unit_cut import TILINGS, Cut, Setting
from models.tensors.boxes import Box


class UnitFlow:
    """The units as one group of devices sees them.

    `tiles[u]` is what the group computes of unit u, None for nothing; `own[t]` is the box of a
    tensor that it owns after its tilings so far.
    """

    def __init__(
        self, setting: Setting, tiles: Sequence[UnitTile | None], own: Mapping[str, Box]
    ) -> None:
        self.setting = setting
        self.tiles = tuple(tiles)
        self.own = own
        self._cuts: dict[tuple[float, ...], Cut] = {}
        self._parts: dict[object, UnitFlow] = {}

    @classmethod
    def of(cls, setting: Setting) -> "UnitFlow":
        """The group before any cut, which computes and owns everything."""
        graph = setting.network.graph
        return cls(
            setting,
            [setting.divider.whole(unit) for unit in setting.network.units],
            {name: Box.whole(graph.shape(name)) for name in setting.makers},
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every tensor has the same number of tilings; some have the same effect."""
        return (TILINGS,) * len(self.own)

    def operations(self, shares: Sequence[float]) -> list[Operation]:
        """The bytes of its conversions, for every unit of which this group computes something."""
        cut = self._cut(shares)
        index = {name: place for place, name in enumerate(self.own)}
        found = []
        for unit in cut.active:
            names, (fixed, *moved), least = cut.operation(unit)
            tensors = tuple(map(index.__getitem__, names))
            found.append(Operation(tensors, tuple(moved), fixed[:, 0], least))
        return found

    def part(self, tilings: Sequence[int], shares: Sequence[float], index: int) -> "UnitFlow":
        """One half of the group, each unit in its cheapest form; the same object for the same
        tilings and shares.
        """
        key = tuple(tilings), tuple(shares), index
        if key not in self._parts:
            self._parts[key] = self._part(tilings, shares, index)
        return self._parts[key]

    def _part(self, tilings: Sequence[int], shares: Sequence[float], index: int) -> "UnitFlow":
        cut = self._cut(shares)
        chosen = dict(zip(self.own, tilings, strict=True))
        tiles: list[UnitTile | None] = [None] * len(self.tiles)
        for unit in cut.active:
            tiles[unit] = cut.halves(unit, cut.cheapest(unit, chosen))[index]
        own = {name: cut.owned(name, tiling)[index] for name, tiling in chosen.items()}
        return UnitFlow(self.setting, tiles, own)

    def _cut(self, shares: Sequence[float]) -> Cut:
        key = tuple(shares)
        if key not in self._cuts:
            self._cuts[key] = Cut(self.setting, self.tiles, self.own, shares)
        return self._cuts[key]
