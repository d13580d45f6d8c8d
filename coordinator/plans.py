"""The plan in force of every model: made, prepared on the devices, then swapped in.

A plan is replaced when devices come or go, when something was measured, and periodically. The
new plan's programs are ready on every device before it takes over; requests in flight finish on
the plan that they began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from coordinator.execution.tasks import TaskGraph, compile_plan
from coordinator.library import Library
from coordinator.planning.devices import Cluster, Planner
from coordinator.planning.plan import DeviceId, Plan
from coordinator.planning.propose import propose
from models.program import BlobSource, Program
from protos.errors import ImbrexError, Unavailable

log = structlog.get_logger(__name__)

# Events that come together (four workers that start) lead to one plan.
SETTLE_S = 0.2
# A periodic plan must promise this much to be worth new sessions on the devices.
WORTHWHILE_GAIN = 0.05
# How long a request waits for its model's first plan, weights included.
FIRST_PLAN_S = 300.0

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


@dataclass(slots=True)
class _Entry:
    """One model's plan in force, and the work on its successor."""

    graph: TaskGraph | None = None
    error: ImbrexError | None = None
    causes: list[str] = field(default_factory=list)
    work: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    version: int = 0


class Plans:
    """Keeps one plan per model in force."""

    def __init__(
        self,
        library: Library,
        cluster: Callable[[], Cluster],
        planner: Planner,
        preparer: Preparer,
    ) -> None:
        self._library = library
        self._cluster = cluster
        self._planner = planner
        self._preparer = preparer
        self._entries: dict[str, _Entry] = {}

    def graph(self, model: str) -> TaskGraph | None:
        """The plan in force, if there is one."""
        entry = self._entries.get(model)
        return entry.graph if entry else None

    def state(self, model: str) -> str:
        """For people: ready, planning, or why not."""
        entry = self._entries.get(model)
        if entry is None:
            return "not loaded"
        if entry.graph is not None:
            return "ready"
        return str(entry.error) if entry.error else "planning"

    async def current(self, model: str) -> TaskGraph:
        """The plan in force; waits for the first one.

        Raises:
            Unavailable: no worker is ready, or no plan in time.
            Infeasible: no plan fits the devices.
        """
        entry = self._entry(model)
        deadline = asyncio.get_running_loop().time() + FIRST_PLAN_S
        while entry.graph is None:
            if entry.error is not None and not entry.causes:
                raise entry.error
            try:
                async with asyncio.timeout_at(deadline):
                    await entry.changed.wait()
            except TimeoutError:
                raise Unavailable(
                    cause=f"no plan for {model} within {FIRST_PLAN_S:.0f} s",
                    cure="See the coordinator's log.",
                ) from None
        return entry.graph

    def refresh(self, cause: str) -> None:
        """Plans again for every model that is loaded, in the background."""
        for model in self._entries:
            self._request(model, cause)

    async def close(self) -> None:
        """Stops planning."""
        works = [entry.work for entry in self._entries.values() if entry.work]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ------------------------------------------------------------ background

    def _entry(self, model: str) -> _Entry:
        if model not in self._entries:
            self._entries[model] = _Entry()
            self._request(model, "first use")
        entry = self._entries[model]
        if entry.graph is None and not entry.causes:
            self._request(model, "asked for")
        return entry

    def _request(self, model: str, cause: str) -> None:
        entry = self._entries[model]
        if cause not in entry.causes:
            entry.causes.append(cause)
        if entry.work is None or entry.work.done():
            entry.work = asyncio.create_task(self._work(model, entry))

    async def _work(self, model: str, entry: _Entry) -> None:
        while entry.causes:
            await asyncio.sleep(SETTLE_S)
            causes, cluster = list(entry.causes), self._cluster()
            try:
                graph = await self._make(model, entry, cluster, causes)
                entry.error = None
            except ImbrexError as error:
                log.warning("no plan", model=model, causes=causes, error=str(error))
                graph, entry.error = None, error
            if graph is not None or not cluster.devices:
                entry.graph = graph
            entry.causes = [cause for cause in entry.causes if cause not in causes]
            entry.changed.set()
            entry.changed = asyncio.Event()

    async def _make(
        self, model: str, entry: _Entry, cluster: Cluster, causes: list[str]
    ) -> TaskGraph | None:
        """The prepared successor; the plan in force if nothing better was found."""
        if not cluster.devices:
            raise NO_WORKER
        loaded = await self._library.get(model)
        network = loaded.served.network
        plan = await asyncio.to_thread(propose, self._planner, network, cluster)
        if entry.graph is not None and not _is_better(plan, entry.graph.plan, cluster, causes):
            return entry.graph
        entry.version += 1
        plan = replace(plan, version=entry.version)
        graph = await asyncio.to_thread(compile_plan, plan, network, loaded.blobs)
        await self._prepare(graph)
        log.info(
            "plan",
            model=model,
            version=plan.version,
            causes=causes,
            strategy=plan.strategy,
            devices=len(plan.devices),
            blocks=len(plan.blocks),
            predicted_ms=round(plan.predicted_latency_s * 1e3, 1),
        )
        return graph

    async def _prepare(self, graph: TaskGraph) -> None:
        results = await asyncio.gather(
            *(
                self._preparer.ensure(device, graph.programs_of(device), graph.blobs)
                for device in graph.plan.devices
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _is_better(new: Plan, old: Plan, cluster: Cluster, causes: list[str]) -> bool:
    """Whether to switch: always when a device of the old plan is gone, never for the same plan,
    and otherwise only if the gain is worth new sessions.
    """
    if new.blocks == old.blocks:
        return False
    present = {device.id for device in cluster.devices}
    if not present.issuperset(old.devices) or causes != ["period"]:
        return True
    return new.predicted_latency_s < (1 - WORTHWHILE_GAIN) * old.predicted_latency_s
