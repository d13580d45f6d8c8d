"""Where plans come from: proposed by a planner, off the event loop, and prepared on devices."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import structlog

from coordinator.control.entries import are_alike
from coordinator.control.events import Divide, Divided, Planned, Propose
from coordinator.costs.devices import Cluster, Planner, fastest
from coordinator.library.loaded import Library, Loaded
from coordinator.planning.groups import Grouping, counts, divided, grouping, service
from coordinator.planning.propose import propose
from coordinator.planning.simulator import simulate
from coordinator.settings import Objective
from coordinator.tasks.graph import TaskGraph, compile_plan
from coordinator.tasks.plan import DeviceId, Plan
from models.program import BlobSource, Program
from models.units import Network
from models.wire import Wire
from protos.errors import BadConfiguration, ImbrexError, Infeasible

log = structlog.get_logger(__name__)


class Preparer(Protocol):
    """What brings programs to devices."""

    async def ensure(
        self, device: DeviceId, programs: Sequence[Program], blobs: BlobSource
    ) -> None:
        """Returns when the programs can run on the device."""
        ...


class Maker:
    """Finds plans and makes them ready. `planner` finds a planner by its name; the `objective` says
    how many groups are thought of. `wire` is what maps may travel as, None: what each model's
    sidecar allows.
    """

    def __init__(
        self,
        library: Library,
        planner: Callable[[str], Planner],
        preparer: Preparer,
        objective: Objective,
        wire: Wire | None = None,
    ) -> None:
        self._library = library
        self.planner = planner
        self._preparer = preparer
        self._objective = objective
        self._wire = wire
        self._versions: Counter[str] = Counter()

    async def propose(self, asked: Propose, cluster: Cluster) -> Planned:
        """A plan for the cluster's devices, and what the old one, if it can go on, takes on them.

        Raises:
            BadRequest: there are not so many devices.
            Infeasible: no plan fits the devices.
        """
        loaded = await self._library.get(asked.model)
        planner, network = self.planner(asked.choice.strategy), loaded.served.network
        chosen = _without(fastest(cluster, asked.choice.devices), asked.without)
        allowed = asked.choice.wire or self._allowed(loaded)
        plan = await asyncio.to_thread(_proposed, planner, network, chosen, allowed)
        old, present = asked.old, {device.id for device in chosen.devices}
        if old is None or are_alike(plan, old) or not present.issuperset(old.devices):
            return Planned(asked.work, plan)
        simulation = await asyncio.to_thread(simulate, old, network, chosen)
        return Planned(asked.work, plan, simulation.latency_s)

    async def divide(self, asked: Divide, cluster: Cluster) -> Divided:
        """Groupings planned by our own strategy. Numbers for which a group cannot hold the model
        are left out.
        """
        loaded = await self._library.get(asked.model)
        network, allowed = loaded.served.network, self._allowed(loaded)
        planner, most = self.planner(""), len(cluster.devices)

        def all_of_them() -> dict[int, Grouping]:
            found = {1: Grouping((asked.plan,), (service(asked.plan, network, cluster),))}
            for count in counts(1 if self._objective == "latency" else most):
                with suppress(Infeasible):
                    if count > 1:
                        groups = divided(cluster, count)
                        plans = [_proposed(planner, network, group, allowed) for group in groups]
                        found[count] = grouping(plans, network, groups)
            return found

        return Divided(asked.work, await asyncio.to_thread(all_of_them))

    def _allowed(self, loaded: Loaded) -> Wire:
        """What a model's maps may travel as: as we were told, else as its sidecar says."""
        sidecar = loaded.served.sidecar
        return self._wire or (sidecar.wire if sidecar else "exact")

    async def prepare(
        self, model: str, plan: Plan
    ) -> tuple[TaskGraph, dict[DeviceId, ImbrexError], float]:
        """The plan's tasks; the devices on which its programs can't be made ready (too little
        memory or disk, or they are gone); the seconds that this took.
        """
        loaded = await self._library.get(model)
        self._versions[model] += 1
        plan = replace(plan, version=self._versions[model])
        graph = await asyncio.to_thread(compile_plan, plan, loaded.served.network, loaded.blobs())
        began_s = time.monotonic()
        results = await asyncio.gather(
            *(
                self._preparer.ensure(device, graph.programs_of(device), graph.blobs)
                for device in plan.devices
            ),
            return_exceptions=True,
        )
        took_s = time.monotonic() - began_s
        errors: dict[DeviceId, ImbrexError] = {}
        for device, result in zip(plan.devices, results, strict=True):
            if isinstance(result, ImbrexError):
                errors[device] = result
            elif result is not None:
                raise result
        return graph, errors, took_s


def _without(cluster: Cluster, errors: Mapping[DeviceId, ImbrexError]) -> Cluster:
    """The cluster without devices that could not be prepared. They are tried again with the next
    plan; until then the others serve.

    Raises:
        ImbrexError: none is left.
    """
    left = tuple(each for each in cluster.devices if each.id not in errors)
    if not left:
        raise next(iter(errors.values()))
    return replace(cluster, devices=left)


def _proposed(planner: Planner, network: Network, cluster: Cluster, allowed: Wire) -> Plan:
    """A planner's plan. Planners may be anybody's: what they raise is told as an error of theirs.

    Raises:
        Infeasible: no plan, or an illegal one.
        BadConfiguration: the planner itself fails.
    """
    try:
        return propose(planner, network, cluster, allowed)
    except ImbrexError:
        raise
    except Exception as error:
        name = getattr(planner, "__name__", str(planner))
        log.exception("a planner failed", planner=name)
        raise BadConfiguration(
            cause=f"the planner {name!r} fails: {type(error).__name__}: {error}",
            cure="Mend it, or use another strategy; the log has its traceback",
        ) from error
