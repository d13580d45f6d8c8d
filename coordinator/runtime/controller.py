"""What the machines of `control` decide is done here: work in the background, turns for requests.

This is where the clock is read and tasks are started; everything else is told to the machines as
events, and done as they say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from math import inf

import structlog

from coordinator.control.admission import Admission
from coordinator.control.choice import IN_FORCE, Choice
from coordinator.control.events import (
    Action,
    Admit,
    Arrived,
    Changed,
    Divide,
    Divided,
    Event,
    Failed,
    Forgotten,
    Held,
    Kept,
    Left,
    Planned,
    Prepare,
    Prepared,
    Propose,
    Queued,
    Refuse,
    Regroup,
    Released,
    Start,
    Stop,
    Swap,
    Tick,
    Ticket,
    Took,
    Unprepared,
    Wanted,
    Work,
)
from coordinator.control.given import plan_id
from coordinator.control.modes import Modes
from coordinator.control.plans import NO_WORKER, Plans
from coordinator.costs.devices import Cluster
from coordinator.runtime.making import Maker
from coordinator.settings import CoordinatorSettings
from coordinator.tasks.graph import TaskGraph
from coordinator.tasks.plan import DeviceId, Plan
from protos.errors import ImbrexError, Unavailable

log = structlog.get_logger(__name__)

_TROUBLE = {
    Propose: "no plan",
    Divide: "groups cannot be planned",
    Prepare: "plans cannot be prepared",
}

Machine = Admission | Plans | Modes
Outcome = Planned | Divided | Prepared | Unprepared | Failed


class Controller:
    """Admission, plans and turns of one coordinator. `planned(model, version, causes)` is told when
    a plan took over.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        maker: Maker,
        cluster: Callable[[], Cluster],
        planned: Callable[[str, int, Sequence[str]], None],
    ) -> None:
        self._maker = maker
        self._cluster = cluster
        self._planned = planned
        numbers = count(1)
        self.admission = Admission(settings.max_in_flight, settings.max_queue, settings.max_wait_s)
        self.plans = Plans(numbers)
        self.modes = Modes(self.plans, numbers, settings.objective)
        self._tickets = map(Ticket, count(1))
        self._told: dict[Ticket, asyncio.Future[TaskGraph | None]] = {}
        self._works: dict[Work, asyncio.Task[None]] = {}
        self._timers: dict[Machine, asyncio.TimerHandle] = {}
        self._stepped, self._idle = asyncio.Event(), asyncio.Event()
        self._closed = False

    # ------------------------------------------------------------ requests

    @asynccontextmanager
    async def place(self, *, alone: bool = False) -> AsyncIterator[None]:
        """Around each request; `alone`: nothing else is computed meanwhile.

        Raises:
            Overloaded: it would wait for too long.
        """
        ticket, answered = next(self._tickets), False
        try:
            await self._wait(Arrived(ticket, alone), self.admission)
            yield
            answered = True
        finally:
            self._step(Left(ticket, answered), self.admission)
            if not self.admission.running:
                # Who waits for this moment has it, even if the next request is here already.
                self._idle.set()
                self._idle.clear()

    @asynccontextmanager
    async def turn(self, model: str, choice: Choice = IN_FORCE) -> AsyncIterator[TaskGraph]:
        """Waits until the request may start; the plan to execute.

        Raises:
            NotFound, Unavailable, Infeasible: as `current`.
        """
        graph = await self.current(model, choice)
        if choice != IN_FORCE:
            yield graph
            return
        ticket = next(self._tickets)
        try:
            yield await self._started(Queued(ticket, model, graph), self.modes)
        finally:
            self._step(Left(ticket), self.modes)

    async def current(self, model: str, choice: Choice = IN_FORCE) -> TaskGraph:
        """The plan in force, or the one that is chosen; waits for the first one.

        Raises:
            NotFound: no such strategy, or no such plan was sent.
            Unavailable: no worker is ready, or no plan in time.
            Infeasible: no plan fits the devices.
        """
        graph = self.plans.graph(model) if choice == IN_FORCE else None
        if graph is not None:
            return graph
        if not self.plans.knows(model, choice):
            self._maker.planner(choice.strategy)  # a wrong name leaves nothing behind
        ticket = next(self._tickets)
        try:
            graph = await self._started(Wanted(ticket, model, choice), self.plans)
        finally:
            self._step(Left(ticket), self.plans)
        if choice.plan:
            _require_devices(graph.plan, self._cluster())
        return graph

    async def idle(self) -> None:
        """Returns when no request is being computed."""
        if self.admission.running:
            await self._idle.wait()

    # ------------------------------------------------------------ plans

    def changed(self, cause: str, model: str = "") -> None:
        """Devices are others, or not as they were: plans again for a model (or every one) that is
        loaded, in the background.
        """
        devices = frozenset(device.id for device in self._cluster().devices)
        self._step(Changed(cause, devices, model), self.plans, self.modes)

    async def hold(self, model: str, plan: Plan) -> TaskGraph:
        """Puts a checked plan in force, prepared, until `release`."""
        graph = await self._prepared(model, plan)
        self._step(Held(model, graph), self.plans)
        return graph

    def release(self, model: str) -> None:
        """Plans by itself again, where a plan is held."""
        self._step(Released(model), self.plans)

    async def keep(self, model: str, plan: Plan) -> TaskGraph:
        """Prepares a checked plan for requests that choose it by its `plan_id`."""
        choice = Choice(plan=plan_id(plan))
        graph = self.plans.graph(model, choice) or await self._prepared(model, plan)
        self._step(Kept(model, choice, graph), self.plans)
        return graph

    def forget(self, model: str) -> set[str]:
        """Forgets a model's plans and groups; the programs that they had. Requests in flight finish
        on theirs.
        """
        programs = self.plans.programs_of(model) | self.modes.programs(model)
        self._step(Forgotten(model), self.plans, self.modes)
        return programs

    def programs(self) -> set[str]:
        """Hashes of the programs that any plan or group needs."""
        return self.plans.programs() | self.modes.programs()

    def is_busy(self, model: str) -> bool:
        """Whether a request to the model is on its way, or a plan of it is being made."""
        return self.modes.is_busy(model) or self.plans.is_busy(model)

    async def settled(self) -> None:
        """Returns when no plan is being made."""
        while self.plans.is_busy():
            await self._stepped.wait()

    async def close(self) -> None:
        """Stops all work."""
        self._closed, works = True, list(self._works.values())
        for handle in self._timers.values():
            handle.cancel()
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ------------------------------------------------------------ events and actions

    async def _started(self, event: Wanted | Queued, machine: Machine) -> TaskGraph:
        graph = await self._wait(event, machine)
        assert graph is not None, "who wants a plan is told one"
        return graph

    async def _wait(self, event: Arrived | Wanted | Queued, machine: Machine) -> TaskGraph | None:
        """Until whoever has the ticket may go on."""
        future: asyncio.Future[TaskGraph | None] = asyncio.get_running_loop().create_future()
        self._told[event.ticket] = future
        try:
            self._step(event, machine)
            return await future
        finally:
            del self._told[event.ticket]

    def _step(self, event: Event, *machines: Machine) -> None:
        now = time.monotonic()
        for machine in machines:
            for action in machine.step(event, now):
                self._act(action)
            if not isinstance(machine, Modes):
                self._wake(machine)
        self._stepped.set()
        self._stepped.clear()

    def _wake(self, machine: Admission | Plans) -> None:
        """When something is to happen by itself."""
        timer, due_s = self._timers.get(machine), machine.due_s
        if timer is not None and timer.when() != due_s:
            self._timers.pop(machine).cancel()
        if machine not in self._timers and due_s < inf and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[machine] = loop.call_at(due_s, self._tick, machine)

    def _tick(self, machine: Machine) -> None:
        self._timers.pop(machine, None)
        self._step(Tick(), machine)

    def _act(self, action: Action) -> None:
        match action:
            case Admit(ticket):
                self._tell(ticket, None)
            case Start(ticket, graph):
                self._tell(ticket, graph)
            case Refuse(ticket, error):
                self._tell(ticket, error)
            case Propose(work) | Divide(work) | Prepare(work):
                self._works[work] = asyncio.create_task(self._work(action))
            case Stop(work):
                self._works.pop(work).cancel()
            case Swap():
                self._swapped(action)
            case Regroup(model, groups, outstanding):
                log.info("groups", model=model, groups=groups, outstanding=round(outstanding, 1))

    def _tell(self, ticket: Ticket, told: TaskGraph | ImbrexError | None) -> None:
        future = self._told.get(ticket)
        if future is None or future.done():
            return  # it was given up just now, which the machine is about to hear
        if isinstance(told, ImbrexError):
            future.set_exception(told)
        else:
            future.set_result(told)

    def _swapped(self, swap: Swap) -> None:
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
        if swap.choice == IN_FORCE:
            self._planned(swap.model, plan.version, swap.causes)

    # ------------------------------------------------------------ work

    async def _work(self, action: Propose | Divide | Prepare) -> None:
        outcome = await self._outcome(action)
        del self._works[action.work]
        self._step(outcome, self.plans, self.modes)

    async def _outcome(self, action: Propose | Divide | Prepare) -> Outcome:
        error: ImbrexError
        try:
            match action:
                case Propose():
                    return await self._proposed(action)
                case Divide():
                    return await self._maker.divide(action, self._cluster())
                case Prepare():
                    return await self._all_prepared(action)
        except ImbrexError as refused:
            log.warning(_TROUBLE[type(action)], model=action.model, error=str(refused))
            error = refused
        except Exception as fault:
            log.exception("planning failed", model=action.model)
            error = _fault(fault)
        return Failed(action.work, error)

    async def _proposed(self, action: Propose) -> Planned | Failed:
        cluster = self._cluster()
        if cluster.devices:
            return await self._maker.propose(action, cluster)
        log.warning("no plan", model=action.model, causes=list(action.causes), error=str(NO_WORKER))
        return Failed(action.work, NO_WORKER, deserted=True)

    async def _all_prepared(self, action: Prepare) -> Prepared | Unprepared:
        graphs = []
        for plan in action.plans:
            graph, errors = await self._prepare(action.model, plan)
            for device, error in errors.items():
                log.warning("device left out", model=action.model, device=device, cause=error.cause)
            if errors:
                return Unprepared(action.work, errors)
            graphs.append(graph)
        return Prepared(action.work, tuple(graphs))

    async def _prepared(self, model: str, plan: Plan) -> TaskGraph:
        """Raises the first error of a device that cannot be prepared."""
        graph, errors = await self._prepare(model, plan)
        for error in errors.values():
            raise error
        return graph

    async def _prepare(
        self, model: str, plan: Plan
    ) -> tuple[TaskGraph, dict[DeviceId, ImbrexError]]:
        graph, errors, took_s = await self._maker.prepare(model, plan)
        self._step(Took(took_s), self.plans)
        return graph, errors


def _require_devices(plan: Plan, cluster: Cluster) -> None:
    present = {device.id for device in cluster.devices}
    gone = [device for device in plan.devices if device not in present]
    if gone:
        raise Unavailable(
            cause=f"the chosen plan needs {', '.join(gone)}, which is not ready",
            cure="Wait until it is back, or make another plan.",
        )


def _fault(error: Exception) -> ImbrexError:
    return ImbrexError(
        cause=f"planning failed inside imbrex ({type(error).__name__})",
        cure="See the coordinator's log.",
    )
