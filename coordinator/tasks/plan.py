"""Plans: immutable, versioned, printable, checkable, saved and loaded as JSON.

A plan divides a network's units into blocks. Each block is a set of tiles: one per device that
takes part, or several on a device that computes several at once. A tile owns a box of every tensor
that the block yields. Together the tiles of a block cover its outputs exactly once (or, with
`reduce`, add up to them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from models.cut.partial import partial_extent, partial_work
from models.cut.tile_work import MOST_KEPT, TileWork, block_work
from models.cut.units import Network
from models.operators.geometry import Extent
from models.operators.work import NodeWork
from models.tensors.boxes import Box
from models.tensors.precision import Wire
from protos.wire.facts import DeviceId

ExchangeMode = Literal["none", "host", "peer"]


@dataclass(frozen=True, slots=True)
class Tile:
    """One device's share of a block.

    `boxes` gives the box that it owns of each of the block's outputs. A tile with a `part` sums
    over that box of the block's only input tensor (a fully connected layer split over its input):
    it owns the whole output, and the partial sums of the block's tiles are added. `flop` counts
    what it computes, halos included.
    """

    device: DeviceId
    boxes: Mapping[str, Box]
    flop: int = 0
    part: Box | None = None

    @property
    def reduce(self) -> bool:
        """Whether its output is a partial sum."""
        return self.part is not None


@dataclass(frozen=True, slots=True)
class Block:
    """Units [start, stop), computed without communication inside.

    `exchange` says how the block's inputs reach its devices: through the host, from the peers that
    computed them, or not at all. With `barrier` no tile starts before all tiles of the previous
    block are merged (as published); without it, a tile starts when its boxes have arrived.
    """

    start: int
    stop: int
    tiles: tuple[Tile, ...]
    barrier: bool = True
    exchange: ExchangeMode = "host"

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """Devices that compute in this block."""
        return tuple(dict.fromkeys(tile.device for tile in self.tiles))


@dataclass(frozen=True, slots=True)
class Unused:
    """A device that the plan leaves out, and why."""

    device: DeviceId
    reason: str


@dataclass(frozen=True, slots=True)
class MadeFor:
    """A device that a plan could use, and whether its speed was measured (otherwise assumed)."""

    device: DeviceId
    measured: bool


@dataclass(frozen=True, slots=True)
class TrafficBytes:
    """Payload bytes that a request moves: host to devices, devices to host, peer to peer."""

    scatter: int = 0
    gather: int = 0
    halo: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How one model runs on one cluster.

    `predicted_latency_s` is the planner's prediction, `single_device_latency_s` that of the best
    device alone, `baseline_device` its id. `total_flop` is the whole network's, `redundant_flop`
    what the tiles compute in addition. `wire` is the encoding of maps between blocks. `made_for`
    are the devices that there were when it was made; empty if that is not known.
    """

    model: str
    strategy: str
    blocks: tuple[Block, ...]
    predicted_latency_s: float
    single_device_latency_s: float
    baseline_device: DeviceId
    total_flop: int
    redundant_flop: int
    traffic: TrafficBytes
    unused: tuple[Unused, ...] = ()
    version: int = 0
    notes: tuple[str, ...] = field(default=())
    wire: Wire = "exact"
    made_for: tuple[MadeFor, ...] = ()

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """Devices that compute somewhere in the plan, in order of appearance."""
        return tuple(dict.fromkeys(d for block in self.blocks for d in block.devices))


def tile_extent(network: Network, block: Block, tile: Tile) -> Extent:
    """What a tile of a block computes and reads."""
    return _tile_work(network, block, tile).reach


def tile_works(network: Network, block: Block, tile: Tile) -> Sequence[NodeWork]:
    """The work of every node of a tile."""
    return _tile_work(network, block, tile).works


def _tile_work(network: Network, block: Block, tile: Tile) -> TileWork:
    """Both of the above, cached with the network: searches ask for the same tiles many times."""
    memo = cast("dict[object, TileWork]", network.memo)
    key = ("tile", block.start, block.stop, tuple(tile.boxes.items()), tile.part)
    found = memo.get(key)
    if found is None:
        found = _fresh(network, block, tile)
        if len(memo) >= MOST_KEPT:
            memo.clear()
        memo[key] = found
    return found


def _fresh(network: Network, block: Block, tile: Tile) -> TileWork:
    if tile.part is None:
        return block_work(network, block.start, block.stop, tile.boxes)
    graph, nodes = network.graph, network.nodes(block.start, block.stop)
    reach = partial_extent(graph, nodes, tile.part)
    return TileWork(reach, [partial_work(graph, nodes, tile.part)])
