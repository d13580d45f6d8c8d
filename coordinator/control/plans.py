"""The plans of every model: made, prepared on the devices, then swapped in.

Every model has a plan in force. It is replaced when devices come or go, when something was
measured, and periodically; one that is held stays as it is. Beside it are the plans that requests
chose: by a strategy or a number of devices (made again at the next use after devices or
measurements changed), or sent by somebody (never made again).

A plan's programs are ready on every device before it takes over; requests in flight finish on the
plan that they began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from coordinator.control.choice import IN_FORCE, Choice
from coordinator.control.given import plan_id
from coordinator.control.making import CONSIDERED, Maker
from coordinator.costs.devices import Cluster
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import Plan
from protos.errors import ImbrexError, NotFound, Unavailable

log = structlog.get_logger(__name__)

# Events that come together (four workers that start) lead to one plan.
SETTLE_S = 0.2
# Chosen plans that are kept: a benchmark of every strategy over 1 to 7 devices. Each keeps its
# graphs.
MOST_CHOSEN = 64
# Hashes of a hundred bytes; devices let go of programs that nobody has run for long by themselves.
MOST_LEFT = 1024
# How long a request waits for its model's first plan, weights included.
FIRST_PLAN_S = 300.0


@dataclass(slots=True, eq=False)
class _Entry:
    """One plan in force or chosen, and the work on its successor."""

    model: str
    choice: Choice
    graph: TaskGraph | None = None
    error: ImbrexError | None = None
    causes: list[str] = field(default_factory=list)
    work: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    held: bool = False
    stale: bool = False
    # Programs of the plans before, which may still be on the devices.
    left: dict[str, None] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether a successor is being made."""
        return self.work is not None and not self.work.done()

    def put(self, graph: TaskGraph | None, error: ImbrexError | None) -> None:
        """The outcome of planning; wakes those that wait for it."""
        if self.graph is not None and graph is not self.graph:
            self.left.update(dict.fromkeys(self.graph.programs))
            for oldest in list(self.left)[: max(0, len(self.left) - MOST_LEFT)]:
                del self.left[oldest]
        self.graph, self.error = graph, error
        self.changed.set()
        self.changed = asyncio.Event()


