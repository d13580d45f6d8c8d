"""The plans of the models that are served, and the turns of requests: executes what the plan book
and groups decide.

Here the clock is read and background work is started. The methods of the book and of groups are
what happens; the steps that they return are executed in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import inf

import structlog

from coordinator.answers import IN_FORCE, PlanChoice, PlanNow
from coordinator.costs.cluster import Cluster
from coordinator.costs.corrections import Observed
from coordinator.devices.announcements import Announcements
from coordinator.devices.devices import Devices
from coordinator.library.loaded import Library
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.book import NO_WORKER, PlanBook
from coordinator.plans.grouping import Regrouping
from coordinator.plans.plan_making import PlanMaker
from coordinator.plans.sent_plan import adopt, plan_id
from coordinator.plans.steps import (
    Divide,
    PlanStep,
    Prepare,
    Prepared,
    Propose,
    Refuse,
    Regroup,
    Start,
    Stop,
    Swap,
    Ticket,
    Unprepared,
    Work,
    WorkFailed,
    WorkOutcome,
)
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph
from models.cut.units import Network
from protos.errors import ImbrexError, NotFound, Unavailable

log = structlog.get_logger(__name__)

_TROUBLE = {
    Propose: "no plan",
    Divide: "groups cannot be planned",
    Prepare: "plans cannot be prepared",
}


@dataclass(frozen=True, slots=True)
class TookOver:
    """A plan is in force now."""

    model: str
    causes: Sequence[str]
    graph: TaskGraph


class Plans:
    """Plans and turns of one coordinator, each by the source of its model. Announces each plan that
    takes over.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        library: Library,
        maker: PlanMaker,
        devices: Devices,
        announcements: Announcements,
    ) -> None:
        self._library = library
        self._maker = maker
        self._devices = devices
        self._announcements = announcements
        numbers = count(1)
        self.book = PlanBook(numbers, settings.replan)
        self.groups = Regrouping(self.book, numbers, settings.objective)
        self._tickets = map(Ticket, count(1))
        self._asked: dict[Ticket, asyncio.Future[TaskGraph]] = {}
        self._works: dict[Work, asyncio.Task[None]] = {}
        # Wakes the book when it is due, with that time: uvloop's handle of what is due already does
        # not say.
        self._timer: tuple[float, asyncio.Handle] | None = None
        self._closed = False
        # Notified after each change of the book, for tasks that wait for a state.
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ requests

    @asynccontextmanager
    async def turn(self, model: str, choice: PlanChoice = IN_FORCE) -> AsyncIterator[TaskGraph]:
        """Waits until the request may start, and gives the plan to execute.

        Raises:
            NotFound, Unavailable, Infeasible: as `prepared`.
        """
        graph = await self.prepared(model, choice)
        if choice != IN_FORCE:
            yield graph
            return
        ticket, turn = self._ticket()
        try:
            self._do(self.groups.queue(ticket, model, graph, time.monotonic()))
            yield await turn
        finally:
            del self._asked[ticket]
            self._do(self.groups.leave(ticket, time.monotonic()))

    async def prepared(self, model: str, choice: PlanChoice = IN_FORCE) -> TaskGraph:
        """The plan in force, or the chosen one, with its programs; waits if there is none yet.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready, or no plan in time.
            Infeasible: no plan fits the devices.
        """
        graph = self.book.graph(model) if choice == IN_FORCE else None
        if graph is not None:
            return graph
        if not self.book.knows(model, choice):
            self._maker.planner(choice.strategy)  # an unknown name must not leave an entry
        ticket, prepared = self._ticket()
        try:
            self._enter(self.book.ask(ticket, model, choice, time.monotonic()))
            return await prepared
        finally:
            del self._asked[ticket]
            self.book.leave(ticket)
            self._enter(())

    def _ticket(self) -> tuple[Ticket, asyncio.Future[TaskGraph]]:
        """A ticket, and what its holder waits for."""
        ticket = next(self._tickets)
        self._asked[ticket] = asyncio.get_running_loop().create_future()
        return ticket, self._asked[ticket]

    # ------------------------------------------------------------ plans as clients see them

    async def current(self, model: str, choice: PlanChoice = IN_FORCE) -> tuple[Plan, Network]:
        """The plan in force for a model, or the chosen one, made if necessary, with the predictions
        that it was made with.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready.
        """
        network = (await self._library.get(model)).network
        graph = await self.prepared(model, choice)
        return replace(graph.plan, made_for=self.book.made_for(model, choice)), network

    async def made(self, model: str, choice: PlanChoice = IN_FORCE) -> tuple[Plan, Network]:
        """As `current`, but only if the plan exists: nothing is loaded, planned or sent.

        Raises:
            NotFound: there is no such plan now.
        """
        self._existing(model, choice)
        return await self.current(model, choice)

    async def now(self, model: str, choice: PlanChoice = IN_FORCE) -> PlanNow:
        """What an existing plan would be predicted to take at the present speeds of devices and
        links, and as its own tasks ran.

        Raises:
            NotFound: there is no such plan now.
            Unavailable: one of its devices is away.
        """
        graph = self._existing(model, choice)
        network = (await self._library.get(model)).network
        plan, cluster = graph.plan, self._devices.cluster(graph)
        gone = set(plan.devices) - {device.id for device in cluster.devices}
        if gone:
            raise Unavailable(
                cause=f"plan {plan.version} needs {', '.join(sorted(gone))}, which is away",
                cure="Wait until it is back, or for the next plan",
            )
        simulation = await asyncio.to_thread(simulate, plan, network, cluster)
        name = self._library.names.public(model)[0]
        return PlanNow(name, plan.version, plan.predicted_latency_s, simulation.latency_s)

    def _existing(self, model: str, choice: PlanChoice) -> TaskGraph:
        graph = self.book.graph(model, choice)
        if graph is None or not self._library.is_loaded(model):
            name = self._library.names.public(model)[0]
            query = "" if choice == IN_FORCE else " with the same query"
            raise NotFound(
                cause=f"{name} has no such plan now",
                cure=f"Send it (again): POST /v1/plans/{name}"
                if choice.plan
                else f"Request it: POST /v1/models/{name}/plan{query}",
            )
        return graph

    async def give(self, model: str, text: bytes, *, hold: bool) -> tuple[str, Plan, Network]:
        """Accepts a plan as JSON and prepares it, for requests that choose it by the returned id,
        or (`hold`) puts it in force until `release`.

        Raises:
            BadRequest, NotFound, IllegalPlan: it is not a plan, or not one for these devices.
        """
        network = (await self._library.get(model)).network
        plan = await asyncio.to_thread(adopt, text, network, self._devices.cluster())
        put = self.hold if hold else self.keep
        return plan_id(plan), (await put(model, plan)).plan, network

    async def hold(self, model: str, plan: Plan) -> TaskGraph:
        """Prepares a checked plan and puts it in force until `release`: what is being made stops,
        and groups end.
        """
        graph = await self._prepare(model, plan)
        steps = self.book.hold(model, graph, time.monotonic())
        self._enter([*steps, *self.groups.hold(model, graph)])
        return graph

    async def keep(self, model: str, plan: Plan) -> TaskGraph:
        """Prepares a checked plan for requests that choose it by its `plan_id`."""
        choice = PlanChoice(plan=plan_id(plan))
        graph = self.book.graph(model, choice) or await self._prepare(model, plan)
        self.book.keep(model, choice, graph)
        return graph

    async def _prepare(self, model: str, plan: Plan) -> TaskGraph:
        # Nobody follows this work.
        match await self._maker.prepare(Prepare(Work(0), model, (plan,))):
            case Prepared(_, (graph,)):
                return graph
            case Unprepared(_, errors):
                raise next(iter(errors.values()))
        raise AssertionError("a plan is prepared, or it is not")

    def release(self, model: str) -> None:
        """Returns to automatic planning for a model.

        Raises:
            NotFound: no plan is held for it.
        """
        if not self.book.held(model):
            raise NotFound(
                cause=f"no plan is held for {self._library.names.public(model)[0]}",
                cure="Nothing to do: imbrex plans for this model by itself",
            )
        self.book.release(model, time.monotonic())
        self._enter(())

    # ------------------------------------------------------------ what happens

    def devices_changed(self, cause: str, now: float | None = None, model: str = "") -> None:
        """Devices or their speeds have changed: plans again in the background, for one model or for
        all that are loaded.
        """
        devices = frozenset(self._devices.plannable(now))
        self.book.devices_changed(devices, cause, time.monotonic(), model)
        self._enter(self.groups.devices_changed(devices))

    def answered(self, model: str, observed: Mapping[str, Observed]) -> None:
        """A request to a model was answered; `observed` are the present speeds of devices and
        links.
        """
        self.book.answered(model, observed, time.monotonic())
        self._enter(())

    def forget(self, model: str) -> set[str]:
        """Forgets a model's plans and groups, and returns the hashes of their programs. Requests in
        flight finish on theirs.
        """
        programs = self.book.programs_of(model) | self.groups.programs(model)
        self._enter([*self.book.forget(model, time.monotonic()), *self.groups.forget(model)])
        return programs

    def programs(self) -> set[str]:
        """Hashes of the programs that any plan or group needs."""
        return self.book.programs() | self.groups.programs()

    def in_use(self, model: str) -> bool:
        """Whether a request to the model is in flight, a plan of it is being made, or is held."""
        book = self.book
        return self.groups.is_busy(model) or book.is_busy(model) or book.held(model)

    async def settled(self) -> None:
        """Returns when no plan is being made."""
        while self.book.is_busy():
            await self._changed.wait()

    async def close(self) -> None:
        """Stops all work."""
        self._closed = True
        if self._timer is not None:
            self._timer[1].cancel()
        works = list(self._works.values())
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ------------------------------------------------------------ steps and works

    def _enter(self, steps: Iterable[PlanStep]) -> None:
        """Executes the steps that a change of the book led to, and wakes it when it is next due.
        Nobody hears of plans that took over before all of that is done.
        """
        with self._announcements.held():
            self._do(steps)
            due_s = self.book.due_s
            if self._timer is not None and self._timer[0] != due_s:
                self._timer[1].cancel()
                self._timer = None
            if self._timer is None and due_s < inf and not self._closed:
                self._timer = due_s, asyncio.get_running_loop().call_at(due_s, self._tick)
            self._changed.set()
            self._changed.clear()

    def _tick(self) -> None:
        self._timer = None
        self._enter(self.book.tick(time.monotonic()))

    def _do(self, steps: Iterable[PlanStep]) -> None:
        for step in steps:
            match step:
                case Start(ticket, graph) if not self._asked[ticket].done():
                    self._asked[ticket].set_result(graph)
                case Refuse(ticket, error) if not self._asked[ticket].done():
                    self._asked[ticket].set_exception(error)
                case Start() | Refuse():
                    pass  # its task was cancelled just now, and is about to leave
                case Propose() | Divide() | Prepare():
                    self._works[step.work] = asyncio.create_task(self._make(step))
                case Stop(work):
                    self._works.pop(work).cancel()
                case Swap(model, choice, graph, causes):
                    _log_plan(step)
                    if choice == IN_FORCE:
                        self._announcements.announce(TookOver(model, causes, graph))
                case Regroup(model, groups, outstanding):
                    outstanding = round(outstanding, 1)
                    log.info("groups", model=model, groups=groups, outstanding=outstanding)

    async def _make(self, asked: Propose | Divide | Prepare) -> None:
        outcome = await self._outcome(asked)
        del self._works[asked.work]
        now = time.monotonic()
        self._enter([*self.book.ended(outcome, now), *self.groups.ended(outcome, now)])

    async def _outcome(self, asked: Propose | Divide | Prepare) -> WorkOutcome:
        try:
            match asked:
                case Propose():
                    return await self._maker.propose(asked, self._cluster(asked.model))
                case Divide():
                    return await self._maker.divide(asked, self._cluster(asked.model))
                case Prepare():
                    return await self._maker.prepare(asked)
        except ImbrexError as refused:
            why = {"causes": list(asked.causes)} if isinstance(asked, Propose) else {}
            log.warning(_TROUBLE[type(asked)], model=asked.model, **why, error=str(refused))
            return WorkFailed(asked.work, refused, deserted=refused is NO_WORKER)
        except Exception as fault:
            log.exception("planning failed", model=asked.model)
            cause = f"planning failed inside imbrex ({type(fault).__name__})"
            error = ImbrexError(cause=cause, cure="See the coordinator's log.")
            return WorkFailed(asked.work, error)

    def _cluster(self, model: str) -> Cluster:
        """The devices, with what they take for a model if that was measured."""
        return self._devices.cluster(model=self._library.names.public(model)[0])


def _log_plan(swap: Swap) -> None:
    plan = swap.graph.plan
    log.info(
        "plan",
        model=swap.model,
        version=plan.version,
        causes=list(swap.causes),
        strategy=plan.strategy,
        wire=plan.wire,
        devices=len(plan.devices),
        blocks=len(plan.blocks),
        predicted_ms=round(plan.predicted_latency_s * 1e3, 1),
    )
