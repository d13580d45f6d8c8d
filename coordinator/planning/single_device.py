"""The whole network on one device, with which every plan is compared."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.costs.cluster import Device
from coordinator.planning.plan_memory import holds, weight_room_bytes
from coordinator.tasks.plan import Block, Tile, tile_extent, tile_works
from models.cut.units import Network
from models.operators import operator
from models.operators.work import NodeWork, node_work
from models.tensors.boxes import Box
from protos.errors import Infeasible
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class SingleDevice:
    """One device computing the whole network: its seconds, transfers included, and whether its
    memory suffices.
    """

    device: Device
    seconds: float
    fits: bool


def everything(network: Network, device: DeviceId) -> Block:
    """The whole network as one block on one device."""
    shape, stop = network.graph.shape, len(network.units)
    boxes = {name: Box.whole(shape(name)) for name in network.outputs(0, stop)}
    tile = Tile(device, boxes)
    return Block(0, stop, (tile,))


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


def computing_s(
    network: Network, devices: Sequence[Device], works: Sequence[NodeWork] = ()
) -> list[float]:
    """Seconds of computation for the unsplit network, or for these `works` of it, per device.

    Raises:
        Infeasible: there is no device.
    """
    if not devices:
        raise Infeasible(cause="there is no device to plan for", cure="Start a worker.")
    work = works or unsplit_works(network)
    known: dict[int, float] = {}
    for device in devices:
        if id(device.costs) not in known:
            known[id(device.costs)] = device.costs.block_s(work)
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
    found = [
        SingleDevice(device, seconds, holds(device, weights, relaid))
        for device, seconds in zip(devices, alone_s(network, devices), strict=True)
    ]
    return min(found, key=lambda each: (not each.fits, each.seconds, not each.device.host))


def alone_s(
    network: Network, devices: Sequence[Device], works: Sequence[NodeWork] = ()
) -> list[float]:
    """Seconds for everything, or for these `works` of it, transfers included, per device: as it was
    measured where that was done for everything.
    """
    block = everything(network, DeviceId(""))
    (tile,) = block.tiles
    sizes = [
        bytes_of(network, boxes) for boxes in (tile_extent(network, block, tile).inputs, tile.boxes)
    ]
    return [
        (seconds if works else device.unsplit_s or seconds)
        + sum(map(device.link.transfer_s, sizes))
        for device, seconds in zip(devices, computing_s(network, devices, works), strict=True)
    ]


def bytes_of(network: Network, boxes: Mapping[str, Box]) -> int:
    """Bytes of boxes of tensors on the wire."""
    tensors = network.graph.tensors
    return sum(box.volume * tensors[name].wire_itemsize for name, box in boxes.items())
