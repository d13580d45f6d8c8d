"""Costs of units in their layouts, and of tensors between layouts [Jia et al., 5.1].

t_c(l, c)        the slowest device's computation of its tile
t_x(e, c, c')    the transfers that give each device what its tile reads of a tensor and the
                 device does not own already, through the host: one after the other, from the
                 devices that own it to those that need it
t_s              zero: inference synchronises no gradients
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Device
from coordinator.planning.geometry.box_arrays import MAP_AXES, common, stacked, volumes
from coordinator.planning.geometry.layouts import Layout, Layouts, UnitTile, divider_of
from models.cut.units import Network
from models.tensors.arrays import Floats, Ints
from models.tensors.boxes import Box


@dataclass(frozen=True, slots=True, eq=False)
class LayoutBoxes:
    """Boxes of one tensor, [layout, device, axis, start or stop]; empty ones are zeros.

    `sums[layout]`: every device has a partial sum of the whole tensor, and owns none of it yet.
    """

    boxes: Ints
    sums: NDArray[np.bool_]

    @property
    def volumes(self) -> Ints:
        """Elements, [layout, device]."""
        return volumes(self.boxes)


@dataclass(frozen=True, slots=True)
class LayerWire:
    """The cost of transferring one tensor: seconds per byte and per message of each device."""

    byte_s: Floats
    message_s: Floats

    @classmethod
    def of(cls, devices: Sequence[Device]) -> "LayerWire":
        """The links of the devices, in order."""
        return cls(
            np.array([device.link.byte_s for device in devices]),
            np.array([device.link.fixed_s for device in devices]),
        )

    def seconds(self, size_bytes: Ints) -> Floats:
        """Serial transfers of these bytes, [..., device] -> [...]."""
        seconds = size_bytes * self.byte_s + (size_bytes > 0) * self.message_s
        total: Floats = seconds.sum(axis=-1)
        return total


def compute_s(layouts: Sequence[Layout], devices: Sequence[Device]) -> Floats:
    """t_c of each layout. Devices with equal costs, and tiles of alike units, are computed once."""
    known: dict[tuple[int, int], float] = {}

    def seconds(costs: Costs, tile: UnitTile) -> float:
        key = id(costs), id(tile.computing)
        if key not in known:
            known[key] = costs.block_s(tile.work)
        return known[key]

    return np.array(
        [
            max(seconds(devices[d].costs, tile) for d, tile in layout.tiles.items())
            for layout in layouts
        ]
    )


def owned(layouts: Sequence[Layout], tensor: str, devices: int) -> LayoutBoxes:
    """The boxes of a tensor that devices own after computing the unit."""
    boxes = _by_device(layouts, devices, lambda tile: tile.boxes.get(tensor))
    sums = np.array([layout.configuration.inputs > 1 for layout in layouts])
    return LayoutBoxes(boxes, sums)


def needed(layouts: Sequence[Layout], tensor: str, devices: int) -> LayoutBoxes:
    """The boxes of a tensor that devices need to compute the unit."""
    boxes = _by_device(layouts, devices, lambda tile: tile.reads.get(tensor))
    return LayoutBoxes(boxes, np.zeros(len(layouts), dtype=np.bool_))


def _by_device(
    layouts: Sequence[Layout], devices: int, box_of: Callable[[UnitTile], Box | None]
) -> Ints:
    found = [
        box_of(layout.tiles[d]) if d in layout.tiles else None
        for layout in layouts
        for d in range(devices)
    ]
    boxes = stacked(found, max([MAP_AXES, *(len(box) for box in found if box is not None)]))
    return boxes.reshape(len(layouts), devices, *boxes.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Bytes that a tensor moves between two units, independent of links: what each device sends and
    receives, [layout of its maker, layout of its reader, device].
    """

    source: int
    target: int
    sent: Ints
    received: Ints

    def seconds(self, wire: LayerWire) -> Floats:
        """t_x of the tensor, [layout of its maker, layout of its reader]."""
        return wire.seconds(self.sent) + wire.seconds(self.received)


