"""What the search of `halo` is made of: blocks by how they are divided, and their tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coordinator.costs.devices import Cluster
from coordinator.planning.connected import divisions, where_tiles_lie
from coordinator.planning.loads import Loads, Shares
from coordinator.planning.loads import Part as Share
from coordinator.tasks.plan import Block, DeviceId, Tile, tile_works
from models.boxes import Span
from models.partial import summed_input
from models.tiles import MapTile, map_size, spans_of, tile_boxes, weighted_spans, whole_map
from models.units import Network

How = Literal["rows", "in place", "outputs", "inputs"]
# Whoever reads what these make reads sums, which are added up at the host.
SUMS: tuple[How, ...] = ("in place", "inputs")


@dataclass(frozen=True, slots=True)
class Part:
    """A block under consideration: its units, how many of the fastest devices divide it (0: the
    one that is best at it), and how: in rows, or a fully connected layer as `forms.Form` has it.

    Of rows, `edge_rows` at either end are computed first, and the longer strips are moved on by
    `turn` places. `through_host`: its devices get its input from the host.
    """

    start: int
    stop: int
    devices: int
    edge_rows: int = 0
    turn: int = 0
    how: How = "rows"
    through_host: bool = False


class Divider:
    """Divides parts over the devices of a cluster; `loads` are of blocks between any units."""

    def __init__(self, network: Network, cluster: Cluster, loads: Loads) -> None:
        self.network = network
        self.cluster = cluster
        self._loads = loads
        units = len(network.units)
        whole = self.tile(Part(0, units, 0), cluster.devices[0].id, whole_map(network, 0, units))
        work = tile_works(network, Block(0, units, ()), whole)
        self._seconds = [device.costs.block_s(work) for device in cluster.devices]
        self._order = sorted(range(len(cluster.devices)), key=self._seconds.__getitem__)

    def shares(self, part: Part) -> Shares:
        """Tiles by device, as an index into the cluster's; none where it can't be divided so."""
        if not part.devices:
            return (self._best_alone(part),)
        return tuple(self._strips(part) if part.how == "rows" else self._connected(part))

    def tile(self, part: Part, device: DeviceId, share: Share) -> Tile:
        """A share as a plan has it."""
        if not isinstance(share, MapTile):
            return Tile(device, share.boxes, share.flop, share.part)
        tile = Tile(device, tile_boxes(self.network, part.start, part.stop, share))
        works = tile_works(self.network, Block(part.start, part.stop, ()), tile)
        return replace(tile, flop=sum(each.flop for each in works))

    def is_connected(self, part: Part) -> bool:
        """Whether it is one fully connected layer."""
        unit = self.network.units[part.start]
        alone = part.stop == part.start + 1
        return alone and summed_input(self.network.graph, unit.nodes) is not None

    def is_uneven(self, part: Part) -> bool:
        """Whether some devices' strips are longer than their rate asks for."""
        rows = map_size(self.network, part.start, part.stop)[0]
        return part.how == "rows" and part.devices > 1 and rows % part.devices != 0

    def _chosen(self, part: Part) -> list[int]:
        """In the cluster's order, so that a device keeps its place when others drop out."""
        return sorted(self._order[: part.devices])

    def _spans(self, part: Part, height: int) -> Sequence[Span]:
        rows = weighted_spans(height, [1.0 / self._seconds[d] for d in self._chosen(part)])
        lengths = [len(span) for span in rows]
        return spans_of((*lengths[-part.turn :], *lengths[: -part.turn])) if part.turn else rows

    def _strips(self, part: Part) -> Iterator[tuple[int, Share]]:
        height, width = map_size(self.network, part.start, part.stop)
        last = part.devices - 1
        for index, (d, span) in enumerate(
            zip(self._chosen(part), self._spans(part, height), strict=True)
        ):
            top = part.edge_rows if index else 0
            bottom = part.edge_rows if index < last else 0
            for piece in _edges_first(span, top, bottom):
                yield d, MapTile(piece, Span(0, width))

    def _connected(self, part: Part) -> Sequence[tuple[int, Share]]:
        unit, chosen = self.network.units[part.start], self._chosen(part)
        graph = self.network.graph
        if part.how == "in place":
            name = summed_input(graph, unit.nodes)
            shape = graph.shape(name) if name else ()
            rows = self._spans(part, shape[2] if len(shape) > 2 else 1)
            if not all(map(len, rows)):
                return ()
            return tuple(zip(chosen, where_tiles_lie(self.network, unit, rows) or (), strict=False))
        for found in divisions(self.network, unit, [1.0 / self._seconds[d] for d in chosen]):
            if (found[0].part is not None) == (part.how == "inputs"):
                return tuple(zip(chosen, found, strict=True))
        return ()

    def _best_alone(self, part: Part) -> tuple[int, Share]:
        share, loads = self._loads.whole(part.start, part.stop), self._loads
        devices = range(len(self.cluster.devices))
        return min(
            devices, key=lambda d: loads.load(part.start, part.stop, d, share).compute_s
        ), share


def _edges_first(span: Span, top: int, bottom: int) -> list[Span]:
    """The span's edges, then its interior, if it has one; all of it at once if it is too short."""
    if not len(span):
        return []
    if len(span) < top + bottom or len(span) == max(top, bottom) or not top + bottom:
        return [span]
    inner = Span(span.start + top, span.stop - bottom)
    edges = [Span(span.start, inner.start), Span(inner.stop, span.stop)]
    return [each for each in (*edges, inner) if len(each)]
