"""Making plans: a planner proposes them off the event loop, and they are prepared on devices."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import WeakKeyDictionary

import structlog

from coordinator.costs.cluster import Cluster, Planner, fastest
from coordinator.devices.pool import Pool
from coordinator.library.loaded import Library, Loaded
from coordinator.planning.groups import Grouping, counts, divided, grouping
from coordinator.planning.planners.propose import propose
from coordinator.planning.plugin_errors import BrokenPlanner, name_of
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.whole_network_devices import parted, without_others
from coordinator.plans.book import NO_WORKER
from coordinator.plans.entries import are_alike
from coordinator.plans.named import planner_of
from coordinator.plans.steps import (
    Divide,
    Divided,
    Planned,
    Prepare,
    Prepared,
    Propose,
    Unprepared,
)
from coordinator.plans.switching import LEAST_GAIN
from coordinator.settings import Objective
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph, compile_plan
from models.cut.units import Network
from models.tensors.precision import Wire
from protos.errors import ImbrexError, Infeasible
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)


class PlanMaker:
    """Makes plans by the strategies named `own`, the first of them unless a request chooses, and
    prepares them; `objective` determines which numbers of groups are considered. `wire` is the
    encoding of maps, None for that of each model's sidecar.
    """

    def __init__(
        self,
        library: Library,
        own: Sequence[str],
        pool: Pool,
        objective: Objective,
        wire: Wire | None = None,
    ) -> None:
        self._library = library
        self._own = own
        self._pool = pool
        self._objective = objective
        self._wire = wire
        self._versions: Counter[str] = Counter()
        # Planning keeps what it finds about a network, so one thread at a time plans for it.
        self._planning: WeakKeyDictionary[Network, asyncio.Lock] = WeakKeyDictionary()

    def planner(self, name: str) -> Planner:
        """The planner that a request names; errors as `planner_of`."""
        return planner_of(self._own, name)

    async def propose(self, asked: Propose, cluster: Cluster) -> Planned:
        """A plan for the cluster's devices, and the present latency of the old one if it can go on.

        Raises:
            Unavailable: there is no device.
            BadRequest: more devices were requested than there are.
            Infeasible: no plan fits the devices.
        """
        if not cluster.devices:
            raise NO_WORKER
        loaded = await self._library.load(asked.model)
        planner, network = self.planner(asked.choice.strategy), loaded.served.network
        chosen = _without(fastest(cluster, asked.choice.devices), asked.without)
        allowed = asked.choice.wire or self._allowed(loaded)
        async with self._alone(network):
            plan = await asyncio.to_thread(_proposed, planner, network, chosen, allowed)
        old, present = asked.old, {device.id for device in chosen.devices}
        if old is None or are_alike(plan, old) or not present.issuperset(old.devices):
            return Planned(asked.work, plan)
        simulation = await asyncio.to_thread(simulate, old, network, chosen)
        return Planned(asked.work, plan, simulation.latency_s)

    async def divide(self, asked: Divide, cluster: Cluster) -> Divided:
        """Groupings, planned by the built-in strategy; numbers for which a group cannot hold the
        model are left out. One that is ready stays unless the new one is clearly better.
        """
        loaded = await self._library.load(asked.model)
        network, allowed = loaded.served.network, self._allowed(loaded)
        planner, cluster = self.planner(""), without_others(network, cluster)
        free, limited = parted(cluster)
        numbers = counts(len(free.devices), len(limited))
        if self._objective == "latency":
            numbers = numbers[:1]
        ready = {len(division.plans): division for division in asked.ready}
        present = {device.id for device in cluster.devices}

        def cost_s(candidate: Grouping) -> float:
            """Seconds for an image when each group has one."""
            if self._objective == "throughput":
                return 1.0 / candidate.capacity_per_s
            return candidate.response_s(len(candidate.plans))

        def best(count: int) -> Grouping:
            groups = divided(cluster, count)
            plans = [_proposed(planner, network, group, allowed) for group in groups]
            new = grouping(plans, network, groups)
            old = ready.get(count)
            if old is None or not present >= old.devices:
                return new
            kept = grouping(old.plans, network, [cluster] * count)
            return new if cost_s(new) < (1.0 - LEAST_GAIN) * cost_s(kept) else kept

        def all_of_them() -> dict[int, Grouping]:
            groupings = {1: grouping((asked.plan,), network, (cluster,))}
            for count in numbers[1:]:
                with suppress(Infeasible):
                    groupings[count] = best(count)
            return groupings

        async with self._alone(network):
            return Divided(asked.work, await asyncio.to_thread(all_of_them))

    def _alone(self, network: Network) -> asyncio.Lock:
        return self._planning.setdefault(network, asyncio.Lock())

    def _allowed(self, loaded: Loaded) -> Wire:
        """The encoding of a model's maps: from the settings, otherwise from its sidecar."""
        sidecar = loaded.served.sidecar
        return self._wire or (sidecar.allowed_wire if sidecar else "exact")

    async def prepare(self, asked: Prepare) -> Prepared | Unprepared:
        """The plans' task graphs, prepared one after the other; or the devices on which a plan's
        programs could not be prepared, because memory or disk is short or the device is gone.
        """
        loaded, graphs, seconds = await self._library.load(asked.model), [], 0.0
        for plan in asked.plans:
            self._versions[asked.model] += 1
            numbered = replace(plan, version=self._versions[asked.model])
            network, blobs = loaded.served.network, loaded.blobs()
            graph = await asyncio.to_thread(compile_plan, numbered, network, blobs)
            began_s = time.monotonic()
            errors = await self._ensure(graph)
            seconds += (time.monotonic() - began_s) / len(asked.plans)
            for device, error in errors.items():
                log.warning("device left out", model=asked.model, device=device, cause=error.cause)
            if errors:
                return Unprepared(asked.work, errors)
            graphs.append(graph)
        return Prepared(asked.work, tuple(graphs), seconds)

    async def _ensure(self, graph: TaskGraph) -> dict[DeviceId, ImbrexError]:
        """The devices that could not be prepared for a plan, and why."""
        devices = graph.plan.devices

        async def ensure(device: DeviceId) -> None:
            await self._pool.connection(device).ensure(graph.programs_of(device), graph.blobs)

        results = await asyncio.gather(*map(ensure, devices), return_exceptions=True)
        errors: dict[DeviceId, ImbrexError] = {}
        for device, result in zip(devices, results, strict=True):
            if isinstance(result, ImbrexError):
                errors[device] = result
            elif result is not None:
                raise result
        return errors


def _without(cluster: Cluster, errors: Mapping[DeviceId, ImbrexError]) -> Cluster:
    """The cluster without the devices that could not be prepared. The next planning tries them
    again.

    Raises:
        ImbrexError: none is left.
    """
    left = tuple(device for device in cluster.devices if device.id not in errors)
    if not left:
        raise next(iter(errors.values()))
    return replace(cluster, devices=left)


def _proposed(planner: Planner, network: Network, cluster: Cluster, allowed: Wire) -> Plan:
    """A planner's plan; the log has the traceback of one that fails.

    Raises:
        Infeasible: no plan, or an illegal one.
        BrokenPlanner: the planner itself fails.
    """
    try:
        return propose(planner, network, cluster, allowed)
    except BrokenPlanner:
        log.exception("a planner failed", planner=name_of(planner))
        raise
