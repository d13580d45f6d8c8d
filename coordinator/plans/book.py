"""The plans of every model: pure state, whose methods are what happens. They return what to do.

Every model has a plan in force. It is replaced when devices come or go, after measurements, and
periodically if requests have shown something new, unless it is held. Beside it are the plans that
requests chose: by a strategy or a number of devices (made again at the next use after devices or
measurements changed), or sent by a client (never made again).

The life of an entry:

    idle --(a cause)--> settling --(SETTLE_S)--> proposing --(better)--> preparing --> idle
                                                   |  ^                   |
        idle <--(the old plan goes on, or none)----+  +--(not everywhere)-+

Rules:

* One plan at a time is made for an entry; causes that arrive meanwhile lead to another one.
* A plan takes over when its programs are ready on every device. If a device can't be prepared, a
  plan is made without it; the next planning includes it again.
* If no better plan is found, the old one stays: the tasks of lost devices run elsewhere. Only
  without any device, or without the memory for the weights of a lost one, is there no plan.
* Whoever waits for a plan gets the first one, or the error once nothing is being made, or a
  timeout. A lack of memory stays until devices or measurements change, or the period has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from math import inf
from typing import ParamSpec

from coordinator.answers import IN_FORCE, PlanChoice
from coordinator.costs.corrections import Observed
from coordinator.plans.entries import CONSIDERED, DRIFT, PERIOD, Making, ModelPlan, are_alike
from coordinator.plans.steps import (
    Planned,
    PlanStep,
    Prepare,
    Prepared,
    Propose,
    Refuse,
    Start,
    Swap,
    Ticket,
    Unprepared,
    Work,
    WorkFailed,
    WorkOutcome,
)
from coordinator.plans.switching import Switching
from coordinator.tasks.plan import MadeFor, Plan
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError, NotFound, TooLittleMemory, Unavailable
from protos.wire.facts import DeviceId

# Chosen plans that are kept with their graphs: enough to benchmark every strategy over 1 to 7
# devices.
MOST_CHOSEN = 64
# How long a request waits for its model's first plan, including the transfer of weights.
FIRST_PLAN_S = 300.0

NO_WORKER = Unavailable(
    cause="no worker is ready",
    cure="Start one with `imbrex worker` on a device of this network, or see `imbrex status`.",
)

_Given = ParamSpec("_Given")


def completed(method: Callable[_Given, Iterator[PlanStep]]) -> Callable[_Given, list[PlanStep]]:
    """Has a method complete its change before anybody sees the steps that it yields."""

    @wraps(method)
    def at_once(*args: _Given.args, **kwargs: _Given.kwargs) -> list[PlanStep]:
        return list(method(*args, **kwargs))

    return at_once


class PlanBook:
    """One plan in force per model, and the latest chosen ones. `works` numbers background work.
    Every `period_s` (0: never), and when observations have drifted, another plan is looked for.
    """

    def __init__(self, works: Iterator[int], period_s: float = 0.0) -> None:
        self._works = works
        self._period_s = period_s
        self._look_s = inf
        self._entries: dict[tuple[str, PlanChoice], ModelPlan] = {}
        self._devices: frozenset[DeviceId] = frozenset()
        self.switching = Switching()

    # ------------------------------------------------------------ what is known

    def graph(self, model: str, choice: PlanChoice = IN_FORCE) -> TaskGraph | None:
        """The plan in force or chosen, unless it has to be made again."""
        entry = self._entries.get((model, choice))
        return entry.graph if entry and not entry.stale else None

    def made_for(self, model: str, choice: PlanChoice = IN_FORCE) -> tuple[MadeFor, ...]:
        """The devices that this plan was made for, or last found good enough for."""
        entry = self._entries.get((model, choice))
        return entry.made_for if entry else ()

    def in_force(self) -> list[TaskGraph]:
        """The plans in force of all models."""
        entries = self._entries.values()
        return [entry.graph for entry in entries if entry.choice == IN_FORCE and entry.graph]

    def knows(self, model: str, choice: PlanChoice) -> bool:
        """Whether such a plan was requested before, or sent."""
        return (model, choice) in self._entries

    def held(self, model: str) -> bool:
        """Whether the plan in force was sent by a client and is held."""
        entry = self._entries.get((model, IN_FORCE))
        return entry is not None and entry.held

    def state(self, model: str) -> str:
        """For people: ready, planning, or the error."""
        entry = self._entries.get((model, IN_FORCE))
        if entry is None:
            return "not loaded"
        if entry.graph is not None:
            return "ready"
        return str(entry.error) if entry.error else "planning"

    def programs(self) -> set[str]:
        """Hashes of the programs that any plan needs."""
        graphs = (entry.graph for entry in self._entries.values())
        return {sha256 for graph in graphs if graph is not None for sha256 in graph.programs}

    def programs_of(self, model: str) -> set[str]:
        """Hashes of the programs that a model's plans need or needed until recently."""
        programs: set[str] = set()
        for entry in self._entries.values():
            if entry.model == model:
                programs |= entry.left.keys() | (entry.graph.programs.keys() if entry.graph else ())
        return programs

    def is_busy(self, model: str = "") -> bool:
        """Whether a plan of a model, or of any, is being made."""
        entries = self._entries.values()
        return any(entry.busy for entry in entries if not model or entry.model == model)

    @property
    def due_s(self) -> float:
        """When the next plan begins, or a wait times out."""
        return min((self._look_s, *(entry.due_s for entry in self._entries.values())))

    # ------------------------------------------------------------ what happens

    @completed
    def ask(self, ticket: Ticket, model: str, choice: PlanChoice, now: float) -> Iterator[PlanStep]:
        """Somebody wants a plan of a model.

        Raises:
            NotFound: no such plan was sent.
            Unavailable: its devices are away, or too many plans are being made.
        """
        if not self.knows(model, choice):
            if choice.plan:
                raise NotFound(
                    cause=f"no plan {choice.plan!r} of this model is kept here",
                    cure="Send it (again): POST /v1/plans/MODEL",
                )
            if choice != IN_FORCE:
                self._make_room()
            self._entries[model, choice] = ModelPlan(model, choice)
        entry = self._entries[model, choice]
        self._touch(entry)
        if entry.stale:
            entry.put(None)
            entry.stale = False
            entry.want("devices or measurements changed", now)
        if entry.graph is not None:
            self._require_devices(choice, entry.graph.plan)
            yield Start(ticket, entry.graph)
            return
        if isinstance(entry.error, TooLittleMemory) and not entry.busy:
            yield Refuse(ticket, entry.error)
            return
        entry.waiting[ticket] = now + FIRST_PLAN_S
        if not entry.busy:
            entry.want("asked for" if entry.error else "first use", now)

    def leave(self, ticket: Ticket) -> None:
        """The holder of this ticket was answered, refused, or does not wait any longer."""
        for entry in self._entries.values():
            entry.waiting.pop(ticket, None)

    @completed
    def tick(self, now: float) -> Iterator[PlanStep]:
        """Time has passed."""
        if self._look_s <= now:
            self._period_has_passed(now)
        for entry in self._entries.values():
            yield from self._tick(entry, now)

    def devices_changed(
        self, devices: frozenset[DeviceId], cause: str, now: float, model: str = ""
    ) -> None:
        """A reason to plan again, for one model or (empty) for all. `devices` are those that can be
        used now.
        """
        self._devices = devices
        self._change(cause, model, now)

    def answered(self, model: str, observed: Mapping[str, Observed], now: float) -> None:
        """Devices and links were this fast when a request to a model was answered."""
        if self._period_s and self.switching.is_due(model, observed, now):
            self._change(DRIFT, model, now)

    @completed
    def hold(self, model: str, graph: TaskGraph, now: float) -> Iterator[PlanStep]:
        """Somebody sent a plan, which is prepared: it stays in force until `release`."""
        entry = self._entries.setdefault((model, IN_FORCE), ModelPlan(model, IN_FORCE))
        yield from entry.stopped()
        entry.held = True
        entry.put(graph)
        yield from entry.ended(now)

    def release(self, model: str, now: float) -> None:
        """The plan that was held may be replaced again."""
        entry = self._entries[model, IN_FORCE]
        entry.held = False
        entry.want("released", now)

    def keep(self, model: str, choice: PlanChoice, graph: TaskGraph) -> None:
        """Somebody sent a plan for requests to choose, which is prepared.

        Raises:
            Unavailable: too many plans are being made.
        """
        if not self.knows(model, choice):
            self._make_room()
            self._entries[model, choice] = ModelPlan(model, choice)
            self._entries[model, choice].put(graph)
        self._touch(self._entries[model, choice])

    @completed
    def forget(self, model: str, now: float) -> Iterator[PlanStep]:
        """The model was replaced or unloaded."""
        self.switching.forget(model)
        for key in [key for key in self._entries if key[0] == model]:
            entry = self._entries.pop(key)
            yield from entry.stopped()
            gone = Unavailable(cause=f"{model} was unloaded", cure="Load it, and ask again")
            entry.put(None, gone)
            yield from entry.ended(now)

    @completed
    def ended(self, outcome: WorkOutcome, now: float) -> Iterator[PlanStep]:
        """A work ended, for an entry or for groups."""
        makings = [
            (entry, entry.making)
            for entry in self._entries.values()
            if entry.making is not None and entry.making.work == outcome.work
        ]
        if isinstance(outcome, Prepared) and all(_has_weights(*pair) for pair in makings):
            self.switching.prepared(outcome.seconds)
        for entry, making in makings:
            yield from self._made(entry, making, outcome, now)

    # ------------------------------------------------------------ how an entry goes on

    def _change(self, cause: str, model: str, now: float) -> None:
        if self._period_s and self._look_s == inf:
            self._look_s = now + self._period_s
        for entry in self._entries.values():
            if not model or entry.model == model:
                entry.change(cause, now)

    def _period_has_passed(self, now: float) -> None:
        self._look_s = now + self._period_s
        for (model, choice), entry in self._entries.items():
            if choice != IN_FORCE:
                continue
            if not entry.is_settled or self.switching.is_worth_a_look(model, now):
                entry.want(PERIOD, now)

    def _tick(self, entry: ModelPlan, now: float) -> Iterator[PlanStep]:
        if entry.begins_s <= now:
            entry.making = Making(Work(next(self._works)), tuple(entry.causes))
            entry.causes.clear()
            entry.begins_s = inf
            yield self._propose(entry, entry.making)
        for ticket in [ticket for ticket, until_s in entry.waiting.items() if until_s <= now]:
            del entry.waiting[ticket]
            late = Unavailable(
                cause=f"no plan for {entry.model} within {FIRST_PLAN_S:.0f} s",
                cure="See the coordinator's log.",
            )
            yield Refuse(ticket, late)

    def _made(
        self, entry: ModelPlan, making: Making, outcome: WorkOutcome, now: float
    ) -> Iterator[PlanStep]:
        match outcome:
            case Planned(work, plan, old_s):
                if self._is_better(entry, plan, old_s):
                    yield Prepare(work, entry.model, (plan,))
                    return
                entry.error, entry.is_settled = None, not making.without
                entry.made_for = plan.made_for
            case Unprepared(_, errors):
                making.without |= errors
                yield self._propose(entry, making)
                return
            case Prepared(_, (graph,)):
                entry.put(graph)
                entry.is_settled = not making.without
                yield Swap(entry.model, entry.choice, graph, making.causes)
            case WorkFailed(_, error, deserted):
                goes_on = not deserted and self._goes_on(entry, error)
                entry.put(entry.graph if goes_on else None, error)
        yield from entry.ended(now)

    def _propose(self, entry: ModelPlan, making: Making) -> Propose:
        considered = set(making.causes) <= set(CONSIDERED)
        old = entry.graph.plan if entry.graph and considered else None
        without = dict(making.without)
        return Propose(making.work, entry.model, entry.choice, making.causes, without, old)

    def _is_better(self, entry: ModelPlan, new: Plan, old_s: float | None) -> bool:
        """Whether to switch: never to the same plan, always if the old one cannot go on or
        measurements were new, otherwise only if the gain at present costs is worth it.
        """
        if entry.graph is None:
            return True
        if are_alike(new, entry.graph.plan):
            return False
        return old_s is None or self.switching.accepts(entry.model, old_s, new.predicted_latency_s)

    def _goes_on(self, entry: ModelPlan, error: ImbrexError) -> bool:
        """Whether the old plan stays: not if devices are gone whose weights the others have no
        memory for.
        """
        lost = entry.graph is not None and not self._devices.issuperset(entry.graph.plan.devices)
        return not (lost and isinstance(error, TooLittleMemory))

    def _require_devices(self, choice: PlanChoice, plan: Plan) -> None:
        gone = [device for device in plan.devices if device not in self._devices]
        if choice.plan and gone:
            raise Unavailable(
                cause=f"the chosen plan needs {', '.join(gone)}, which is not ready",
                cure="Wait until it is back, or make another plan.",
            )

    def _touch(self, entry: ModelPlan) -> None:
        """Makes an entry the last to be dropped."""
        key = (entry.model, entry.choice)
        self._entries[key] = self._entries.pop(key)

    def _make_room(self) -> None:
        """Drops the chosen plan that has been unused for the longest time."""
        chosen = [key for key in self._entries if key[1] != IN_FORCE]
        if len(chosen) < MOST_CHOSEN:
            return
        idle = next((key for key in chosen if not self._entries[key].busy), None)
        if idle is None:
            raise Unavailable(
                cause=f"{len(chosen)} plans are already being made", cure="Try again in a moment."
            )
        del self._entries[idle]


def _has_weights(entry: ModelPlan, making: Making) -> bool:
    """Whether devices have most weights of a plan that was prepared: it replaces another one on the
    same devices. The first time that weights are sent says nothing of other times.
    """
    return entry.graph is not None and set(making.causes) <= set(CONSIDERED)