def exchanged(own: LayoutBoxes, need: LayoutBoxes, *, credit: bool = True) -> tuple[Ints, Ints]:
    """Elements that each device sends and receives, so that each gets what it needs.

    Without `credit` a device is also sent what it owns, as in an exchange of whole tiles through
    the host, unless one device computes and reads all of it.
    """
    overlap = common(own.boxes[:, None, :, None], need.boxes[None, :, None, :])
    overlap[own.sums] = 0
    devices = overlap.shape[-1]
    kept = overlap[:, :, range(devices), range(devices)]
    received = need.volumes[None] - kept
    sent = np.minimum(own.volumes[:, None], overlap.sum(axis=-1) - kept)
    if not credit:
        stays = received.sum(axis=-1, keepdims=True) + sent.sum(axis=-1, keepdims=True) == 0
        received = np.where(stays, 0, need.volumes[None])
        sent = np.where(stays, 0, own.volumes[:, None])
    sent[own.sums] = own.volumes[own.sums][:, None]
    return sent, received


@dataclass(frozen=True, slots=True, eq=False)
class UnitGraph:
    """The layouts of all units, and what tensors move between them: everything that does not depend
    on links or costs. Unit -1 is the request, the one after the last is the answer.
    """

    layouts: Sequence[Layouts]
    transfers: Sequence[Transfers]

    @classmethod
    def of(
        cls, network: Network, layouts: Sequence[Layouts], devices: int, *, credit: bool
    ) -> "UnitGraph":
        """The graph of these layouts on this many devices. Transfers between alike units are
        computed once.
        """
        graph, maker = network.graph, makers(network)
        exchanges = _Exchanges(devices, credit)
        own = {name: exchanges.places(owned, layouts[unit], name) for name, unit in maker.items()}
        nothing = np.zeros((1, 1, devices), dtype=np.int64)
        transfers = []
        for unit, mine in enumerate(layouts):
            for name in reads_of(network, unit):
                need, item = exchanges.places(needed, mine, name), graph.tensors[name].wire_itemsize
                if name in maker:
                    moved = exchanges.moved(own[name], need, item)
                    transfers.append(Transfers(maker[name], unit, *moved))
                else:
                    transfers.append(Transfers(-1, unit, nothing, need.volumes[None] * item))
        for name in graph.results:
            if name in maker:
                sent = own[name].volumes[:, None] * graph.tensors[name].wire_itemsize
                transfers.append(Transfers(maker[name], len(layouts), sent, nothing))
        return cls(layouts, transfers)


class _Exchanges:
    """Boxes and transfers of layouts, computed once for all alike units."""

    def __init__(self, devices: int, credit: bool) -> None:
        self.devices, self.credit = devices, credit
        self._places: dict[object, LayoutBoxes] = {}
        self._moved: dict[object, tuple[Ints, Ints]] = {}

    def places(
        self, find: Callable[[Sequence[Layout], str, int], LayoutBoxes], layouts: Layouts, name: str
    ) -> LayoutBoxes:
        """The boxes of a unit's tensor that devices own or need."""
        there = layouts.there.get(name, name)
        key = (find, id(layouts.shared), there)
        if key not in self._places:
            self._places[key] = find(layouts.shared, there, self.devices)
        return self._places[key]

    def moved(self, own: LayoutBoxes, need: LayoutBoxes, itemsize: int) -> tuple[Ints, Ints]:
        """Bytes that each device sends and receives."""
        key = (id(own), id(need), itemsize)
        if key not in self._moved:
            sent, received = exchanged(own, need, credit=self.credit)
            self._moved[key] = sent * itemsize, received * itemsize
        return self._moved[key]


_LATEST: weakref.WeakKeyDictionary[Network, tuple[tuple[float, ...], bool, UnitGraph]] = (
    weakref.WeakKeyDictionary()
)


def unit_graph(network: Network, rates: Sequence[float], *, credit: bool) -> UnitGraph:
    """Every layout of every unit over devices with these rates. The latest graph of a network is
    cached, for plans with other links or for the same devices.
    """
    kept = _LATEST.get(network)
    if kept is None or kept[:2] != (tuple(rates), credit):
        divider = divider_of(network)
        layouts = [divider.layouts(unit, rates) for unit in network.units]
        graph = UnitGraph.of(network, layouts, len(rates), credit=credit)
        kept = _LATEST[network] = (tuple(rates), credit, graph)
    return kept[2]


def makers(network: Network) -> dict[str, int]:
    """The unit that computes each tensor that is read outside it."""
    return {name: i for i, unit in enumerate(network.units) for name in unit.outputs}


def reads_of(network: Network, unit: int) -> tuple[str, ...]:
    """Tensors that a unit reads and does not compute."""
    return tuple(divider_of(network).whole(network.units[unit]).reads)
