"""`branches`: what one device would compute whole is spread over several, branch by branch.

Units that do not depend on each other run at the same time, each whole on one device: the towers of
a network with several inputs, queries, keys and values of attention, or an Inception module's
convolutions on a map of few rows. This helps what cannot be divided, and the end of a network,
where maps are small; the rest of the plan comes from another strategy. HEFT places the units, and
the event simulator judges the result.

HEFT [Topcuoglu, Hariri and Wu, 2002] places a task graph on heterogeneous processors: tasks are
placed in order of their distance to the end (upward rank, Eq. 7 there), the longest first, each on
the processor where it ends earliest. Gaps between tasks that are placed already are not used.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, permutations
from statistics import fmean

from coordinator.costs.cluster import Cluster
from coordinator.planning.finish import plan_of_blocks
from coordinator.planning.geometry.layouts import divider_of
from coordinator.planning.plan_memory import overfilled
from coordinator.planning.planners.fused import fused
from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.tables import tables_of
from coordinator.tasks.plan import Block, ExchangeMode, Plan, Tile, tile_extent
from models.cut.units import Network
from models.tensors.boxes import Box
from protos.wire.facts import DeviceId

# Simulated tasks per search, about a second: branches gain most near the end, where the search
# begins.
EFFORT = 60_000
# A smaller gain is not worth a change of the plan.
_WORTHWHILE = 0.01
# Ever longer ends of the network are tried, until one is this many times as slow as the best plan.
# In the catalogue none gained after such a one (21 networks, seven clusters).
_HOPELESS, _PATIENCE = 1.1, 2

_HeftTransfer = Callable[[int, int, int], float]
"""Seconds to transfer this many bytes from one processor to another."""


@dataclass(frozen=True, slots=True)
class HeftTask:
    """Takes `seconds[p]` on processor p, not before `ready_s[p]`, when its other inputs have
    arrived. `reads`: bytes that it needs from earlier tasks, by their index.
    """

    seconds: Sequence[float]
    ready_s: Sequence[float]
    reads: Mapping[int, int]


def branches(network: Network, cluster: Cluster) -> Plan:
    """The plan of `fused`, with branches on different devices where that is faster.

    Raises:
        Infeasible: no device, or none with enough memory for some layer.
    """
    base = fused(network, cluster)
    return by_branches(base, network, cluster) or replace(base, strategy="branches")


def by_branches(
    plan: Plan, network: Network, cluster: Cluster, stages: Stages | None = None
) -> Plan | None:
    """The plan with branches on different devices; None if that is not faster. `stages` may know
    its blocks already.
    """
    search = _Search(plan, network, cluster, stages)
    for whole, run in groupby(plan.blocks, key=lambda block: len(block.tiles) == 1):
        if whole:  # blocks that one device computes whole
            blocks = list(run)
            search.spread(blocks[0].start, blocks[-1].stop)
    hopeless = 0
    for block in reversed(plan.blocks):
        hopeless = hopeless + 1 if search.spread(block.start, plan.blocks[-1].stop) else 0
        if hopeless > _PATIENCE:
            break
    return search.found()


class _Search:
    """Keeps what the simulator finds faster."""

    def __init__(
        self, plan: Plan, network: Network, cluster: Cluster, stages: Stages | None
    ) -> None:
        self.network, self.cluster = network, cluster
        self._stages = stages or Stages(network, cluster, tables_of(network, cluster))
        self.plan = self.best = plan
        draft = self._stages.of_plan(plan)
        self.plan_s = self.best_s = self._stages.latency_s(draft)
        self._earliest_s = self._stages.earliest_s(draft)
        self._left = EFFORT

    def spread(self, start: int, stop: int) -> bool:
        """Tries units [start, stop) by branches, which pass their boxes to each other or to the
        host. Returns whether that is hopelessly slow.
        """
        blocks = self.best.blocks
        edges = {0, *(block.stop for block in blocks)}
        if self._left <= 0 or not {start, stop} <= edges:
            return False
        tasks, begins_s = self._tasks(start, stop)
        if longest_s(tasks, begins_s) >= self.best_s:
            return False
        owners = placement(tasks, self._moved_s)
        if len(set(owners)) < 2:
            return False
        before_s, least_s = self.best_s, float("inf")
        for direct in (False,) if self.cluster.apart else (True, False):
            made = _Blocks(self.network, [block for block in blocks if block.stop <= start])
            for first, last in self._runs(start, owners):
                device = self.cluster.devices[owners[first - start]]
                made.add(first, last, device.id, direct=direct)
            after = [_free(block) for block in blocks if block.start >= stop]
            if self.cluster.apart:
                after = [replace(block, exchange="host") for block in after]
            made.blocks += after
            plan = replace(self.plan, blocks=tuple(made.blocks))
            least_s = min(least_s, self._consider(plan))
        return least_s > before_s * _HOPELESS

    def _consider(self, plan: Plan) -> float:
        """Seconds of a plan, which is kept if it is the fastest so far."""
        draft = self._stages.of_plan(plan)
        self._left -= sum(len(stage.shares) for stage in draft)
        latency_s = self._stages.latency_s(draft)
        faster = latency_s < self.best_s * (1 - _WORTHWHILE)
        if faster and not overfilled(self.network, self.cluster, plan):
            self.best, self.best_s = plan, latency_s
            self._earliest_s = self._stages.earliest_s(draft)
        return latency_s

    def found(self) -> Plan | None:
        """The best plan, completed; None if no branch helped."""
        if self.best is self.plan:
            return None
        unused = "no branch finishes sooner with it"
        blocks = self.best.blocks
        plan = plan_of_blocks("branches", blocks, self.network, self.cluster, unused)
        note = (
            "With branches on different devices it takes "
            f"{1 - plan.predicted_latency_s / self.plan_s:.1%} less time."
        )
        return replace(plan, notes=(note,))

    def _tasks(self, start: int, stop: int) -> tuple[list[HeftTask], list[float]]:
        """Units [start, stop), each whole, and the earliest times of what they read from others."""
        divider, devices = divider_of(self.network), self.cluster.devices
        makers: dict[str, int] = {}
        tasks: list[HeftTask] = []
        begins_s: list[float] = []
        for index, unit in enumerate(self.network.units[start:stop]):
            tile = divider.whole(unit)
            reads: dict[int, int] = {}
            given, begin_s = 0, 0.0
            for name, box in tile.reads.items():
                size = box.volume * self.network.graph.tensors[name].wire_itemsize
                if name in makers:
                    reads[makers[name]] = reads.get(makers[name], 0) + size
                else:
                    given += size
                    begin_s = max(begin_s, self._earliest_s.get(name, 0.0))
            ready_s = [device.link.transfer_s(given) for device in devices]
            tasks.append(HeftTask(self._seconds[start + index], ready_s, reads))
            begins_s.append(begin_s)
            makers.update(dict.fromkeys(tile.boxes, index))
        return tasks, begins_s

    @cached_property
    def _seconds(self) -> list[list[float]]:
        """Seconds of each unit, whole, on each device."""
        works = [divider_of(self.network).whole(unit).work for unit in self.network.units]
        return [[device.costs.block_s(work) for device in self.cluster.devices] for work in works]

    def _moved_s(self, source: int, target: int, size: int) -> float:
        devices = self.cluster.devices
        return devices[source].link.transfer_s(size) + devices[target].link.transfer_s(size)

    def _runs(self, start: int, owners: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Runs of units that one device computes without waiting for others."""
        first, stop = start, start + len(owners)
        for after in range(start + 1, stop):
            moves = owners[after - start] != owners[after - 1 - start]
            if moves or self._is_read_beyond(after - 1) or self._reads(after, start, first):
                yield first, after
                first = after
        yield first, stop

    def _is_read_beyond(self, index: int) -> bool:
        """Whether a unit other than the next reads this one's outputs."""
        graph, following = self.network.graph, self.network.units[index + 1]
        return any(
            not following.start <= reader < following.stop
            for name in self.network.units[index].outputs
            for reader in graph.consumers.get(name, ())
        )

    def _reads(self, index: int, start: int, stop: int) -> bool:
        """Whether a unit reads what units [start, stop) compute."""
        units, producer = self.network.units, self.network.graph.producer
        made = range(units[start].start, units[stop - 1].stop) if stop > start else range(0)
        return any(
            producer.get(name, -1) in made for node in units[index].nodes for name in node.inputs
        )


