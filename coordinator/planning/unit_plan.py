"""From a layout for each unit to a complete plan: blocks, exact bytes and FLOPs, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.costs.devices import Cluster, Device
from coordinator.planning.layouts import Configuration, Layout, divider_of
from coordinator.planning.memory import Need, needs, weight_room_bytes
from coordinator.tasks.plan import Block, DeviceId, Plan, Tile, TrafficBytes, Unused
from models.boxes import Box
from models.geometry import extent
from models.memory import megabytes
from models.units import Network, layers_of
from models.work import Work, works
from protos.errors import Infeasible


@dataclass(frozen=True, slots=True)
class Alone:
    """What one device needs for the whole network."""

    device: Device
    seconds: float
    fits: bool


def fastest_first(network: Network, devices: Sequence[Device]) -> tuple[Device, ...]:
    """Devices in the order of their seconds for the whole network's computation, whatever their
    links; the host before equals.
    """
    pairs = zip(computing_s(network, devices), devices, strict=True)
    ranked = sorted(pairs, key=lambda pair: (pair[0], not pair[1].host, pair[1].id))
    return tuple(device for _, device in ranked)


def computing_s(network: Network, devices: Sequence[Device]) -> list[float]:
    """Seconds that each device computes if it computes everything."""
    work = _all_work(network)
    known: dict[int, float] = {}
    for device in devices:
        if id(device.costs) not in known:
            known[id(device.costs)] = device.costs.block_s(work)
    return [known[id(device.costs)] for device in devices]


def rates_of(network: Network, devices: Sequence[Device]) -> tuple[float, ...]:
    """Networks per second that each device computes: the weights of its tiles."""
    return tuple(1.0 / seconds for seconds in computing_s(network, devices))


def shares_of(network: Network, devices: Sequence[Device]) -> list[tuple[float, ...]]:
    """Proportions in which to divide work: by rate, and where that overfills a device, by memory
    for weights.
    """
    rooms = tuple(weight_room_bytes(device) for device in devices)
    by_rate = rates_of(network, devices)
    return [by_rate, rooms] if all(0 < room < float("inf") for room in rooms) else [by_rate]


def best_alone(network: Network, devices: Sequence[Device]) -> Alone:
    """The device that answers first if it computes everything; one that has memory for it is
    preferred to one that has not.
    """
    weights = sum(each.weight_bytes for each in _all_work(network))
    pairs = zip(devices, computing_s(network, devices), strict=True)
    found = [
        Alone(
            device,
            computed_s + _moving_s(network, device),
            weights <= weight_room_bytes(device),
        )
        for device, computed_s in pairs
    ]
    return min(found, key=lambda each: (not each.fits, each.seconds, not each.device.host))


def alone_s(network: Network, device: Device) -> float:
    """Seconds of a device that computes everything, transfers included."""
    return device.costs.block_s(_all_work(network)) + _moving_s(network, device)


def _moving_s(network: Network, device: Device) -> float:
    """Seconds of the transfers from and to a device that computes everything."""
    graph, divider = network.graph, divider_of(network)
    read: dict[str, Box] = {}
    for unit in network.units:
        for name, box in divider.whole(unit).reads.items():
            if name in graph.inputs:
                read[name] = read.get(name, box).hull(box)
    sizes = [box.volume * graph.tensors[name].wire_itemsize for name, box in read.items()]
    sizes += [
        graph.tensors[name].on_wire.nbytes for name in graph.outputs if name in graph.producer
    ]
    return sum(device.link.transfer_s(size) for size in sizes)


def alone_plan(network: Network, devices: Sequence[Device], strategy: str) -> Plan:
    """Everything in one block on the device that answers first."""
    device = devices.index(best_alone(network, devices).device)
    divider = divider_of(network)
    layouts = [Layout(Configuration(), {device: divider.whole(u)}) for u in network.units]
    plan = plan_of(network, devices, strategy, layouts, 0.0)
    return replace(plan, notes=("one device alone is fastest: nothing is split",))


def plan_of(
    network: Network,
    devices: Sequence[Device],
    strategy: str,
    layouts: Sequence[Layout],
    cost_s: float,
) -> Plan:
    """The plan in which unit i has `layouts[i]`; consecutive units on one and the same device are
    one block. `cost_s` is the additive cost, of which joined units save the runs of a program;
    the whole network on one device costs what it does there, each input sent once.
    """
    blocks: list[Block] = []
    scatter = gather = flop = 0
    for start, stop in _runs(layouts):
        tiles, reads = _tiles(network, devices, layouts[start], start, stop)
        blocks.append(Block(start, stop, tiles))
        scatter += sum(_bytes(network, each) for each in reads)
        gather += sum(_bytes(network, tile.boxes) for tile in tiles)
        flop += sum(tile.flop for tile in tiles)
        cost_s -= (stop - start - 1) * devices[next(iter(layouts[start].tiles))].costs.task_s
    if len(blocks) == 1 and len(layouts[0].tiles) == 1:
        cost_s = alone_s(network, devices[next(iter(layouts[0].tiles))])
    single = best_alone(network, devices)
    total_flop = sum(each.flop for each in _all_work(network))
    plan = Plan(
        model=network.name,
        strategy=strategy,
        blocks=tuple(blocks),
        predicted_latency_s=cost_s,
        single_device_latency_s=single.seconds,
        baseline_device=single.device.id,
        total_flop=total_flop,
        redundant_flop=max(0, flop - total_flop),
        traffic=TrafficBytes(scatter=scatter, gather=gather),
        wire=network.wire,
    )
    reason = "no layer is faster with it, transfers included"
    unused = [Unused(each.id, reason) for each in devices if each.id not in plan.devices]
    return replace(plan, unused=tuple(unused))


def overfilled(network: Network, cluster: Cluster, plan: Plan) -> dict[DeviceId, Need]:
    """Devices that the plan gives more than their memory can hold."""
    caps = {device.id: device.memory_bytes for device in cluster.devices if device.memory_bytes}
    if not caps:
        return {}
    return {
        name: need
        for name, need in needs(network, plan).items()
        if need.total_bytes() > caps.get(name, float("inf"))
    }


def too_little_memory(
    network: Network, cluster: Cluster, over: Mapping[DeviceId, Need]
) -> Infeasible:
    """The error that says which layer needs how much, where, of how much."""
    device = max((cluster.device(name) for name in over), key=lambda each: each.memory_bytes)
    need = over[device.id]
    assert need.largest is not None
    layers = layers_of(network.units[need.largest.start : need.largest.stop])
    span = " to ".join(dict.fromkeys((layers[0], layers[-1]))) if layers else "its block"
    return Infeasible(
        cause=f"{device.name} would need {megabytes(need.total_bytes())} and has "
        f"{megabytes(device.memory_bytes)}; {span} "
        f"holds {megabytes(need.largest_bytes)} of weights",
        cure="Add devices with more memory, or raise the workers' memory limit.",
    )


def _runs(layouts: Sequence[Layout]) -> list[tuple[int, int]]:
    """Units [start, stop) of each block."""
    runs: list[tuple[int, int]] = []
    for index, layout in enumerate(layouts):
        joins = index and layout.alone is not None and layout.alone == layouts[index - 1].alone
        if joins:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _tiles(
    network: Network, devices: Sequence[Device], layout: Layout, start: int, stop: int
) -> tuple[tuple[Tile, ...], list[Mapping[str, Box]]]:
    """A block's tiles, and what each of them reads."""
    if stop - start == 1:
        tiles = tuple(
            Tile(devices[d].id, each.boxes, each.flop, each.part)
            for d, each in layout.tiles.items()
        )
        return tiles, [each.reads for each in layout.tiles.values()]
    assert layout.alone is not None
    graph, nodes = network.graph, network.nodes(start, stop)
    boxes = {name: Box.whole(graph.shape(name)) for name in network.outputs(start, stop)}
    reach = extent(graph, nodes, boxes)
    flop = sum(each.flop for each in works(graph, nodes, reach))
    return (Tile(devices[layout.alone].id, boxes, flop),), [reach.inputs]


def _all_work(network: Network) -> list[Work]:
    divider = divider_of(network)
    return [each for unit in network.units for each in divider.whole(unit).work]


def _bytes(network: Network, boxes: Mapping[str, Box]) -> int:
    tensors = network.graph.tensors
    return sum(box.volume * tensors[name].wire_itemsize for name, box in boxes.items())
