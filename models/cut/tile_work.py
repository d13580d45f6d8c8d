"""What blocks compute for their tiles, composed from their units.

Blocks with the same end demand the same of their last units, whatever unit they begin with, and
searches return to earlier divisions, so a unit's result for a demand is cached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from models.cut.units import Network, Unit
from models.operators.geometry import Extent
from models.operators.work import NodeWork, works
from models.tensors.boxes import Box

# About 100 MB of boxes for a deep network; a search on eight devices sees some thousands.
MOST_KEPT = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class TileWork:
    """What consecutive nodes compute and read for one tile, and the work of each node that the tile
    needs.
    """

    reach: Extent
    works: Sequence[NodeWork]


def unit_work(network: Network, unit: Unit, demand: Mapping[str, Box]) -> TileWork:
    """Of one unit, for demanded boxes of its outputs."""
    memo = cast("dict[object, TileWork]", network.memo)
    key = ("unit", unit.start, tuple(demand.items()))
    found = memo.get(key)
    if found is None:
        if len(memo) >= MOST_KEPT:
            memo.clear()
        reach = unit.extent(demand)
        found = memo[key] = TileWork(reach, works(unit.graph, unit.nodes, reach))
    return found


def block_work(network: Network, start: int, stop: int, demand: Mapping[str, Box]) -> TileWork:
    """Of units [start, stop), for boxes of what they yield."""
    wanted = dict(demand)
    computed: dict[str, Box] = {}
    parts: list[TileWork] = []
    for unit in reversed(network.units[start:stop]):
        asked = {name: wanted.pop(name) for name in unit.outputs if name in wanted}
        found = unit_work(network, unit, asked)
        for name, box in found.reach.inputs.items():
            wanted[name] = box.hull(wanted.get(name, box))
        computed |= found.reach.computed
        parts.append(found)
    parts.reverse()
    reads = tuple(read for part in parts for read in part.reach.reads)
    every = [work for part in parts for work in part.works]
    return TileWork(Extent(computed, reads, wanted), every)
