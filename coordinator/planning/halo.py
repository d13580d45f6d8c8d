"""`halo`: tiles stay where they are, and only their borders travel from peer to peer.

Nothing waits that has its boxes: no barrier, and a device's edge rows are computed first where
that lets its neighbours go on sooner. The search starts from an exchange before every unit and
improves the blocks one after the other, as long as the event simulator's rules say that it helps:

* fuse a block with the next (less messages, some redundant computation);
* compute edge rows before the interior;
* divide a block among fewer devices, down to one (small maps have fewer rows than devices).

Where fewer devices are better to begin with, as messages cost what they do, it starts there too.

What cannot be split is gathered on the device that is best at it. Where devices can't reach each
other, borders go through the host, or only those that can take part, whichever is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from coordinator.planning.decide import fitting
from coordinator.planning.devices import Cluster
from coordinator.planning.layouts import UnitTile
from coordinator.planning.plan import Block, Exchange, Plan, Tile, Unused
from coordinator.planning.simulator import simulate
from coordinator.planning.single import single
from coordinator.planning.stages import Stage, Stages, unit_tile
from coordinator.planning.tables import tables_of
from models.boxes import Span
from models.tiles import MapTile, map_size, tile_boxes, weighted_spans, whole_map
from models.units import Network

# Simulated tasks per search: about half a second.
EFFORT = 25_000
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
    """The plan with the least simulated latency that the search finds.

    Raises:
        Infeasible: no device, or none with enough memory.
    """
    return fitting(network, cluster, partial(_plan, network))


def _plan(network: Network, cluster: Cluster) -> Plan:
    alone = single(network, cluster)
    if len(cluster.devices) < 2:
        return replace(alone, strategy="halo")
    clusters = [cluster]
    if cluster.apart and len(cluster.mutual) > 1:
        clusters.append(replace(cluster, devices=cluster.mutual, apart=frozenset()))
    plans = [_finished(network, cluster, alone, _searched(network, each)) for each in clusters]
    return min(plans, key=lambda plan: plan.predicted_latency_s)


def _searched(network: Network, cluster: Cluster) -> tuple[Block, ...]:
    search = _Search(network, cluster)
    return search.blocks(search.run())


class _Search:
    """Improves a list of parts under the rules of the event simulator."""

    def __init__(self, network: Network, cluster: Cluster) -> None:
        self.network = network
        self.cluster = cluster
        self._stages = Stages(network, cluster, tables_of(network, cluster))
        stop = len(network.units)
        whole = self._tile(Part(0, stop, 0), whole_map(network, 0, stop))
        self._seconds = [device.costs.block_s(whole.work) for device in cluster.devices]
        self._order = sorted(range(len(cluster.devices)), key=self._seconds.__getitem__)
        self._left = EFFORT
        self._stage_of: dict[Part, Stage] = {}

    def run(self) -> list[Part]:
        """The best parts found: from all devices, and from fewer where that is better to begin
        with.
        """
        starts = [self._start(count) for count in range(len(self._order), 1, -1)]
        best = min(starts, key=self._latency_s)
        begun = starts[:1] if best == starts[0] else [starts[0], best]
        return min(map(self._improved, begun), key=self._latency_s)

    def _start(self, count: int) -> list[Part]:
        """An exchange wherever one is needed, over the `count` fastest devices."""
        parts = [
            Part(i, i + 1, count if unit.splits else 0) for i, unit in enumerate(self.network.units)
        ]
        return list(self._without_idle_cuts(parts))

    def _improved(self, parts: list[Part]) -> list[Part]:
        self._left = EFFORT
        best = self._latency_s(parts)
        for improve in (self._edges_everywhere, self._merge, self._fewer, self._merge):
            parts, best = improve(parts, best)
        return parts

    def blocks(self, parts: Sequence[Part]) -> tuple[Block, ...]:
        """The blocks of a plan."""
        return tuple(self._block(part) for part in parts)

    def _block(self, part: Part) -> Block:
        exchange: Exchange = "peer" if self._is_direct(part) else "host"
        tiles = tuple(
            Tile(self.cluster.devices[d].id, tile.boxes, tile.flop)
            for d, tile in self._shares(part)
        )
        return Block(part.start, part.stop, tiles, barrier=False, exchange=exchange)

    def _is_direct(self, part: Part) -> bool:
        """Whether its devices get its input from each other."""
        return part.start > 0 and not self.cluster.apart

    def _stage(self, part: Part) -> Stage:
        found = self._stage_of.get(part)
        if found is None:
            shares, direct = tuple(self._shares(part)), self._is_direct(part)
            found = self._stages.stage(part.start, part.stop, shares, direct=direct)
            self._stage_of[part] = found
        return found

    def _latency_s(self, parts: Sequence[Part]) -> float:
        draft = tuple(map(self._stage, parts))
        self._left -= sum(len(stage.shares) for stage in draft)
        return self._stages.latency_s(draft)

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

    def _edges_everywhere(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
        return self._better(parts, best, [replace(p, edge_rows=_halo_rows(p)) for p in parts])

    def _merge(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
        index = 0
        while index + 1 < len(parts) and self._left > 0:
            one, other = parts[index : index + 2]
            if one.devices and other.devices:
                fused = replace(other, start=one.start)
                trial = [*parts[:index], fused, *parts[index + 2 :]]
                better, latency_s = self._better(parts, best, trial)
                if better is trial:
                    parts, best = trial, latency_s
                    continue
            index += 1
        return parts, best

    def _fewer(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
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
            if best == before and rows > 2 * len(self.cluster.devices):
                break
        return parts, best

    def _better(
        self, parts: list[Part], best: float, trial: list[Part]
    ) -> tuple[list[Part], float]:
        latency_s = self._latency_s(trial)
        return (trial, latency_s) if latency_s < best * (1 - WORTHWHILE) else (parts, best)

    # ------------------------------------------------------------ tiles

    def _shares(self, part: Part) -> Iterator[tuple[int, UnitTile]]:
        """Tiles by device, as an index into the cluster's."""
        if not part.devices:
            yield self._best_alone(part)
            return
        height, width = map_size(self.network, part.start, part.stop)
        # In the cluster's order, so that a device keeps its place when others drop out.
        chosen = sorted(self._order[: part.devices])
        rows = weighted_spans(height, [1.0 / self._seconds[d] for d in chosen])
        last = len(chosen) - 1
        for index, (d, span) in enumerate(zip(chosen, rows, strict=True)):
            top = part.edge_rows if index else 0
            bottom = part.edge_rows if index < last else 0
            for piece in _edges_first(span, top, bottom):
                yield d, self._tile(part, MapTile(piece, Span(0, width)))

    def _tile(self, part: Part, tile: MapTile) -> UnitTile:
        block = Block(part.start, part.stop, ())
        boxes = tile_boxes(self.network, part.start, part.stop, tile)
        return unit_tile(self.network, block, Tile(self.cluster.devices[0].id, boxes))

    def _best_alone(self, part: Part) -> tuple[int, UnitTile]:
        tile = self._tile(part, whole_map(self.network, part.start, part.stop))
        devices = self.cluster.devices
        return min(range(len(devices)), key=lambda d: devices[d].costs.block_s(tile.work)), tile


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


def _finished(network: Network, cluster: Cluster, alone: Plan, blocks: tuple[Block, ...]) -> Plan:
    """The plan with everything that the contract promises."""
    flop = sum(tile.flop for block in blocks for tile in block.tiles)
    plan = replace(
        alone,
        strategy="halo",
        blocks=blocks,
        redundant_flop=flop - alone.total_flop,
        unused=(),
        notes=(),
    )
    found = simulate(plan, network, cluster)
    left_out = [device for device in cluster.devices if device.id not in plan.devices]
    reason = "every map has fewer rows than devices are faster"
    gain = alone.single_device_latency_s / found.latency_s
    exchanges = sum(block.exchange == "peer" for block in blocks)
    note = (
        f"Halos travel from peer to peer at {exchanges} boundaries "
        f"({found.traffic.halo / 1e6:.2f} MB); {gain:.2f} times as fast as one device."
    )
    unused = tuple(Unused(device.id, reason) for device in left_out)
    return replace(
        plan,
        predicted_latency_s=found.latency_s,
        traffic=found.traffic,
        unused=unused,
        notes=(note,),
    )