class _Blocks:
    """Blocks in order, and which block computes each tensor."""

    def __init__(self, network: Network, blocks: Sequence[Block]) -> None:
        self.network = network
        self.blocks = list(map(_free, blocks))
        self._made = {name for block in blocks for tile in block.tiles for name in tile.boxes}
        self._sums = {
            name for block in blocks for tile in block.tiles if tile.reduce for name in tile.boxes
        }

    def add(self, start: int, stop: int, device: DeviceId, *, direct: bool) -> None:
        """Adds units [start, stop), whole, on a device. `direct`: tensors of other devices come
        directly from them, except for partial sums, which the host adds up.
        """
        graph = self.network.graph
        names = self.network.outputs(start, stop)
        tile = Tile(device, {name: Box.whole(graph.shape(name)) for name in names})
        block = Block(start, stop, (tile,), barrier=False)
        reads = tile_extent(self.network, block, tile).inputs.keys()
        passed = direct and reads & self._made and not reads & self._sums
        exchange: ExchangeMode = "peer" if passed else "host"
        self.blocks.append(replace(block, exchange=exchange))
        self._made.update(names)


def _free(block: Block) -> Block:
    """The block without its barrier, reading its inputs from wherever they are."""
    exchange: ExchangeMode = "host" if block.exchange == "none" else block.exchange
    if exchange == block.exchange and not block.barrier:
        return block
    return replace(block, barrier=False, exchange=exchange)


