"""Ways to divide one unit over devices, as in layer-wise parallelism.

A configuration has a degree for each dimension of the unit's output {h, w, c} [Jia et al., Table 1;
an inference has n = 1], or a number of parts of a fully connected layer's input, whose partial sums
are added. Its tiles go to the first devices in the cluster's order, in proportion to their rates. A
channel-split tile reads all input channels and holds its slice of the weights; groups of a grouped
convolution stay together.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from coordinator.planning.geometry.partition import channel_step, cut_span, nested, owned_boxes
from models.cut.alike_units import Likenesses
from models.cut.partial import partial_extent, partial_work, summed_input
from models.cut.units import Network, Unit
from models.graph.graph import CHANNELS, COLS, ROWS, Graph
from models.operators.geometry import extent
from models.operators.work import NodeWork, works
from models.tensors.boxes import Box

# Distinct tiles of a network that are cached, with what they read and compute, about 2 KB each.
# A search needs up to 16,000 (Inception-v3); shares that drift need new ones every time.
_MAX_REMEMBERED = 30_000
# If half a tile takes more than this share of the whole, most work is done twice (a concat needs
# all of its channels, for example).
_WORTH_SPLITTING = 0.9
# Identifies a tile: its unit's first node, what it owns, and the part of the input that it sums
# over.
_Key = tuple[int, tuple[tuple[str, Box], ...], Box | None]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Degrees of parallelism; if `inputs` is above 1, the others are 1."""

    rows: int = 1
    cols: int = 1
    channels: int = 1
    inputs: int = 1

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.rows * self.cols * self.channels * self.inputs

    def __str__(self) -> str:
        if self.inputs > 1:
            return f"{{in={self.inputs}}}"
        return f"{{n=1, c={self.channels}, h={self.rows}, w={self.cols}}}"


class Computing:
    """What a tile computes, determined when first needed."""

    def __init__(self, find: Callable[[], Sequence[NodeWork]]) -> None:
        self._find = find

    @cached_property
    def works(self) -> tuple[NodeWork, ...]:
        """The work of every node."""
        return tuple(self._find())


@dataclass(frozen=True, slots=True, eq=False)
class UnitTile:
    """One device's share of a unit: what it owns, reads and computes. `part`: see `Tile`."""

    boxes: Mapping[str, Box]
    reads: Mapping[str, Box]
    computing: Computing
    part: Box | None = None

    def renamed(self, names: Mapping[str, str]) -> "UnitTile":
        """The same tile of a unit that is like this one, with its `names`."""
        boxes = {names.get(name, name): box for name, box in self.boxes.items()}
        reads = {names.get(name, name): box for name, box in self.reads.items()}
        return UnitTile(boxes, reads, self.computing, self.part)

    @property
    def work(self) -> tuple[NodeWork, ...]:
        """The work of every node."""
        return self.computing.works

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that it holds."""
        return sum(work.weight_bytes for work in self.work)

    @property
    def relaid_bytes(self) -> int:
        """Bytes of those that engines lay out anew."""
        return sum(work.relaid_bytes for work in self.work)

    @property
    def flop(self) -> int:
        """FLOPs that it computes."""
        return sum(work.flop for work in self.work)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A unit's tiles, by position of the device in the cluster's order."""

    configuration: Configuration
    tiles: Mapping[int, UnitTile]

    @property
    def alone(self) -> int | None:
        """The device that computes everything; None if there are several."""
        return next(iter(self.tiles)) if len(self.tiles) == 1 else None


@dataclass(frozen=True, slots=True, eq=False)
class Layouts(Sequence[Layout]):
    """The layouts of a unit. `shared` are those of the first unit like it, the same object for all
    such units; `here` and `there` translate names to this unit's and back, if they differ.
    """

    shared: Sequence[Layout]
    here: Mapping[str, str]
    there: Mapping[str, str]

    @classmethod
    def only(cls, layout: Layout) -> "Layouts":
        """A single layout, with its own names."""
        return cls([layout], {}, {})

    def __len__(self) -> int:
        return len(self.shared)

    def __getitem__(self, index: int) -> Layout:  # type: ignore[override]
        layout = self.shared[index]
        tiles = {device: tile.renamed(self.here) for device, tile in layout.tiles.items()}
        return Layout(layout.configuration, tiles)


