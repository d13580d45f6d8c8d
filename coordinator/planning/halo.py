"""`halo`: tiles stay where they are, and only their borders travel from peer to peer.

Nothing waits that has its boxes: no barrier, and a device's edge rows are computed first where
that lets its neighbours go on sooner. The search starts from an exchange before every unit and
improves the blocks one after the other, as long as the event simulator says that it helps:

* fuse a block with the next (less messages, some redundant computation);
* compute edge rows before the interior;
* divide a block among fewer devices, down to one (small maps have fewer rows than devices).

What cannot be split is gathered on the device that is best at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coordinator.planning.devices import Cluster, Device
from coordinator.planning.plan import Block, Exchange, Plan, Tile, TrafficBytes, Unused, tile_works
from coordinator.planning.simulator import Simulation, simulate
from coordinator.planning.single import single
from models.boxes import Span
from models.tiles import MapTile, map_size, tile_boxes, weighted_spans, whole_map
from models.units import Network

# Simulations per search: keeps it at about a second for eight devices.
EVALUATIONS = 120
# An improvement below this is not worth another shape of plan.
WORTHWHILE = 1e-4


@dataclass(frozen=True, slots=True)
class Part:
    """A block under consideration: its units, how many of the fastest devices divide it (0: the
    one that is best at it), and how many edge rows are computed first.
    """

    start: int
    stop: int
    devices: int
    edge_rows: int = 0


def halo(network: Network, cluster: Cluster) -> Plan:
    """The plan with the least simulated latency that the search finds."""
    alone = single(network, cluster)
    if len(cluster.devices) < 2:
        return replace(alone, strategy="halo")
    search = _Search(network, cluster)
    parts, simulation = search.run()
    return _finished(network, cluster, alone, search.blocks(parts), simulation)


class _Search:
    """Improves a list of parts by simulation."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network = network
        self.cluster = cluster
        whole = Block(0, len(network.units), ())
        tile = Tile(cluster.devices[0].id, tile_boxes(network, 0, whole.stop, _all(network, whole)))
        works = tile_works(network, whole, tile)
        self._seconds = {device.id: device.costs.block_s(works) for device in cluster.devices}
        self._order = sorted(cluster.devices, key=lambda device: self._seconds[device.id])
        self._left = EVALUATIONS
        self._blocks: dict[Part, Block] = {}

    def run(self) -> tuple[list[Part], Simulation]:
        """The best parts found, and what is predicted of them."""
        count = len(self.cluster.devices)
        parts = [
            Part(i, i + 1, count if unit.splits else 0) for i, unit in enumerate(self.network.units)
        ]
        parts = list(self._without_idle_cuts(parts))
        best = self._simulated(parts)
        for improve in (self._edges_everywhere, self._merge, self._fewer, self._merge):
            parts, best = improve(parts, best)
        return parts, best

    def blocks(self, parts: Sequence[Part]) -> tuple[Block, ...]:
        """The blocks of a plan."""
        return tuple(self._block(part) for part in parts)

    def _block(self, part: Part) -> Block:
        found = self._blocks.get(part)
        if found is None:
            exchange: Exchange = "peer" if part.start else "host"
            tiles = tuple(self._tiles(part))
            found = Block(part.start, part.stop, tiles, barrier=False, exchange=exchange)
            self._blocks[part] = found
        return found

    # ------------------------------------------------------------ moves

    def _without_idle_cuts(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Fuses units that need no halo with the unit before them: that costs nothing."""
        held: Part | None = None
        for part in parts:
            nodes = self.network.nodes(part.start, part.stop)
            local = all(w.reach == 1 and w.stride == 1 for node in nodes for w in node.windows)
            if held is not None and part.devices and held.devices == part.devices and local:
                held = replace(held, stop=part.stop)
                continue
            if held is not None:
                yield held
            held = part
        assert held is not None
        yield held

    def _edges_everywhere(
        self, parts: list[Part], best: Simulation
    ) -> tuple[list[Part], Simulation]:
        return self._better(parts, best, [replace(p, edge_rows=_halo_rows(p)) for p in parts])

    def _merge(self, parts: list[Part], best: Simulation) -> tuple[list[Part], Simulation]:
        index = 0
        while index + 1 < len(parts) and self._left > 0:
            one, other = parts[index : index + 2]
            if one.devices and other.devices:
                fused = replace(other, start=one.start)
                trial = [*parts[:index], fused, *parts[index + 2 :]]
                better, simulation = self._better(parts, best, trial)
                if better is trial:
                    parts, best = trial, simulation
                    continue
            index += 1
        return parts, best

    def _fewer(self, parts: list[Part], best: Simulation) -> tuple[list[Part], Simulation]:
        """From the end, where maps are small: the last parts on fewer devices."""
        for index in range(len(parts) - 1, -1, -1):
            if not parts[index].devices or self._left <= 0:
                continue
            before = best
            rows = map_size(self.network, parts[index].start, parts[index].stop)[0]
            for count in sorted({rows, -(-rows // 2), 1} - {0}, reverse=True):
                if count >= parts[index].devices:
                    continue
                trial = [replace(p, devices=min(p.devices, count)) for p in parts[index:]]
                parts, best = self._better(parts, best, [*parts[:index], *trial])
            if best is before and rows > 2 * len(self.cluster.devices):
                break
        return parts, best

    def _better(
        self, parts: list[Part], best: Simulation, trial: list[Part]
    ) -> tuple[list[Part], Simulation]:
        self._left -= 1
        simulation = self._simulated(trial)
        if simulation.latency_s < best.latency_s * (1 - WORTHWHILE):
            return trial, simulation
        return parts, best

    def _simulated(self, parts: Sequence[Part]) -> Simulation:
        plan = Plan(
            self.network.name,
            "halo",
            self.blocks(parts),
            predicted_latency_s=0.0,
            single_device_latency_s=0.0,
            baseline_device=self._order[0].id,
            total_flop=0,
            redundant_flop=0,
            traffic=TrafficBytes(),
            wire=self.network.wire,
        )
        return simulate(plan, self.network, self.cluster)

    # ------------------------------------------------------------ tiles

    def _tiles(self, part: Part) -> Iterator[Tile]:
        block = Block(part.start, part.stop, ())
        if not part.devices:
            yield self._tile(block, self._best_alone(block), _all(self.network, block))
            return
        height, width = map_size(self.network, part.start, part.stop)
        used = self._order[: part.devices]
        # In the cluster's order, so that a device keeps its place when others drop out.
        chosen = [device for device in self.cluster.devices if device in used]
        rows = weighted_spans(height, [1.0 / self._seconds[each.id] for each in chosen])
        last = len(chosen) - 1
        for index, (device, span) in enumerate(zip(chosen, rows, strict=True)):
            top = part.edge_rows if index else 0
            bottom = part.edge_rows if index < last else 0
            for piece in _edges_first(span, top, bottom):
                yield self._tile(block, device, MapTile(piece, Span(0, width)))

    def _tile(self, block: Block, device: Device, tile: MapTile) -> Tile:
        boxes = tile_boxes(self.network, block.start, block.stop, tile)
        made = Tile(device.id, boxes)
        return replace(made, flop=sum(w.flop for w in tile_works(self.network, block, made)))

    def _best_alone(self, block: Block) -> Device:
        tile = Tile(
            self._order[0].id,
            tile_boxes(self.network, block.start, block.stop, _all(self.network, block)),
        )
        works = tile_works(self.network, block, tile)
        return min(self.cluster.devices, key=lambda device: device.costs.block_s(works))


def _edges_first(span: Span, top: int, bottom: int) -> list[Span]:
    """The span's edges, then its interior; all of it at once where no interior would be left."""
    if not len(span):
        return []
    if len(span) <= top + bottom or not top + bottom:
        return [span]
    inner = Span(span.start + top, span.stop - bottom)
    edges = [Span(span.start, inner.start), Span(inner.stop, span.stop)]
    return [*(edge for edge in edges if len(edge)), inner]


def _halo_rows(part: Part) -> int:
    """Rows that a neighbour's next 3x3 window reads; two cover a pool between."""
    return 2 if part.devices else 0


def _all(network: Network, block: Block) -> MapTile:
    return whole_map(network, block.start, block.stop)


def _finished(
    network: Network,
    cluster: Cluster,
    alone: Plan,
    blocks: tuple[Block, ...],
    simulation: Simulation,
) -> Plan:
    """The plan with everything that the contract promises."""
    flop = sum(tile.flop for block in blocks for tile in block.tiles)
    plan = replace(
        alone,
        strategy="halo",
        blocks=blocks,
        predicted_latency_s=simulation.latency_s,
        redundant_flop=flop - alone.total_flop,
        traffic=simulation.traffic,
        unused=(),
        notes=(),
    )
    left_out = [device for device in cluster.devices if device.id not in plan.devices]
    reason = "every map has fewer rows than devices are faster"
    gain = alone.single_device_latency_s / simulation.latency_s
    exchanges = sum(block.exchange == "peer" for block in blocks)
    note = (
        f"Halos travel from peer to peer at {exchanges} boundaries "
        f"({simulation.traffic.halo / 1e6:.2f} MB); {gain:.2f} times as fast as one device."
    )
    unused = tuple(Unused(device.id, reason) for device in left_out)
    return replace(plan, unused=unused, notes=(note,))