# ---------------------------------------------------------------- placing tasks


def longest_s(tasks: Sequence[HeftTask], begins_s: Sequence[float] | None = None) -> float:
    """Seconds of the longest path, with each task on its best processor and not before its
    `begins_s`: a lower bound for all placements.
    """
    ends: list[float] = []
    for k, task in enumerate(tasks):
        begin = max((ends[source] for source in task.reads), default=0.0)
        ends.append(min(task.seconds) + max(begin, begins_s[k] if begins_s else 0.0))
    return max(ends, default=0.0)


def placement(tasks: Sequence[HeftTask], transfer_s: _HeftTransfer) -> list[int]:
    """The processor of each task; tasks come in topological order."""
    if not tasks:
        return []
    ranks = _ranks(tasks, transfer_s)
    free = [0.0] * len(tasks[0].seconds)
    placed: dict[int, tuple[int, float]] = {}
    # Among equals the first in topological order, so that no task precedes its inputs.
    for task in sorted(range(len(tasks)), key=lambda task: (-ranks[task], task)):
        ends = []
        for processor, seconds in enumerate(tasks[task].seconds):
            begin = max(free[processor], tasks[task].ready_s[processor])
            for source, size in tasks[task].reads.items():
                there, end = placed[source]
                moved_s = transfer_s(there, processor, size) if there != processor else 0.0
                begin = max(begin, end + moved_s)
            ends.append(begin + seconds)
        chosen = min(range(len(ends)), key=ends.__getitem__)
        free[chosen] = ends[chosen]
        placed[task] = (chosen, ends[chosen])
    return [placed[task][0] for task in range(len(tasks))]


def _ranks(tasks: Sequence[HeftTask], transfer_s: _HeftTransfer) -> list[float]:
    """Seconds from each task's start to the end of everything, on the average processor."""
    pairs = list(permutations(range(len(tasks[0].seconds)), 2))
    sizes = {size for task in tasks for size in task.reads.values()}
    mean_s = {
        size: fmean(transfer_s(*pair, size) for pair in pairs) if pairs else 0.0 for size in sizes
    }
    after = [0.0] * len(tasks)
    ranks = [0.0] * len(tasks)
    for task in reversed(range(len(tasks))):
        ranks[task] = fmean(tasks[task].seconds) + after[task]
        for source, size in tasks[task].reads.items():
            after[source] = max(after[source], mean_s[size] + ranks[task])
    return ranks