class Plans:
    """Keeps one plan per model in force, and the latest that were chosen."""

    def __init__(
        self,
        maker: Maker,
        cluster: Callable[[], Cluster],
        planned: Callable[[str, int, Sequence[str]], None] = lambda *_: None,
    ) -> None:
        self._maker = maker
        self._planned = planned
        self._cluster = cluster
        self._entries: dict[tuple[str, Choice], _Entry] = {}

    def graph(self, model: str, choice: Choice = IN_FORCE) -> TaskGraph | None:
        """The plan in force, or the chosen one, if there is one that need not be made anew."""
        entry = self._entries.get((model, choice))
        return entry.graph if entry and not entry.stale else None

    def in_force(self) -> list[TaskGraph]:
        """The plans in force of all models."""
        entries = self._entries.values()
        return [each.graph for each in entries if each.choice == IN_FORCE and each.graph]

    def held(self, model: str) -> bool:
        """Whether the plan in force was given, and stays."""
        entry = self._entries.get((model, IN_FORCE))
        return entry is not None and entry.held

    def state(self, model: str) -> str:
        """For people: ready, planning, or why not."""
        entry = self._entries.get((model, IN_FORCE))
        if entry is None:
            return "not loaded"
        if entry.graph is not None:
            return "ready"
        return str(entry.error) if entry.error else "planning"

    async def current(self, model: str, choice: Choice = IN_FORCE) -> TaskGraph:
        """The plan in force, or the one that is chosen; waits for the first one.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready, or no plan in time.
            Infeasible: no plan fits the devices.
        """
        entry = self._entry(model, choice)
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
        if choice.plan:
            self._require_devices(entry.graph.plan)
        return entry.graph

    async def hold(self, model: str, plan: Plan) -> TaskGraph:
        """Puts a checked plan in force, prepared, until `release`."""
        graph = await self._maker.prepared(model, plan)
        entry = self._entries.setdefault((model, IN_FORCE), _Entry(model, IN_FORCE))
        entry.held = True
        entry.causes.clear()
        entry.put(graph, None)
        return graph

    def release(self, model: str) -> bool:
        """Plans by itself again; whether a plan was held."""
        entry = self._entries.get((model, IN_FORCE))
        if entry is None or not entry.held:
            return False
        entry.held = False
        self._request(entry, "released")
        return True

    async def keep(self, model: str, plan: Plan) -> TaskGraph:
        """Prepares a checked plan for requests that choose it by its `plan_id`."""
        choice = Choice(plan=plan_id(plan))
        found = self._entries.get((model, choice))
        if found is None or found.graph is None:
            graph = await self._maker.prepared(model, plan)
            self._make_room()
            found = self._entries[model, choice] = _Entry(model, choice)
            found.put(graph, None)
        self._touch(found)
        assert found.graph is not None
        return found.graph

    def refresh(self, cause: str, model: str = "") -> None:
        """Plans again for a model (or every one) that is loaded, in the background. Chosen plans
        change only with the devices and what is measured of them, and when they are next asked for.
        """
        for entry in list(self._entries.values()):
            if model and entry.model != model:
                continue
            if entry.choice == IN_FORCE:
                self._request(entry, cause)
            elif cause not in CONSIDERED and not entry.choice.plan:
                entry.stale = True

    def programs(self) -> set[str]:
        """Hashes of the programs that any plan needs."""
        graphs = (entry.graph for entry in self._entries.values())
        return {sha256 for graph in graphs if graph is not None for sha256 in graph.programs}

    def forget(self, model: str) -> set[str]:
        """Forgets every plan of a model; their programs. Requests in flight finish on theirs."""
        before = self.programs()
        for entry in self._entries.values():
            if entry.model == model:
                before |= entry.left.keys()
        for key in [key for key in self._entries if key[0] == model]:
            entry = self._entries.pop(key)
            if entry.work is not None:
                entry.work.cancel()
            entry.causes.clear()
            gone = Unavailable(cause=f"{model} was unloaded", cure="Load it, and ask again")
            entry.put(None, gone)
        return before - self.programs()

    def is_busy(self, model: str) -> bool:
        """Whether a plan of a model is being made."""
        return any(entry.busy for entry in self._entries.values() if entry.model == model)

    async def settled(self) -> None:
        """Returns when no plan is being made."""
        while works := [e.work for e in self._entries.values() if e.work and not e.work.done()]:
            await asyncio.wait(works)

    async def close(self) -> None:
        """Stops planning."""
        works = [entry.work for entry in self._entries.values() if entry.work]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ------------------------------------------------------------ entries

    def _entry(self, model: str, choice: Choice) -> _Entry:
        entry = self._entries.get((model, choice))
        if entry is None:
            if choice.plan:
                raise NotFound(
                    cause=f"no plan {choice.plan!r} of {model} is kept here",
                    cure=f"Send it (again): POST /v1/plans/{model}",
                )
            self._maker.planner(choice.strategy)  # a wrong name leaves nothing behind
            if choice != IN_FORCE:
                self._make_room()
            entry = self._entries[model, choice] = _Entry(model, choice)
            self._request(entry, "first use")
        self._touch(entry)
        if entry.stale:
            entry.graph, entry.stale = None, False
            self._request(entry, "devices or measurements changed")
        if entry.graph is None and not entry.causes:
            self._request(entry, "asked for")
        return entry

    def _touch(self, entry: _Entry) -> None:
        """The latest used is the last to be dropped."""
        key = (entry.model, entry.choice)
        self._entries[key] = self._entries.pop(key)

    def _make_room(self) -> None:
        """Drops the chosen plan that was not used for longest."""
        chosen = [key for key in self._entries if key[1] != IN_FORCE]
        if len(chosen) < MOST_CHOSEN:
            return
        idle = next((key for key in chosen if not self._entries[key].busy), None)
        if idle is None:
            raise Unavailable(
                cause=f"{len(chosen)} plans are being made already", cure="Try again in a moment."
            )
        del self._entries[idle]

    def _require_devices(self, plan: Plan) -> None:
        present = {device.id for device in self._cluster().devices}
        gone = [device for device in plan.devices if device not in present]
        if gone:
            raise Unavailable(
                cause=f"the chosen plan needs {', '.join(gone)}, which is not ready",
                cure="Wait until it is back, or make another plan.",
            )

    # ------------------------------------------------------------ background

    def _request(self, entry: _Entry, cause: str) -> None:
        if entry.held:
            return
        if cause not in entry.causes:
            entry.causes.append(cause)
        if not entry.busy:
            entry.work = asyncio.create_task(self._work(entry))

    async def _work(self, entry: _Entry) -> None:
        while entry.causes:
            await asyncio.sleep(SETTLE_S)
            causes, cluster = list(entry.causes), self._cluster()
            graph: TaskGraph | None = None
            error: ImbrexError | None = None
            try:
                graph = await self._maker.successor(
                    entry.model, entry.choice, entry.graph, cluster, causes
                )
            except ImbrexError as refused:
                log.warning("no plan", model=entry.model, causes=causes, error=str(refused))
                error = refused
            except Exception as fault:
                log.exception("planning failed", model=entry.model, causes=causes)
                error = _fault(fault)
            if entry.held:
                return  # somebody gave a plan meanwhile
            entry.causes = [cause for cause in entry.causes if cause not in causes]
            # Without a better one, the old plan goes on: what was lost of it runs elsewhere.
            keeps = graph is None and cluster.devices and entry.graph is not None
            before = entry.graph
            entry.put(before if keeps else graph, error)
            if graph is not None and graph is not before and entry.choice == IN_FORCE:
                self._planned(entry.model, graph.plan.version, causes)


def _fault(error: Exception) -> ImbrexError:
    return ImbrexError(
        cause=f"planning failed inside imbrex ({type(error).__name__})",
        cure="See the coordinator's log.",
    )
