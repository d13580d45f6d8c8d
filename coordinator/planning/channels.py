"""Single units divided over output channels: each device holds its slice of the weights."""

from __future__ import annotations

import numpy as np

from coordinator.planning.connected import Divided, divided_s
from coordinator.planning.layouts import Configuration, divider_of
from coordinator.planning.partition import CHANNELS
from coordinator.planning.tables import Tables
from models.units import Network


def channel_slices(network: Network, tables: Tables) -> list[Divided]:
    """Every unit between two marks whose channels can be computed apart, in equal slices over all
    devices, at the cost of Eq. 3.
    """
    count, divider = len(tables.devices), divider_of(network)
    found: list[Divided] = []
    for start, (mark, after) in enumerate(zip(network.marks, network.marks[1:], strict=False)):
        unit = network.units[mark]
        if count < 2 or after != mark + 1 or CHANNELS not in divider.splits(unit):
            continue
        boxes = divider.divided(unit, Configuration(channels=count), [1.0] * count)
        if boxes is None:
            continue
        tiles = [divider.tile(unit, each) for each in boxes]
        costs = np.full((2, tables.marks, tables.marks), np.inf)
        costs[:, start, start + 1] = divided_s(network, tables.devices, tiles)
        shares = tuple(zip(tables.devices, tiles, strict=True))
        found.append(Divided(shares, False, *costs))
    return found
