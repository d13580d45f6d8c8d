"""Single units as blocks: fully connected layers divided over their output or input, other units
over their channels.

Divided over its output, each device holds some rows of the weights and reads the whole vector;
divided over its input, each holds some columns, reads its part, and yields a partial sum that the
host adds up. The first such layer is often best divided by where the tiles of the last map are, the
next over its output, the last over its input: it depends on the bytes of tensors and weights.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from coordinator.costs.cluster import Device
from coordinator.planning.geometry.blocks import Geometry
from coordinator.planning.geometry.layouts import Configuration, UnitTile, divider_of
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.partition import cut_span
from coordinator.planning.plan_memory import holds
from coordinator.planning.search.division_options import Option
from coordinator.planning.search.tables import Rank, Tables
from coordinator.planning.single_device import bytes_of
from models.cut.partial import summed_input
from models.cut.units import Network, Unit
from models.graph.graph import CHANNELS, ROWS
from models.tensors.boxes import Box, Span


def connected_units(network: Network, geometry: Geometry) -> dict[Mark, Unit]:
    """Units that are a single fully connected layer, by the mark before them."""
    return {
        start: unit
        for start, unit in single_units(network, geometry)
        if summed_input(network.graph, unit.nodes) is not None
    }


def single_units(network: Network, geometry: Geometry) -> Iterator[tuple[Mark, Unit]]:
    """Units between two marks that have no other unit between them, by the mark before them."""
    edges = itertools.pairwise(geometry.boundaries)
    for start, (boundary, after) in zip(geometry.marks, edges, strict=False):
        if after == boundary + 1:
            yield start, network.units[boundary]


def divisions(
    network: Network, unit: Unit, rates: Sequence[float]
) -> Iterator[tuple[UnitTile, ...]]:
    """The layer divided over its output and over its input, in proportion to rates; no
    empty tiles.
    """
    graph, divider = network.graph, divider_of(network)
    output = Box.whole(graph.shape(unit.outputs[-1]))
    spans = cut_span(output[CHANNELS], rates)
    if all(map(len, spans)) and len(unit.outputs) == 1:
        boxes = [{unit.outputs[0]: output.replace(CHANNELS, span)} for span in spans]
        yield tuple(divider.tile(unit, box) for box in boxes)
    whole = _input(network, unit)
    spans = cut_span(whole[CHANNELS], rates)
    if all(map(len, spans)):
        parts = [whole.replace(CHANNELS, span) for span in spans]
        yield tuple(divider.partial_tile(unit, part) for part in parts)


def where_tiles_lie(
    network: Network, unit: Unit, rows: Sequence[Span]
) -> tuple[UnitTile, ...] | None:
    """The layer divided over its input, each device with the rows of the map that it already has;
    None if these are not all rows, or the input is not a map.
    """
    whole = _input(network, unit)
    if len(whole) <= ROWS or sum(map(len, rows)) != len(whole[ROWS]):
        return None
    divider = divider_of(network)
    return tuple(divider.partial_tile(unit, whole.replace(ROWS, span)) for span in rows)


def divided(network: Network, tables: Tables, subsets: Sequence[Sequence[Rank]]) -> list[Option]:
    """Every fully connected layer, divided over every subset of devices."""
    found: list[Option] = []
    for start, unit in connected_units(network, tables.geometry).items():
        work = divider_of(network).whole(unit).work
        for subset in subsets:
            devices = [tables.devices[d] for d in subset]
            rates = [1.0 / device.costs.block_s(work) for device in devices]
            found += (
                _costed(network, tables, start, devices, tiles)
                for tiles in (divisions(network, unit, rates) if len(devices) > 1 else ())
            )
    return found


def channel_slices(network: Network, tables: Tables) -> list[Option]:
    """Every unit between two marks whose channels can be computed separately, in equal slices over
    all devices, which hold only their slice of the weights.
    """
    count, divider = len(tables.devices), divider_of(network)
    found: list[Option] = []
    for start, unit in single_units(network, tables.geometry):
        if count < 2 or CHANNELS not in divider.splits(unit):
            continue
        boxes = divider.divided(unit, Configuration(channels=count), [1.0] * count)
        if boxes is not None:
            tiles = [divider.tile(unit, box) for box in boxes]
            found.append(_costed(network, tables, start, tables.devices, tiles))
    return found


def _costed(
    network: Network,
    tables: Tables,
    start: Mark,
    devices: Sequence[Device],
    tiles: Sequence[UnitTile],
) -> Option:
    """With the cost of Eq. 3: the sum of its transfers, and the slowest device's computation."""
    costs = np.full((2, *tables.shape), np.inf)
    costs[:, start, start + 1] = _divided_s(network, devices, tiles)
    seconds, finish_s = costs
    return Option(devices, tables.geometry.sizes, seconds, finish_s, units=tiles)


def _divided_s(
    network: Network, devices: Sequence[Device], tiles: Sequence[UnitTile]
) -> tuple[float, float]:
    """Costs of a divided unit by Eq. 3 and by Eq. 6."""
    moving = slowest = finish = 0.0
    for device, tile in zip(devices, tiles, strict=True):
        if not holds(device, tile.weight_bytes, tile.relaid_bytes):
            return float("inf"), float("inf")
        compute = device.costs.block_s(tile.work)
        transfers = sum(
            device.link.transfer_s(bytes_of(network, boxes)) for boxes in (tile.reads, tile.boxes)
        )
        moving += transfers
        slowest, finish = max(slowest, compute), max(finish, compute + transfers)
    return moving + slowest, finish


def _input(network: Network, unit: Unit) -> Box:
    tensor = summed_input(network.graph, unit.nodes)
    assert tensor is not None, "only fully connected layers are divided"
    return Box.whole(network.graph.shape(tensor))
