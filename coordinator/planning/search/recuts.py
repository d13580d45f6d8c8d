"""Where strips that exchange halos are cut: the dynamic program of Eq. 5 at several prices.

A block costs the time of its slowest strip, which computes some of its neighbours' rows too, and an
exchange before it: messages, and bytes on the way. Exchanges overlap with computing, by how much
only the event simulator tells. So the program is solved at several prices, shares of what an
exchange takes that nothing overlaps with: of a whole network for starts, and of a few blocks for
moves, which change several cuts at once where no single one gains anything.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.tile_shapes import TileShape
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.cuts import Cuts, best_cuts
from coordinator.planning.search.peer_moves import is_in_strips, with_edges
from coordinator.planning.search.slots import Slot, SlotForm, Slots
from models.tensors.arrays import Floats

# Prices by the edge rows of the strips: with edges computed first, more of an exchange overlaps.
PRICES = {0: (0.5, 1.0, 2.0), 2: (0.125, 0.25, 0.5)}
# The most blocks that are cut anew at once.
_MOST_BLOCKS = 3


class Recuts:
    """Cuts of one network at several prices of an exchange."""

    def __init__(self, forms: Forms) -> None:
        self._stages, self._geometry, self._rates = forms.stages, forms.geometry, forms.rates
        self._tables = forms.stages.tables
        ends = [device.link for device in forms.cluster.devices if not device.host]
        # A device in the middle sends two messages and receives two.
        self._exchange_s = max(
            (
                4 * link.far.to_peers.message_s + link.message_s + link.latency_s + link.far.task_s
                for link in ends
            ),
            default=0.0,
        )
        self._byte_s = max(
            (1 / link.bytes_per_s + 2 * link.far.to_peers.byte_s for link in ends), default=0.0
        )
        self._strips: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
        self._cuts: dict[tuple[tuple[int, ...], float, Mark, Mark], Cuts] = {}

    def drafts(self, form: SlotForm) -> Iterator[Slots]:
        """Drafts of the whole network in strips of this form; what cannot be divided is alone."""
        computing, exchange = self.strips_of(form.devices)
        for price in PRICES[form.edge_rows]:
            shared = computing + price * exchange
            alone = self._tables.compute_s.min(axis=0) + price * self._gathering
            _, cuts = best_cuts(np.minimum(shared, alone))
            is_shared = shared <= alone
            yield tuple(
                Slot(start, end, form if is_shared[start, end] else SlotForm(()), peers=True)
                for start, end in cuts
            )

    def moves(self, slots: Slots, index: int) -> Iterator[Slots]:
        """Tries other cuts of the block, and of the block and the next ones."""
        first = slots[index]
        for count in range(1, 1 + min(_MOST_BLOCKS, len(slots) - index)):
            part = slots[index : index + count]
            if not is_in_strips(part[-1]) or len(first.form.devices) < 2:
                return
            for others in dict.fromkeys(self._recut(first, part[-1].end)):
                if others != part:
                    yield (*slots[:index], *others, *slots[index + count :])

    def strips_of(self, devices: tuple[int, ...]) -> tuple[Floats, Floats]:
        """[i, e]: seconds of the slowest strip if these devices share a block in proportion to
        their rates, infinite if it can't be divided; and seconds of the exchange before it.
        """
        if devices not in self._strips:
            self._strips[devices] = self._costed(devices)
        return self._strips[devices]

    def _recut(self, first: Slot, end: Mark) -> Iterator[Slots]:
        """Slots like the first one from its start on."""
        for edge_rows, prices in PRICES.items():
            form = with_edges(first.form, edge_rows)
            for price in prices:
                cuts = self._cuts_of(form.devices, price, first.start, end)
                yield tuple(
                    Slot(start, stop, form, peers=first.peers or start > first.start)
                    for start, stop in cuts
                )

    def _cuts_of(self, devices: tuple[int, ...], price: float, start: Mark, end: Mark) -> Cuts:
        key = (devices, price, start, end)
        if key not in self._cuts:
            part = slice(start, end + 1)
            computing, exchange = (table[part, part] for table in self.strips_of(devices))
            _, cuts = best_cuts(computing + price * exchange)
            self._cuts[key] = tuple((Mark(start + a), Mark(start + b)) for a, b in cuts)
        return self._cuts[key]

    def _costed(self, devices: tuple[int, ...]) -> tuple[Floats, Floats]:
        tables, geometry = self._tables, self._geometry
        computing = np.full(tables.shape, np.inf)
        halos = np.zeros(tables.shape)
        ranks = [self._stages.loads.rank[d] for d in devices]
        shape = TileShape((1,) * len(devices))
        for end in tables.marks[1:]:
            splits = geometry.splits[end]
            if splits is None:
                continue
            tiles = shape.tiles(splits.height, splits.width, [self._rates[d] for d in devices])
            seconds, _ = tables.tiles_s(end, tiles, ranks)
            starts = slice(splits.lowest, end)
            computing[starts, end] = seconds.max(axis=1)
            read = splits.bytes_read(splits.inputs.tiles(splits.places(tiles))).sum(axis=1)
            whole = geometry.wholes[end].input_bytes[starts]
            halos[starts, end] = np.maximum(0.0, read - whole) / len(devices)
        return computing, self._exchange_s + self._byte_s * halos

    @cached_property
    def _gathering(self) -> Floats:
        """[i, e]: seconds of bringing all of a block's input to one device."""
        whole = np.zeros(self._tables.shape)
        for end in self._tables.marks[1:]:
            whole[:end, end] = self._geometry.wholes[end].input_bytes[:end]
        return self._exchange_s + self._byte_s * whole
