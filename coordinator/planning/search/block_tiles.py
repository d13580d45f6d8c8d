"""From slots to stages: the tiles of a block on given devices in a given form."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.planning.geometry.layouts import Configuration, divider_of
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.search.block_costs import Stage, Stages
from coordinator.planning.search.connected import (
    connected_units,
    divisions,
    single_units,
    where_tiles_lie,
)
from coordinator.planning.search.slots import Slot, SlotForm
from coordinator.planning.search.tile_costs import TileShares
from coordinator.planning.single_device import rates_of
from models.cut.tiles import MapTile, grain, on_map, places, spans_of, weighted_spans
from models.graph.graph import CHANNELS
from models.tensors.boxes import Span

# Halvings of the finishing time: the remaining error is far below one row.
_ROUNDS = 26


class Forms:
    """Makes stages from forms."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.cluster, self.geometry = stages.cluster, stages.geometry
        self.connected = connected_units(stages.network, stages.geometry)
        self._units = dict(single_units(stages.network, stages.geometry))
        self.serial = self.cluster.is_serial
        self.rates = rates_of(stages.network, self.cluster.devices)
        self._lines: dict[tuple[Mark, Mark, int], _Lines] = {}
        self._known: dict[tuple[Slot, Stage | None], Stage | None] = {}

    def stage(self, slot: Slot, before: Stage | None = None) -> Stage | None:
        """The slot's block; None if it can't take this form. `before` is the previous stage, whose
        rows stay `in place`.
        """
        key = slot, before if slot.form.how == "in place" else None
        if key not in self._known:
            shares = slot.shares or self._shares(slot.start, slot.end, slot.form, before)
            stays = slot.form.how == "in place" and len(shares) > 1 and slot.shares is None
            direct = (slot.peers or stays) and slot.start > 0 and not self.cluster.apart
            ends = slot.start, slot.end
            self._known[key] = (
                self.stages.stage(*ends, shares, barrier=slot.barrier, direct=direct)
                if shares
                else None
            )
        return self._known[key]

    def _shares(self, start: Mark, end: Mark, form: SlotForm, before: Stage | None) -> TileShares:
        if not form.devices:
            return self._best_alone(start, end)
        splits = self.geometry.splits[end]
        if form.how == "rows" and splits is not None and start >= splits.lowest:
            return self._rows(end, form)
        if len(form.devices) == 1:
            return ((form.devices[0], self.stages.loads.whole(start, end)),)
        if form.how == "channels":
            return self._slices(start, end, form)
        if start in self.connected and end == start + 1:
            return self._connected(start, form, before)
        return self._map_tiles(start, end, form)

    def _map_tiles(self, start: Mark, end: Mark, form: SlotForm) -> TileShares:
        splits = self.geometry.splits[end]
        if splits is None or start < splits.lowest:
            return ()
        if form.shape is None:
            return self._strips(start, end, form) if form.how in ("together", "in turn") else ()
        if form.shape.has_columns and start < splits.lowest_cols:
            return ()
        rank = [self.stages.loads.rank[d] for d in form.devices]
        weights = 1.0 / self.stages.tables.compute_s[rank, start, end]
        tiles = form.shape.tiles(splits.height, splits.width, [float(weight) for weight in weights])
        pairs = zip(form.devices, tiles, strict=True)
        return tuple((d, tile) for d, tile in pairs if not tile.is_empty)

    def _best_alone(self, start: Mark, end: Mark) -> TileShares:
        share = self.stages.loads.whole(start, end)
        every = tuple((d, share) for d in range(len(self.cluster.devices)))
        loads = self.stages.loads.of(start, end, every).tiles
        best = min(range(len(every)), key=lambda d: loads[d].compute_s)
        return (every[best],)

    def _rows(self, end: Mark, form: SlotForm) -> TileShares:
        height, _ = self.geometry.sizes[end]
        spans = weighted_spans(places(height), [self.rates[d] for d in form.devices])
        if form.turn:
            lengths = [len(span) for span in spans]
            spans = spans_of((*lengths[-form.turn :], *lengths[: -form.turn]))
        return tuple(self._with_edges(end, form, spans))

    def _with_edges(
        self, end: Mark, form: SlotForm, spans: Iterable[Span]
    ) -> Iterator[tuple[int, MapTile]]:
        """Strips between these places of the map, with the edges that a form has."""
        height, width = self.geometry.sizes[end]
        last, edge = len(form.devices) - 1, form.edge_rows * grain(height)
        for index, (d, span) in enumerate(zip(form.devices, on_map(height, spans), strict=True)):
            top = edge if index else 0
            bottom = edge if index < last else 0
            for piece in _edges_first(span, top, bottom):
                yield d, MapTile(piece, Span(0, width))

    def _connected(self, start: Mark, form: SlotForm, before: Stage | None) -> TileShares:
        network, unit = self.stages.network, self.connected[start]
        if form.how == "in place":
            rows = _rows_of(before) if before is not None else {}
            if not rows:
                return ()
            tiles = where_tiles_lie(network, unit, list(rows.values()))
            return tuple(zip(rows, tiles, strict=True)) if tiles else ()
        work = divider_of(network).whole(unit).work
        rates = [1.0 / self.cluster.devices[d].costs.block_s(work) for d in form.devices]
        for found in divisions(network, unit, rates):
            if (found[0].part is not None) == (form.how == "inputs"):
                return tuple(zip(form.devices, found, strict=True))
        return ()

    def _slices(self, start: Mark, end: Mark, form: SlotForm) -> TileShares:
        divider, unit = divider_of(self.stages.network), self._units.get(start)
        if unit is None or end != start + 1 or CHANNELS not in divider.splits(unit):
            return ()
        rates = [self.rates[d] for d in form.devices]
        boxes = divider.divided(unit, Configuration(channels=len(rates)), rates)
        tiles = [divider.tile(unit, box) for box in boxes or ()]
        return tuple(zip(form.devices, tiles, strict=False))

    # ------------------------------------------------------------ strips

    def _strips(self, start: Mark, end: Mark, form: SlotForm) -> TileShares:
        height, _ = self.geometry.sizes[end]
        lines = [self._lines_of(start, end, d) for d in form.devices]
        in_turn = form.how == "in turn" and self.serial
        low, high = 0.0, min(line.alone_s for line in lines)
        best: list[int] = []
        for _ in range(_ROUNDS):
            middle = (low + high) / 2 if best else high
            ends = _fill(lines, middle, places(height), in_turn)
            if ends is None:
                if not best:
                    return ()
                low = middle
            else:
                best, high = ends, middle
        return tuple(self._with_edges(end, form, map(Span, [0, *best[:-1]], best)))

    def _lines_of(self, start: Mark, end: Mark, d: int) -> "_Lines":
        device, rank = self.cluster.devices[d], self.stages.loads.rank[d]
        key = (start, end, d)
        if key not in self._lines:
            splits = self.geometry.splits[end]
            assert splits is not None
            fixed = self.stages.loads.constants(end)
            m = start - splits.lowest
            first = splits.firsts[m]
            (rates,) = self.stages.tables.growth(start, end, [rank])
            link = device.link
            entering = splits.entering[m]
            in_b, in_e = (
                np.einsum("t,tx->x", splits.input_bytes[entering], by_row[entering])
                for by_row in (splits.inputs.begins, splits.inputs.ends)
            )
            out_b, out_e = (
                np.einsum("t,tx->x", splits.leaves[m], by_row)
                for by_row in (splits.outputs.begins, splits.outputs.ends)
            )
            compute_b, compute_e = (
                np.einsum("q,qx->x", rates, by_row[first:])
                for by_row in (splits.groups.begins, splits.groups.ends)
            )
            begins = compute_b + link.byte_s * (in_b + out_b)
            ends = compute_e + link.byte_s * (in_e + out_e)
            sent_s = 0.0 if device.host else 1.0 / link.bytes_per_s
            self._lines[key] = _Lines(
                float(fixed[rank, m]) + 2 * link.fixed_s,
                [float(begin) for begin in begins],
                [float(end) for end in np.maximum.accumulate(ends)],
                0.0 if device.host else link.message_s,
                [float(value) for value in in_b * sent_s],
                [float(value) for value in in_e * sent_s],
            )
        return self._lines[key]


