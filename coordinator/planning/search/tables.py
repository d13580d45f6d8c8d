"""The published costs of every block of a network on one cluster [AOFL, Eq. 1 and 3].

A block's cost is the serial transfer of its input tiles from the host, the slowest device's
computation, and the serial transfer of its output tiles to the host:

    t_f(i, j) = sum over d of t_x(in_d) + max over d of t_c(d) + sum over d of t_x(out_d)

Matrices are indexed [i, e]: the block between marks i and e; infinite where impossible.
"""

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from coordinator.costs.cluster import Cluster, Device
from coordinator.planning.geometry.blocks import Geometry, geometry_of
from coordinator.planning.geometry.marks import Mark
from coordinator.planning.geometry.splits import Splits
from coordinator.planning.plan_memory import relaid_room_of, weight_room_bytes
from models.cut.tiles import MapTile
from models.cut.units import Network
from models.tensors.arrays import Floats, Ints
from protos.errors import Infeasible

# A device's place in AOFL's order, that of `Tables.devices`; else devices are numbered as in the
# cluster.
Rank = NewType("Rank", int)

# Smaller tiles are rare; below this the links' fixed costs decide.
SMALL_BYTES = 16_384


class Tables:
    """One network's blocks on one cluster, with the devices in AOFL's order. `memo` holds what
    planners derive from them and share.
    """

    def __init__(self, geometry: Geometry, cluster: Cluster) -> None:
        if not cluster.devices:
            raise Infeasible(
                cause="no device can compute", cure="Start a worker, or let the host compute."
            )
        self.geometry = geometry
        self.devices = ranked(cluster.devices)
        self.marks, self.last = geometry.marks, geometry.marks[-1]
        self.shape = (len(self.marks), len(self.marks))
        distinct = list({id(device.costs): device.costs for device in self.devices}.values())
        kinds = {id(costs): kind for kind, costs in enumerate(distinct)}
        self._kind = np.array([kinds[id(device.costs)] for device in self.devices])
        # Seconds by kind, engine, node and feature; kinds with fewer engines repeat their first.
        self._most_engines = max(len(costs.engines) for costs in distinct)
        by_engine = [
            (*costs.engines, *costs.engines[:1] * (self._most_engines - len(costs.engines)))
            for costs in distinct
        ]
        count = len(geometry.wholes[-1].features)
        self._rates = np.zeros((len(distinct), self._most_engines, count, 5))
        for node, work in geometry.node_works.items():
            for kind, engines in enumerate(by_engine):
                for number, engine in enumerate(engines):
                    rates = engine.layer_rates(work)
                    self._rates[kind, number, node] = (
                        rates.fixed_s,
                        rates.flop_s,
                        rates.input_byte_s,
                        rates.output_byte_s,
                        rates.weight_byte_s,
                    )
        self._task_s = np.array([[engine.task_s for engine in engines] for engines in by_engine])
        self._engines: dict[Mark, Ints] = {}
        self.memo: dict[object, object] = {}
        self.fixed_s = np.array([device.link.fixed_s for device in self.devices])
        self.byte_s = np.array([device.link.byte_s for device in self.devices])

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """[d, i, e]: whether device d can hold the weights of the block."""
        fits = np.ones((len(self.devices), *self.shape), dtype=np.bool_)
        for before, room_of in (
            (self.geometry.weight_bytes_before, weight_room_bytes),
            (self.geometry.relaid_bytes_before, relaid_room_of),
        ):
            rooms = np.array([room_of(device) for device in self.devices])
            fits &= (before[None, :] - before[:, None])[None] <= rooms[:, None, None]
        return fits

    @cached_property
    def compute_s(self) -> Floats:
        """[d, i, e]: seconds that device d computes if it runs the whole block."""
        result = np.full((len(self.devices), *self.shape), np.inf)
        for end in self.marks[1:]:
            result[:, :end, end] = self._tile_s(end, 1.0).min(axis=1)[self._kind]
        return result

    def _tile_s(self, end: Mark, share: float) -> Floats:
        """[k, n, i]: seconds that engine n of a device of kind k computes for a tile of this share
        of the block from mark i.
        """
        features = self.geometry.wholes[end].features * (share, share, share, 1.0)
        rates = self._rates[:, :, : len(features)]
        nodes = rates[..., 0] + np.einsum("knwf,wf->knw", rates[..., 1:], features)
        tile_s: Floats = self._from_marks(nodes, end) + self._task_s[..., None]
        return tile_s

    def _engine(self, end: Mark) -> Ints:
        """[k, i]: which of its engines a device of kind k computes tiles of a block with. It is
        chosen for a tile of equal devices, so that seconds stay affine in the tile's size.
        """
        chosen = self._engines.get(end)
        if chosen is None:
            if self._most_engines == 1:
                chosen = np.zeros((len(self._rates), end), dtype=np.int64)
            else:
                chosen = self._tile_s(end, 1.0 / len(self.devices)).argmin(axis=1)
            self._engines[end] = chosen
        return chosen

    def _of_chosen(self, seconds: Floats, engine: Ints, axis: int) -> Floats:
        """Seconds by engine along an axis, of the chosen ones; without the axis."""
        if self._most_engines > 1:
            seconds = np.take_along_axis(seconds, engine, axis)
        chosen: Floats = seconds.squeeze(axis)
        return chosen

    @cached_property
    def alone_s(self) -> Floats:
        """[d, i, e]: seconds of the block on device d alone, transfers included, whether it fits or
        not; of the whole network as it was measured.
        """
        result = self.compute_s.copy()
        for d, device in enumerate(self.devices):
            if device.unsplit_s is not None:
                result[d, self.marks[0], self.last] = device.unsplit_s
        for end in self.marks[1:]:
            whole = self.geometry.wholes[end]
            size = whole.input_bytes + whole.output_bytes
            result[:, :end, end] += 2 * self.fixed_s[:, None] + self.byte_s[:, None] * size
        return result

    def traits(self, rank: Rank) -> Floats:
        """Everything of a device that affects a plan's cost, smaller is better: its rates, its link
        (per byte, and for the smallest message of a tile), and the memory that it lacks.
        """
        room = weight_room_bytes(self.devices[rank])
        kind, byte_s = self._kind[rank], self.byte_s[rank]
        message_s = self.fixed_s[rank] + SMALL_BYTES * byte_s
        own = (*self._task_s[kind], message_s, byte_s, -room)
        return np.concatenate([self._rates[kind].ravel(), np.array(own)])

    def _from_marks(self, nodes: Floats, end: Mark) -> Floats:
        """[..., i]: sums of [..., n] over the nodes from mark i on."""
        sums = np.cumsum(nodes[..., ::-1], axis=-1)[..., ::-1]
        starts = np.array(self.geometry.nodes[:end])
        from_marks: Floats = sums[..., starts]
        return from_marks

    def constants(self, splits: Splits, end: Mark) -> Floats:
        """[d, m]: seconds of a tile's computation that do not depend on its size."""
        count = self.geometry.nodes[end]
        weights = self.geometry.wholes[end].features[:, 3]
        nodes = self._rates[:, :, :count, 0] + self._rates[:, :, :count, 4] * weights
        fixed = self._from_marks(nodes, end) + self._task_s[..., None]
        chosen = self._of_chosen(fixed, self._engine(end)[:, None], 1)
        constants: Floats = chosen[self._kind, splits.lowest :]
        return constants

    def growth(self, start: Mark, end: Mark, ranks: Sequence[Rank]) -> Floats:
        """[t, g]: seconds per element of each group of quantities of a block, on the devices of
        these ranks.
        """
        splits = self.geometry.splits[end]
        assert splits is not None
        first = splits.chosen.start + splits.firsts[start - splits.lowest]
        kinds = self._kind[np.array(ranks)]
        groups = self._growth[:, :, first : splits.chosen.stop]
        growth: Floats = groups[kinds, self._engine(end)[kinds, start]]
        return growth

    @cached_property
    def _growth(self) -> Floats:
        """[k, n, g]: the same for each kind of device and each of its engines, of all groups."""
        every, groups = self.geometry.quantities, self.geometry.groups
        nodes = np.array([quantity.node for quantity in every], dtype=np.int64)
        columns = [
            (quantity.flop, quantity.input_bytes, quantity.output_bytes) for quantity in every
        ]
        flop, read, written = np.array(columns).reshape(-1, 3).T
        rates = self._rates[:, :, nodes]
        growth = rates[..., 1] * flop + rates[..., 2] * read + rates[..., 3] * written
        return np.stack([[np.bincount(groups, engine) for engine in kind] for kind in growth])

    def strips_s(self, splits: Splits, end: Mark) -> tuple[Floats, Floats, Floats, Floats]:
        """(begins, ends, byte_begins, byte_ends): computation [d, m, places + 1] and bytes moved
        [m, places + 1]; the strip between places a and b takes `ends[b] - begins[a]` of both, plus
        `constants`.
        """
        growth = self._growth[:, :, splits.chosen]
        engine = self._engine(end)[:, None, splits.lowest :, None]

        def until(rows: Floats) -> Floats:
            by_engine = np.array(
                [[splits.over_blocks(group[:, None] * rows) for group in kind] for kind in growth]
            )
            seconds: Floats = self._of_chosen(by_engine, engine, 1)[self._kind]
            return seconds

        begins, ends = until(splits.groups.begins), until(splits.groups.ends)
        in_out_begins = splits.bytes_moved(splits.inputs.begins, splits.outputs.begins)
        in_out_ends = splits.bytes_moved(splits.inputs.ends, splits.outputs.ends)
        return begins, ends, in_out_begins, in_out_ends

    def tiles_s(
        self, end: Mark, tiles: Sequence[MapTile], ranks: Sequence[Rank]
    ) -> tuple[Floats, Floats]:
        """(computation, transfers) [m, t]: seconds of tile t of the blocks that end at `end`, on
        the device of `ranks[t]`; 0 for empty tiles.
        """
        splits = self.geometry.splits[end]
        assert splits is not None
        who = np.array(ranks)
        full = np.array([not tile.is_empty for tile in tiles])
        places = splits.places(tiles)
        elements = splits.groups.tiles(places)
        growth = self._growth[:, :, splits.chosen][self._kind[who]]
        by_engine = np.stack(
            [splits.over_blocks(elements * growth[:, n].T) for n in range(self._most_engines)]
        )
        engine = self._engine(end)[self._kind[who], splits.lowest :].T
        compute = self._of_chosen(by_engine, engine[None], 0)
        compute = compute + self.constants(splits, end)[who].T
        size = splits.bytes_moved(splits.inputs.tiles(places), splits.outputs.tiles(places))
        transfers = size * self.byte_s[who] + 2 * self.fixed_s[who]
        return np.where(full, compute, 0.0), np.where(full, transfers, 0.0)


def ranked(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Devices by frequency and then by bandwidth [Algorithm 2, line 5]; the host before equals."""
    return tuple(sorted(devices, key=lambda d: (-d.speed, -d.link.bytes_per_s, not d.host, d.id)))


_CACHE: weakref.WeakKeyDictionary[Network, tuple[Cluster, Tables]] = weakref.WeakKeyDictionary()


def tables_of(network: Network, cluster: Cluster) -> Tables:
    """The tables of this network on this cluster; those of its latest cluster are cached, so that
    `auto` fills them once for all planners.
    """
    kept = _CACHE.get(network)
    if kept is not None and kept[0] is cluster:
        return kept[1]
    tables = Tables(geometry_of(network), cluster)
    _CACHE[network] = (cluster, tables)
    return tables
