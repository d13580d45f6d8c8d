"""Executes what plans and groups decide: background work, and the turns of requests.

Here the clock is read and tasks are started. Everything that happens is passed to the machines as
events, and the actions that they return are executed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from math import inf

import structlog

from coordinator.costs.observed import Observed
from coordinator.devices.announcements import Announcements
from coordinator.devices.devices import Devices
from coordinator.plans import actions, events
from coordinator.plans.actions import Action
from coordinator.plans.book import NO_WORKER, PlanBook
from coordinator.plans.choice import IN_FORCE, Choice
from coordinator.plans.events import Event, Tick, Ticket, Work
from coordinator.plans.grouping import Regrouping
from coordinator.plans.machine import ControlMachine
from coordinator.plans.plan_making import PlanMaker
from coordinator.plans.sent_plan import plan_id
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError

log = structlog.get_logger(__name__)

_TROUBLE = {
    actions.Propose: "no plan",
    actions.Divide: "groups cannot be planned",
    actions.Prepare: "plans cannot be prepared",
}


@dataclass(frozen=True, slots=True)
class TookOver:
    """A plan is in force now."""

    model: str
    causes: Sequence[str]
    graph: TaskGraph


class Controller:
    """Plans and turns of one coordinator. Announces each plan that takes over."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        maker: PlanMaker,
        devices: Devices,
        announcements: Announcements,
    ) -> None:
        self._maker = maker
        self._devices = devices
        self._announcements = announcements
        numbers = count(1)
        self.plans = PlanBook(numbers, settings.replan)
        self.regrouping = Regrouping(self.plans, numbers, settings.objective)
        self._tickets = map(Ticket, count(1))
        self._asked: dict[Ticket, asyncio.Future[TaskGraph]] = {}
        self._works: dict[Work, asyncio.Task[None]] = {}
        # Wakes each machine when it is due, with that time: uvloop's handle of what is due already
        # does not say.
        self._timers: dict[ControlMachine, tuple[float, asyncio.Handle]] = {}
        self._closed = False
        # Notified after each step, for tasks that wait for a state.
        self._stepped = asyncio.Event()

    # ------------------------------------------------------------ requests

    @asynccontextmanager
    async def turn(self, model: str, choice: Choice = IN_FORCE) -> AsyncIterator[TaskGraph]:
        """Waits until the request may start, and gives the plan to execute.

        Raises:
            NotFound, Unavailable, Infeasible: as `current`.
        """
        graph = await self.current(model, choice)
        if choice != IN_FORCE:
            yield graph
            return
        ticket = next(self._tickets)
        try:
            yield await self._wait(events.Queued(ticket, model, graph), self.regrouping)
        finally:
            self._step(events.Left(ticket), self.regrouping)

    async def current(self, model: str, choice: Choice = IN_FORCE) -> TaskGraph:
        """The plan in force, or the chosen one; waits if there is none yet.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready, or no plan in time.
            Infeasible: no plan fits the devices.
        """
        graph = self.plans.graph(model) if choice == IN_FORCE else None
        if graph is not None:
            return graph
        if not self.plans.knows(model, choice):
            self._maker.planner(choice.strategy)  # an unknown name must not leave an entry
        ticket = next(self._tickets)
        try:
            return await self._wait(events.PlanRequested(ticket, model, choice), self.plans)
        finally:
            self._step(events.Left(ticket), self.plans)

    # ------------------------------------------------------------ plans

    def changed(self, cause: str, model: str = "", now: float | None = None) -> None:
        """Devices or their speeds have changed: plans again in the background, for one model or for
        all that are loaded.
        """
        devices = frozenset(self._devices.plannable(now))
        self._step(events.Changed(cause, devices, model), self.plans, self.regrouping)

    def seen(self, model: str, observed: Mapping[str, Observed]) -> None:
        """A request to a model was answered; `observed` are the present speeds of devices and
        links.
        """
        self._step(events.AnswerSeen(model, observed), self.plans)

    async def hold(self, model: str, plan: Plan) -> TaskGraph:
        """Prepares a checked plan and puts it in force until `release`."""
        graph = await self._prepared(model, plan)
        self._step(events.Held(model, graph), self.plans)
        return graph

    def release(self, model: str) -> None:
        """Lets a model's plan change again, if one is held."""
        self._step(events.PlanReleased(model), self.plans)

    async def keep(self, model: str, plan: Plan) -> TaskGraph:
        """Prepares a checked plan for requests that choose it by its `plan_id`."""
        choice = Choice(plan=plan_id(plan))
        graph = self.plans.graph(model, choice) or await self._prepared(model, plan)
        self._step(events.PlanKept(model, choice, graph), self.plans)
        return graph

    async def _prepared(self, model: str, plan: Plan) -> TaskGraph:
        # No machine follows this work.
        match await self._maker.prepare(actions.Prepare(Work(0), model, (plan,))):
            case events.Prepared(_, (graph,)):
                return graph
            case events.Unprepared(_, errors):
                raise next(iter(errors.values()))
        raise AssertionError("a plan is prepared, or it is not")

    def forget(self, model: str) -> set[str]:
        """Forgets a model's plans and groups, and returns the hashes of their programs. Requests in
        flight finish on theirs.
        """
        programs = self.plans.programs_of(model) | self.regrouping.programs(model)
        self._step(events.Forgotten(model), self.plans, self.regrouping)
        return programs

    def programs(self) -> set[str]:
        """Hashes of the programs that any plan or group needs."""
        return self.plans.programs() | self.regrouping.programs()

    def is_busy(self, model: str) -> bool:
        """Whether a request to the model is in flight, or a plan of it is being made."""
        return self.regrouping.is_busy(model) or self.plans.is_busy(model)

    async def settled(self) -> None:
        """Returns when no plan is being made."""
        while self.plans.is_busy():
            await self._stepped.wait()

    async def close(self) -> None:
        """Stops all work."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        works = list(self._works.values())
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ------------------------------------------------------------ events and actions

    def _step(self, event: Event, *machines: ControlMachine) -> None:
        """Passes an event to the machines in order, and executes their actions."""
        now = time.monotonic()
        with self._announcements.held():
            for machine in machines:
                for action in machine.step(event, now):
                    self._act(action)
                self._wake(machine)
        self._stepped.set()
        self._stepped.clear()

    def _wake(self, machine: ControlMachine) -> None:
        due_s = machine.due_s
        set_s, timer = self._timers.get(machine, (inf, None))
        if timer is not None and set_s != due_s:
            del self._timers[machine]
            timer.cancel()
        if machine not in self._timers and due_s < inf and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[machine] = due_s, loop.call_at(due_s, self._tick, machine)

    def _tick(self, machine: ControlMachine) -> None:
        del self._timers[machine]
        self._step(Tick(), machine)

    async def _wait(self, event: events.TicketEvent, machine: ControlMachine) -> TaskGraph:
        """Waits until the holder of the ticket may go on; gives the plan to use."""
        future: asyncio.Future[TaskGraph] = asyncio.get_running_loop().create_future()
        self._asked[event.ticket] = future
        try:
            self._step(event, machine)
            return await future
        finally:
            del self._asked[event.ticket]

    def _act(self, action: Action) -> None:
        match action:
            case actions.Start(ticket, graph):
                self._tell(ticket, graph)
            case actions.Refuse(ticket, error):
                self._tell(ticket, error)
            case actions.Make(work):
                self._works[work] = asyncio.create_task(self._make(action))
            case actions.Stop(work):
                self._works.pop(work).cancel()
            case actions.Swap():
                self._swapped(action)
            case actions.Regroup(model, groups, outstanding):
                log.info("groups", model=model, groups=groups, outstanding=round(outstanding, 1))

    def _tell(self, ticket: Ticket, told: TaskGraph | ImbrexError) -> None:
        future = self._asked[ticket]
        if future.done():
            return  # the waiting task was cancelled just now; the machine is about to hear of it
        if isinstance(told, ImbrexError):
            future.set_exception(told)
        else:
            future.set_result(told)

    def _swapped(self, swap: actions.Swap) -> None:
        plan, causes = swap.graph.plan, list(swap.causes)
        log.info(
            "plan",
            model=swap.model,
            version=plan.version,
            causes=causes,
            strategy=plan.strategy,
            wire=plan.wire,
            devices=len(plan.devices),
            blocks=len(plan.blocks),
            predicted_ms=round(plan.predicted_latency_s * 1e3, 1),
        )
        if swap.choice == IN_FORCE:
            self._announcements.announce(TookOver(swap.model, causes, swap.graph))

    async def _make(self, action: actions.Make) -> None:
        outcome = await self._outcome(action)
        del self._works[action.work]
        self._step(outcome, self.plans, self.regrouping)

    async def _outcome(self, action: actions.Make) -> events.WorkOutcome:
        try:
            match action:
                case actions.Propose():
                    return await self._maker.propose(action, self._devices.cluster())
                case actions.Divide():
                    return await self._maker.divide(action, self._devices.cluster())
                case actions.Prepare():
                    return await self._maker.prepare(action)
        except ImbrexError as refused:
            why = {"causes": list(action.causes)} if isinstance(action, actions.Propose) else {}
            log.warning(_TROUBLE[type(action)], model=action.model, **why, error=str(refused))
            return events.WorkFailed(action.work, refused, deserted=refused is NO_WORKER)
        except Exception as fault:
            log.exception("planning failed", model=action.model)
            cause = f"planning failed inside imbrex ({type(fault).__name__})"
            error = ImbrexError(cause=cause, cure="See the coordinator's log.")
            return events.WorkFailed(action.work, error)
        raise AssertionError(f"unknown action {action}")