@dataclass(frozen=True, slots=True)
class _Lines:
    """A device's strips between places a and b of one block: `fixed_s + ends[b] - begins[a]`
    seconds in total, of which the link to it is busy for `message_s + sent_ends[b] -
    sent_begins[a]`.
    """

    fixed_s: float
    begins: Sequence[float]
    ends: Sequence[float]
    message_s: float
    sent_begins: Sequence[float]
    sent_ends: Sequence[float]

    @property
    def alone_s(self) -> float:
        """Seconds for the whole map."""
        return self.fixed_s + self.ends[-1] - self.begins[0]


def _fill(lines: Sequence[_Lines], time_s: float, last: int, in_turn: bool) -> list[int] | None:
    """The places where the strips end if each device takes what it can finish in time; None if the
    `last` place is not reached.
    """
    place, clock, ends = 0, 0.0, []
    for line in lines:
        if place < last:
            allowed = time_s - clock - line.fixed_s + line.begins[place]
            stop = max(place, bisect_right(line.ends, allowed * (1 + 1e-12)) - 1)
            if in_turn and stop > place:
                clock += line.message_s + line.sent_ends[stop] - line.sent_begins[place]
            place = stop
        ends.append(place)
    return ends if place >= last else None


def _rows_of(stage: Stage) -> dict[int, Span]:
    """Rows by device of a stage in strips; nothing for other stages."""
    parts = [(d, part) for d, part in stage.shares if isinstance(part, MapTile)]
    if len(parts) < len(stage.shares) or len({part.cols for _, part in parts}) > 1:
        return {}
    rows: dict[int, Span] = {}
    for d, part in parts:
        rows[d] = part.rows.hull(rows.get(d, part.rows))
    return rows


def _edges_first(span: Span, top: int, bottom: int) -> list[Span]:
    """The span's edges, then its interior if it has one; the whole span if it is too short."""
    if not len(span):
        return []
    if len(span) < top + bottom or len(span) == max(top, bottom) or not top + bottom:
        return [span]
    inner = Span(span.start + top, span.stop - bottom)
    edges = [Span(span.start, inner.start), Span(inner.stop, span.stop)]
    return [span for span in (*edges, inner) if len(span)]
