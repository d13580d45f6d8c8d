"""The whole network on one device, with which every plan is compared."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Device
from coordinator.planning.geometry.blocks import geometry_of
from coordinator.planning.plan_memory import holds, weight_room_bytes
from coordinator.tasks.plan import Block, Tile, tile_extent, tile_works
from models.cut.units import Network
from models.operators import operator
from models.operators.work import NodeWork, node_work
from models.tensors.boxes import Box
from protos.errors import Infeasible
from protos.wire.facts import DeviceId

# Of one program's time, what two may take to be worth it.
_WORTHWHILE = 0.95


@dataclass(frozen=True, slots=True)
class SingleDevice:
    """One device computing the whole network: its seconds, transfers included, and whether its
    memory suffices. It does so in one program, or in two that different engines compute, of which
    the first has the units before `cut`.
    """

    device: Device
    seconds: float
    fits: bool
    cut: int = 0


def everything(network: Network, device: DeviceId, start: int = 0, stop: int = 0) -> Block:
    """The whole network, or its units [start, stop), as one block on one device."""
    shape, stop = network.graph.shape, stop or len(network.units)
    boxes = {name: Box.whole(shape(name)) for name in network.outputs(start, stop)}
    tile = Tile(device, boxes)
    return Block(start, stop, (tile,))


def whole_works(network: Network) -> Sequence[NodeWork]:
    """The work of every node that the network's outputs need."""
    block = everything(network, DeviceId(""))
    return tile_works(network, block, block.tiles[0])


_UNSPLIT: weakref.WeakKeyDictionary[Network, list[NodeWork]] = weakref.WeakKeyDictionary()


def unsplit_works(network: Network) -> Sequence[NodeWork]:
    """The work of every node as onnxruntime does it, which computes what nobody reads, too: all
    tokens of a transformer's last layer, for example, where the classifier reads the first. Cached
    for the network's lifetime.
    """
    found = _UNSPLIT.get(network)
    if found is None:
        graph, found = network.graph, []
        for node in graph.nodes:
            whole = Box.whole(graph.shape(node.outputs[0]))
            found.append(node_work(graph, node, whole, operator(node).reads(graph, node, whole)))
        _UNSPLIT[network] = found
    return found


@dataclass(frozen=True, slots=True)
class _Computation:
    """Seconds of the unsplit network as one program, and as two, of which the first has the units
    before `cut`, the best one; infinite if there is no reason for two.
    """

    whole_s: float
    halves_s: float = np.inf
    cut: int = 0

    def best(self, whole_s: float) -> tuple[float, int]:
        """Seconds, and the cut, where the whole as one program takes `whole_s`; 0: no cut."""
        is_cut = self.halves_s < _WORTHWHILE * whole_s
        return (self.halves_s, self.cut) if is_cut else (whole_s, 0)


def _computation(network: Network, costs: Costs) -> _Computation:
    work, engines = unsplit_works(network), costs.engines
    if len(engines) == 1:
        return _Computation(costs.block_s(work))
    nodes = np.array(
        [[engine.layer_rates(node).seconds(node) for node in work] for engine in engines]
    )
    task_s = np.array([engine.task_s for engine in engines])[:, None]
    zero = np.zeros_like(task_s)
    geometry = geometry_of(network)
    inner = [*geometry.nodes[1:-1]]
    heads = (np.hstack([zero, np.cumsum(nodes, axis=1)]) + task_s).min(axis=0)
    tails = (np.hstack([np.cumsum(nodes[:, ::-1], axis=1)[:, ::-1], zero]) + task_s).min(axis=0)
    halves = heads[inner] + tails[inner]
    if not len(halves):
        return _Computation(float(tails[0]))
    best = int(halves.argmin())
    return _Computation(float(tails[0]), float(halves[best]), geometry.boundaries[1 + best])


def computing_s(network: Network, devices: Sequence[Device]) -> list[float]:
    """Seconds of computation for the unsplit network per device: in one program, or in two if
    that takes less by a twentieth.

    Raises:
        Infeasible: there is no device.
    """
    return [found.best(found.whole_s)[0] for found in _computations(network, devices)]


def _computations(network: Network, devices: Sequence[Device]) -> list[_Computation]:
    if not devices:
        raise Infeasible(cause="there is no device to plan for", cure="Start a worker.")
    known: dict[int, _Computation] = {}
    for device in devices:
        if id(device.costs) not in known:
            known[id(device.costs)] = _computation(network, device.costs)
    return [known[id(device.costs)] for device in devices]


def fastest_first(network: Network, devices: Sequence[Device]) -> tuple[Device, ...]:
    """Devices by their seconds of computation for the whole network, without transfers; among
    equals the host comes first.
    """
    pairs = zip(computing_s(network, devices), devices, strict=True)
    ranked = sorted(pairs, key=lambda pair: (pair[0], not pair[1].host, pair[1].id))
    return tuple(device for _, device in ranked)


def shares_of(network: Network, devices: Sequence[Device]) -> list[tuple[float, ...]]:
    """Proportions for dividing work: by rate and, if that overfills a device, by memory for
    weights.
    """
    rooms = tuple(weight_room_bytes(device) for device in devices)
    by_rate = rates_of(network, devices)
    return [by_rate, rooms] if all(0 < room < float("inf") for room in rooms) else [by_rate]


def rates_of(network: Network, devices: Sequence[Device]) -> tuple[float, ...]:
    """Networks per second that each device computes, as weights for its tiles."""
    return tuple(1.0 / seconds for seconds in computing_s(network, devices))


def best_alone(network: Network, devices: Sequence[Device]) -> SingleDevice:
    """The device that would answer first if it computed everything. A device with enough memory is
    preferred, and among equals the host.
    """
    works = whole_works(network)
    weights, relaid = sum(w.weight_bytes for w in works), sum(w.relaid_bytes for w in works)
    found, sizes = [], bytes_alone(network)
    for device, computation in zip(devices, _computations(network, devices), strict=True):
        whole_s = device.unsplit_s or computation.whole_s
        seconds, cut = (whole_s, 0) if device.limits else computation.best(whole_s)
        seconds += sum(map(device.link.transfer_s, sizes))
        found.append(SingleDevice(device, seconds, holds(device, weights, relaid), cut))
    return min(found, key=lambda choice: (not choice.fits, choice.seconds, not choice.device.host))


def bytes_alone(network: Network) -> tuple[int, int]:
    """Bytes of the network's inputs, and of its outputs, on the wire."""
    block = everything(network, DeviceId(""))
    (tile,) = block.tiles
    return (
        bytes_of(network, tile_extent(network, block, tile).inputs),
        bytes_of(network, tile.boxes),
    )


def bytes_of(network: Network, boxes: Mapping[str, Box]) -> int:
    """Bytes of boxes of tensors on the wire."""
    tensors = network.graph.tensors
    return sum(box.volume * tensors[name].wire_itemsize for name, box in boxes.items())
