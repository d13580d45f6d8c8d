"""`halo`: tiles stay where they are, and only their borders travel from peer to peer.

Nothing waits that has its boxes: no barrier, and a device's edge rows are computed first where
that lets its neighbours go on sooner. The search starts from an exchange before every unit (every
other one in networks of hundreds), over all devices or the fastest few, whichever is best to begin
with. It improves the blocks one after the other, as long as the event simulator's rules say that it
helps:

* fuse a block with the next (less messages, some redundant computation);
* compute edge rows before the interior, or a strip of two rows in two tasks: a neighbour has the
  first while the second is computed;
* divide a block among fewer devices, down to one (small maps have fewer rows than devices);
* let others have the longer strips than in the blocks before, where rows don't come out even.

At least one exchange stays: blocks that need none are what `fused` searches, and `auto` compares.

What cannot be split is gathered on the device that is best at it; fully connected layers are
divided over their output or their input where that is better. Where devices can't reach each other,
borders go through the host, or only those that can take part, whichever is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from coordinator.costs.devices import Cluster
from coordinator.planning.decide import fitting
from coordinator.planning.geometry import geometry_of
from coordinator.planning.halo_parts import SUMS, Divider, Part
from coordinator.planning.simulator import simulate
from coordinator.planning.single import single
from coordinator.planning.stages import Stage, Stages
from coordinator.planning.tables import Tables
from coordinator.tasks.plan import Block, Exchange, Plan, Unused
from models.memory import megabytes
from models.tiles import map_size
from models.units import Network

# Simulated tasks per search: about a second.
EFFORT = 46_000
# An improvement below this is not worth another shape of plan.
WORTHWHILE = 1e-4
# How much worse than the best it may be to begin with all devices for that to be tried too.
_CLOSE = 1.1
# What a neighbour's 3x3 window reads; two cover a pool between.
_EDGE_ROWS = (2, 1)


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
        tables = Tables(geometry_of(network, fine=True), cluster)
        self._stages = Stages(network, cluster, tables)
        self._divider = Divider(network, cluster, self._stages.loads)
        self._left = EFFORT
        self._stage_of: dict[Part, Stage] = {}

    def run(self) -> list[Part]:
        """The best parts found: from all devices, from fewer where that is better to begin with,
        and from half the exchanges where the effort is too little to try each of them.
        """
        starts = [self._start(count) for count in range(len(self.cluster.devices), 1, -1)]
        best = min(starts, key=self._latency_s)
        if len(best) * sum(len(self._stage(part).shares) for part in best) > EFFORT:
            best = min((best, *map(_in_pairs, starts)), key=self._latency_s)
        begun = [best]
        if best != starts[0] and self._latency_s(starts[0]) <= self._latency_s(best) * _CLOSE:
            begun.append(starts[0])
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
        for improve in (
            self._edges_everywhere,
            self._merge,
            self._fewer,
            self._merge,
            self._connected,
            self._edges,
            self._turns,
        ):
            parts, best = improve(parts, best)
        return parts

    def blocks(self, parts: Sequence[Part]) -> tuple[Block, ...]:
        """The blocks of a plan."""
        return tuple(self._block(part) for part in parts)

    def _block(self, part: Part) -> Block:
        exchange: Exchange = "peer" if self._is_direct(part) else "host"
        tiles = tuple(
            self._divider.tile(part, self.cluster.devices[d].id, share)
            for d, share in self._divider.shares(part)
        )
        return Block(part.start, part.stop, tiles, barrier=False, exchange=exchange)

    def _is_direct(self, part: Part) -> bool:
        """Whether its devices get its input from each other."""
        return part.start > 0 and not part.through_host and not self.cluster.apart

    def _exchanges(self, parts: Sequence[Part]) -> bool:
        """Whether any border travels: what fuses everything is another strategy's plan."""
        return any(part.devices > 1 and self._is_direct(part) for part in parts)

    def _stage(self, part: Part) -> Stage:
        found = self._stage_of.get(part)
        if found is None:
            shares = self._divider.shares(part)
            direct = self._is_direct(part)
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
        for rows in _EDGE_ROWS:
            trial = [replace(part, edge_rows=rows if part.devices else 0) for part in parts]
            parts, best = self._better(parts, best, trial)
        return parts, best

    def _edges(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
        for index, part in enumerate(parts):
            for rows in (0, *_EDGE_ROWS) if part.devices and part.how == "rows" else ():
                if rows != part.edge_rows and self._left > 0:
                    trial = [*parts[:index], replace(part, edge_rows=rows), *parts[index + 1 :]]
                    parts, best = self._better(parts, best, trial)
        return parts, best

    def _turns(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
        uneven = [i for i, part in enumerate(parts) if self._divider.is_uneven(part)]
        for step in range(1, len(self.cluster.devices) if uneven else 0):
            trial = list(parts)
            for place, index in enumerate(uneven):
                turn = place * step % parts[index].devices
                trial[index] = replace(parts[index], turn=turn)
            parts, best = self._better(parts, best, trial)
        for index in uneven:
            for turn in range(parts[index].devices):
                if self._left > 0:
                    trial = [*parts[:index], replace(parts[index], turn=turn), *parts[index + 1 :]]
                    parts, best = self._better(parts, best, trial)
        return parts, best

    def _merge(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
        index = 0
        while index + 1 < len(parts) and self._left > 0:
            one, other = parts[index : index + 2]
            if one.devices and other.devices and one.how == other.how == "rows":
                fused = replace(other, start=one.start, through_host=one.through_host)
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

    def _connected(self, parts: list[Part], best: float) -> tuple[list[Part], float]:
        """Fully connected layers over their output or their input, on all devices or where the
        rows before them are.
        """
        for index, part in enumerate(parts):
            if not index or not self._divider.is_connected(part):
                continue
            before = parts[index - 1]
            forms = [
                replace(part, devices=before.devices, turn=before.turn, how="in place"),
                *(
                    replace(part, devices=count, how=how, through_host=True)
                    for count in dict.fromkeys((len(self.cluster.devices), before.devices))
                    for how in ("outputs", "inputs")
                ),
            ]
            for form in forms:
                if form.devices > 1 and self._left > 0 and self._divider.shares(form):
                    trial = _through_host([*parts[:index], form, *parts[index + 1 :]])
                    parts, best = self._better(parts, best, trial)
        return parts, best

    def _better(
        self, parts: list[Part], best: float, trial: list[Part]
    ) -> tuple[list[Part], float]:
        if self._exchanges(parts) and not self._exchanges(trial):
            return parts, best
        latency_s = self._latency_s(trial)
        return (trial, latency_s) if latency_s < best * (1 - WORTHWHILE) else (parts, best)


def _in_pairs(parts: Sequence[Part]) -> list[Part]:
    """Every other exchange: each part fused with the next, where both are divided."""
    found: list[Part] = []
    waits = False
    for part in parts:
        if waits and part.devices:
            found[-1] = replace(part, start=found[-1].start)
            waits = False
        else:
            found.append(part)
            waits = part.devices > 0
    return found


def _through_host(parts: Sequence[Part]) -> list[Part]:
    """What reads sums gets them from the host, which adds them up."""
    return [
        replace(part, through_host=True) if index and parts[index - 1].how in SUMS else part
        for index, part in enumerate(parts)
    ]


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
        f"({megabytes(found.traffic.halo, 2)}); {gain:.2f} times as fast as one device."
    )
    unused = tuple(Unused(device.id, reason) for device in left_out)
    return replace(
        plan,
        predicted_latency_s=found.latency_s,
        traffic=found.traffic,
        unused=unused,
        notes=(note,),
    )
