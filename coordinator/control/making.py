"""How a plan comes about: proposed by a planner, compared with the one before, prepared."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import structlog

from coordinator.control.choice import Choice
from coordinator.costs.devices import Cluster, Planner, fastest
from coordinator.library.loaded import Library, Loaded
from coordinator.measuring.switching import Switching
from coordinator.planning.groups import Grouping, divided, grouping, service
from coordinator.planning.propose import propose
from coordinator.planning.simulator import simulate
from coordinator.tasks.graph import TaskGraph, compile_plan
from coordinator.tasks.plan import DeviceId, Plan
from models.program import BlobSource, Program
from models.units import Network
from models.wire import Wire
from protos.errors import BadConfiguration, ImbrexError, Infeasible, Unavailable

log = structlog.get_logger(__name__)

# Causes of planning again after which the old plan would still do: nothing has happened, or
# devices and links are not as fast as they were.
PERIOD = "period"
DRIFT = "drift"
CONSIDERED = (PERIOD, DRIFT)

NO_WORKER = Unavailable(
    cause="no worker is ready",
    cure="Start one with `imbrex worker` on a device of this network, or see `imbrex status`.",
)


class Preparer(Protocol):
    """What brings programs to devices."""

    async def ensure(
        self, device: DeviceId, programs: Sequence[Program], blobs: BlobSource
    ) -> None:
        """Returns when the programs can run on the device."""
        ...


class Maker:
    """Makes plans whose programs are ready on their devices. `planner` finds one by its name,
    `switching` judges whether a plan is worth the change. `wire` is what maps may travel as, None:
    what each model's sidecar allows.
    """

    def __init__(
        self,
        library: Library,
        planner: Callable[[str], Planner],
        preparer: Preparer,
        switching: Switching,
        wire: Wire | None = None,
    ) -> None:
        self._library = library
        self.planner = planner
        self._preparer = preparer
        self._switching = switching
        self._wire = wire
        self._versions: Counter[str] = Counter()

    async def successor(
        self,
        model: str,
        choice: Choice,
        old: TaskGraph | None,
        cluster: Cluster,
        causes: Sequence[str],
    ) -> TaskGraph:
        """The prepared successor of `old`; `old` itself if nothing better was found.

        Raises:
            Unavailable: no worker is ready.
            Infeasible: no plan fits the devices.
        """
        if not cluster.devices:
            raise NO_WORKER
        loaded = await self._library.get(model)
        planner = self.planner(choice.strategy)
        chosen = fastest(cluster, choice.devices)
        network, allowed = loaded.served.network, choice.wire or self._allowed(loaded)
        while True:
            plan = await asyncio.to_thread(_proposed, planner, network, chosen, allowed)
            if old is not None and not await self._is_better(plan, old.plan, chosen, causes):
                return old
            graph, errors = await self._prepare(loaded, plan, model)
            if not errors:
                break
            chosen = _without(chosen, errors, model)
        log.info(
            "plan",
            model=model,
            version=graph.plan.version,
            causes=causes,
            strategy=plan.strategy,
            wire=plan.wire,
            devices=len(plan.devices),
            blocks=len(plan.blocks),
            predicted_ms=round(plan.predicted_latency_s * 1e3, 1),
        )
        return graph

    async def groupings(
        self, model: str, plan: Plan, cluster: Cluster, counts: Sequence[int]
    ) -> dict[int, Grouping]:
        """Groupings by their number of groups, planned by our own strategy; 1 is `plan`. Numbers
        for which a group cannot hold the model are left out.
        """
        loaded = await self._library.get(model)
        network, allowed = loaded.served.network, self._allowed(loaded)
        planner = self.planner("")

        def all_of_them() -> dict[int, Grouping]:
            found = {1: Grouping((plan,), (service(plan, network, cluster),))}
            for count in counts:
                with suppress(Infeasible):
                    if count > 1:
                        groups = divided(cluster, count)
                        plans = [_proposed(planner, network, group, allowed) for group in groups]
                        found[count] = grouping(plans, network, groups)
            return found

        return await asyncio.to_thread(all_of_them)

    def _allowed(self, loaded: Loaded) -> Wire:
        """What a model's maps may travel as: as we were told, else as its sidecar says."""
        sidecar = loaded.served.sidecar
        return self._wire or (sidecar.wire if sidecar else "exact")

    async def prepared(self, model: str, plan: Plan) -> TaskGraph:
        """The plan's tasks, with its programs ready on every device.

        Raises:
            ImbrexError: a device cannot be prepared (too little memory or disk, or it is gone).
        """
        graph, errors = await self._prepare(await self._library.get(model), plan, model)
        for error in errors.values():
            raise error
        return graph

    async def _is_better(
        self, new: Plan, old: Plan, cluster: Cluster, causes: Sequence[str]
    ) -> bool:
        """Whether to switch: always when a device of the old plan is gone or others were measured,
        never for the same plan, and otherwise only if the gain is worth it, by present costs.
        """
        if (new.blocks, new.wire) == (old.blocks, old.wire):
            return False
        present = {device.id for device in cluster.devices}
        if not present.issuperset(old.devices) or not set(causes) <= set(CONSIDERED):
            return True
        network = (await self._library.get(new.model)).served.network
        now = await asyncio.to_thread(simulate, old, network, cluster)
        return self._switching.accepts(new.model, now.latency_s, new.predicted_latency_s)

    async def _prepare(
        self, loaded: Loaded, plan: Plan, model: str
    ) -> tuple[TaskGraph, dict[DeviceId, ImbrexError]]:
        """The plan's tasks, and the devices that can't be prepared for them."""
        self._versions[model] += 1
        plan = replace(plan, version=self._versions[model])
        network = loaded.served.network
        graph = await asyncio.to_thread(compile_plan, plan, network, loaded.blobs())
        began_s = time.monotonic()
        results = await asyncio.gather(
            *(
                self._preparer.ensure(device, graph.programs_of(device), graph.blobs)
                for device in plan.devices
            ),
            return_exceptions=True,
        )
        self._switching.prepared(time.monotonic() - began_s)
        errors: dict[DeviceId, ImbrexError] = {}
        for device, result in zip(plan.devices, results, strict=True):
            if isinstance(result, ImbrexError):
                errors[device] = result
            elif result is not None:
                raise result
        return graph, errors


def _without(cluster: Cluster, errors: Mapping[DeviceId, ImbrexError], model: str) -> Cluster:
    """The cluster without devices that could not be prepared. They are tried again with the next
    plan; until then the others serve.

    Raises:
        ImbrexError: none is left.
    """
    for device, error in errors.items():
        log.warning("device left out", model=model, device=device, cause=error.cause)
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