class Divider:
    """Divides the units of one network; what tiles read and compute is cached."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._likenesses = Likenesses(graph)
        self._tiles: dict[_Key, UnitTile] = {}
        self._wholes: dict[int, UnitTile] = {}
        self._layouts: dict[int, list[Layout]] = {}
        self._layouts_for: tuple[float, ...] = ()
        self._splits: dict[int, frozenset[int]] = {}

    def layouts(self, unit: Unit, rates: Sequence[float]) -> Layouts:
        """Every layout of a unit over at most `len(rates)` devices, first those on a single
        device.
        """
        alike = self._likenesses.of(unit)
        if self._layouts_for != tuple(rates):
            self._layouts, self._layouts_for = {}, tuple(rates)
        if alike.first.start not in self._layouts:
            self._layouts[alike.first.start] = self._every_layout(alike.first, rates)
        return Layouts(self._layouts[alike.first.start], alike.here, alike.there)

    def _every_layout(self, unit: Unit, rates: Sequence[float]) -> list[Layout]:
        found = [Layout(Configuration(), {d: self.whole(unit)}) for d in range(len(rates))]
        axes = self.splits(unit)
        for degree in range(2, len(rates) + 1):
            grids = ((r, c) for r in range(1, degree + 1) for c in range(1, degree // r + 1))
            for rows, cols in grids:
                channels, left = divmod(degree, rows * cols)
                wanted = {ROWS: rows, COLS: cols, CHANNELS: channels}
                if left or any(count > 1 and axis not in axes for axis, count in wanted.items()):
                    continue
                configuration = Configuration(rows, cols, channels)
                boxes = self.divided(unit, configuration, rates[:degree])
                if boxes is not None:
                    tiles = {device: self.tile(unit, part) for device, part in enumerate(boxes)}
                    found.append(Layout(configuration, tiles))
            if (summed := summed_input(self.graph, unit.nodes)) is not None:
                layout = self._partial(unit, summed, rates[:degree])
                if layout is not None:
                    found.append(layout)
        return found

    def whole(self, unit: Unit) -> UnitTile:
        """The tile that is the whole unit."""
        if unit.start not in self._wholes:
            boxes = {name: Box.whole(self.graph.shape(name)) for name in unit.outputs}
            self._wholes[unit.start] = self.tile(unit, boxes)
        return self._wholes[unit.start]

    def tile(self, unit: Unit, boxes: Mapping[str, Box]) -> UnitTile:
        """The tile that owns these boxes of the unit's outputs."""
        return self._found(unit, boxes, None)

    def partial_tile(self, unit: Unit, part: Box) -> UnitTile:
        """The tile that sums over a part of the unit's input."""
        whole = {name: Box.whole(self.graph.shape(name)) for name in unit.outputs}
        return self._found(unit, whole, part)

    def _found(self, unit: Unit, boxes: Mapping[str, Box], part: Box | None) -> UnitTile:
        key = (unit.start, tuple(boxes.items()), part)
        if key not in self._tiles:
            alike = self._likenesses.of(unit)
            if alike.first is unit:
                made = self._made(unit, boxes, part)
            else:
                there = {alike.there[name]: box for name, box in boxes.items()}
                made = self._found(alike.first, there, part).renamed(alike.here)
            if len(self._tiles) >= _MAX_REMEMBERED:
                self._tiles.clear()
            self._tiles[key] = made
        return self._tiles[key]

    def _made(self, unit: Unit, boxes: Mapping[str, Box], part: Box | None) -> UnitTile:
        graph, nodes = self.graph, unit.nodes
        if part is None:
            reach = extent(graph, nodes, boxes)
            return UnitTile(boxes, reach.inputs, Computing(partial(works, graph, nodes, reach)))
        computing = Computing(lambda: [partial_work(graph, nodes, part)])
        return UnitTile(boxes, partial_extent(graph, nodes, part).inputs, computing, part)

    def splits(self, unit: Unit) -> frozenset[int]:
        """Which dimensions of a map (channels, rows, columns) the main output has of which a half
        is much less work than the whole.
        """
        if unit.start not in self._splits:
            self._splits[unit.start] = frozenset(
                which for which in (CHANNELS, ROWS, COLS) if self._apart(unit, which)
            )
        return self._splits[unit.start]

    def _apart(self, unit: Unit, which: int) -> bool:
        graph = self.graph
        if not unit.outputs or any(graph.axis(name, which) is None for name in unit.outputs):
            return False
        if which != CHANNELS and not unit.splits:
            return False
        if which == CHANNELS and len({graph.size(name, which) for name in unit.outputs}) > 1:
            return False
        halves = self.divided(unit, Configuration(**{_DEGREE[which]: 2}), (1.0, 1.0))
        if halves is None:
            return False
        return self.tile(unit, halves[0]).flop < _WORTH_SPLITTING * self.whole(unit).flop

    def _partial(self, unit: Unit, summed: str, rates: Sequence[float]) -> Layout | None:
        whole = Box.whole(self.graph.shape(summed))
        spans = cut_span(whole[CHANNELS], rates)
        if not all(map(len, spans)):
            return None
        parts = [self.partial_tile(unit, whole.replace(CHANNELS, span)) for span in spans]
        return Layout(Configuration(inputs=len(rates)), dict(enumerate(parts)))

    def divided(
        self, unit: Unit, configuration: Configuration, rates: Sequence[float]
    ) -> list[dict[str, Box]] | None:
        """Boxes of the unit's outputs for each device: bands of rows, columns within each band,
        channels within each of those, all in proportion to rates. None if a tile would be empty.
        """
        main = unit.outputs[-1]
        whole = Box.whole(self.graph.shape(main))
        degrees = {
            ROWS: configuration.rows,
            COLS: configuration.cols,
            CHANNELS: configuration.channels,
        }
        steps = [
            (axis, degree, channel_step(self.graph, unit) if which == CHANNELS else 1)
            for which, degree in degrees.items()
            if (axis := self.graph.axis(main, which)) is not None
        ]
        mains = nested(whole, steps, rates)
        if mains is None:
            return None
        tiles = [owned_boxes(self.graph, unit, whole, main) for main in mains]
        return None if any(box.is_empty for boxes in tiles for box in boxes.values()) else tiles


_DEGREE = {CHANNELS: "channels", ROWS: "rows", COLS: "cols"}
_DIVIDERS: weakref.WeakKeyDictionary[Network, Divider] = weakref.WeakKeyDictionary()


def divider_of(network: Network) -> Divider:
    """The divider of a network, kept as long as the network is."""
    divider = _DIVIDERS.get(network)
    if divider is None:
        divider = _DIVIDERS[network] = Divider(network.graph)
    return divider
