"""Every order of requests, works, devices that come and go, plans that are held and models that are
forgotten that Hypothesis can think of: whoever waits is told once, and nothing is left behind.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from math import ceil

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from coordinator.answers import IN_FORCE, PlanChoice
from coordinator.plans import grouping as grouping_module
from coordinator.plans.book import NO_WORKER, PlanBook
from coordinator.plans.entries import CONSIDERED, ModelPlan
from coordinator.plans.grouping import Regrouping
from coordinator.plans.steps import (
    Divide,
    Divided,
    Planned,
    PlanStep,
    Prepare,
    Prepared,
    Propose,
    Refuse,
    Start,
    Stop,
    Swap,
    Ticket,
    Unprepared,
    Work,
    WorkFailed,
    WorkOutcome,
)
from coordinator.requests.admission import AdmissionQueue
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError, LostWorker, Overloaded
from protos.wire.facts import DeviceId
from tests.plans.any_order import run_in_any_order
from tests.plans.support import LW, graph, grouping, plan

MODELS = st.sampled_from(["m", "n"])
GONE = LostWorker(cause="it is gone", cure="none")
IN_FLIGHT, QUEUE, MOST_WAIT_S = 3, 4, 500.0
Machine = AdmissionQueue | PlanBook | Regrouping


class AnyOrder(RuleBasedStateMachine):
    """Requests go on: a place, a plan, a turn, an answer. `asked` is whom each waits for."""

    def __init__(self) -> None:
        super().__init__()
        numbers = count(1)
        self.admission = AdmissionQueue(IN_FLIGHT, QUEUE, MOST_WAIT_S)
        self.plans = PlanBook(numbers)
        self.regrouping = Regrouping(self.plans, numbers, "auto")
        self.now = 0.0
        self.tickets = map(Ticket, count(1))
        self.model: dict[Ticket, str] = {}
        self.asked: dict[Ticket, Machine] = {}
        self.news: deque[Start | Refuse] = deque()
        self.places: set[Ticket] = set()
        self.alone: set[Ticket] = set()
        self.turns: set[Ticket] = set()
        self.works: dict[Work, Propose | Divide | Prepare] = {}
        self.of: dict[Work, tuple[object, ...]] = {}
        self.held: dict[str, TaskGraph] = {}
        self.devices = frozenset(map(DeviceId, "abc"))
        self.step(self.regrouping, self.regrouping.devices_changed(self.devices))

    # ------------------------------------------------------------ what the machines say

    def step(self, machine: Machine, actions: list[PlanStep]) -> None:
        self.take(machine, actions)
        self.tell()

    def tell(self) -> None:
        while self.news:
            self.told(self.news.popleft())

    def take(self, machine: Machine, actions: list[PlanStep]) -> None:
        """Whoever is told something goes on after this."""
        for action in actions:
            self.act(action, machine)

    def act(self, action: PlanStep, machine: Machine) -> None:
        match action:
            case Start(ticket) | Refuse(ticket):
                assert self.asked.pop(ticket) is machine, "told without having asked"
                self.news.append(action)
            case Propose(work, model, choice):
                assert self.works.setdefault(work, action) is action
                self.of[work] = (model, choice)
            case Divide(work, model):
                self.works[work] = action
                self.of[work] = (model,)
            case Prepare(work, model):
                assert work not in self.works
                self.works[work] = action
                self.of.setdefault(work, (model,))
            case Stop(work):
                del self.works[work]
            case Swap(model, choice, made):
                assert choice != IN_FORCE or model not in self.held, "a held plan was replaced"
                assert self.plans.graph(model, choice) in (made, None)

    def told(self, action: Start | Refuse) -> None:
        ticket = action.ticket
        match action:
            case Refuse():
                self.end(ticket)
            case Start(graph=None):
                self.places.add(ticket)
                if ticket not in self.alone:
                    assert not self.alone & self.places
                    self.ask(ticket, self.model[ticket], IN_FORCE)
                else:
                    assert self.places == {ticket}
            case Start() if ticket in self.turns:
                group = self.regrouping._line_of[ticket].started[ticket]
                service = group.service
                assert group.in_flight <= ceil(service.latency_s / service.period_s) + 1
            case Start(_, made) if ticket in self.places:
                self.turns.add(ticket)
                self.asked[ticket] = self.regrouping
                actions = self.regrouping.queue(ticket, self.model[ticket], made, self.now)
                self.step(self.regrouping, actions)

    def admit(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self.act(Start(ticket, None), self.admission)
        self.tell()

    def ask(self, ticket: Ticket, model: str, choice: PlanChoice) -> None:
        self.asked[ticket] = self.plans
        try:
            self.step(self.plans, self.plans.ask(ticket, model, choice, self.now))
        except ImbrexError:
            del self.asked[ticket]
            raise

    def end(self, ticket: Ticket) -> None:
        """As whoever has the ticket leaves what it has entered, innermost first."""
        self.asked.pop(ticket, None)
        self.turns.discard(ticket)
        was_in = ticket in self.places
        self.places.discard(ticket)
        self.take(self.regrouping, self.regrouping.leave(ticket, self.now))
        self.plans.leave(ticket)
        self.admit(self.admission.leave(ticket, self.now, answered=was_in))
        self.model.pop(ticket, None)

    # ------------------------------------------------------------ requests

    @rule(model=MODELS, alone=st.sampled_from([False, False, False, True]))
    def arrive(self, model: str, alone: bool) -> None:
        ticket = next(self.tickets)
        self.model[ticket] = model
        if alone:
            self.alone.add(ticket)
        self.asked[ticket] = self.admission
        try:
            self.admit(self.admission.arrive(ticket, self.now, alone=alone))
        except Overloaded:
            del self.asked[ticket], self.model[ticket]

    @rule(model=MODELS)
    def crowd(self, model: str) -> None:
        """So many of one model for so long that groups may be worth it."""
        for _ in range(IN_FLIGHT):
            self.arrive(model, alone=False)
            self.wait(0.3)

    @rule(model=MODELS)
    def choose(self, model: str) -> None:
        """Who only wants to see a plan needs no place."""
        self.ask(next(self.tickets), model, LW)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Answered, or not waiting any longer."""
        self.end(data.draw(st.sampled_from(sorted(self.model))))

    # ------------------------------------------------------------ works

    @precondition(lambda self: self.works)
    @rule(data=st.data(), how=st.sampled_from(["well", "well", "well", "not", "deserted"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        work = data.draw(st.sampled_from(sorted(self.works)))
        names = data.draw(st.sampled_from(["a", "ab", "abc", "bc"]))
        self.outcome(work, how, names)

    def outcome(self, work: Work, how: str, names: str) -> None:
        action = self.works.pop(work)
        outcome: WorkOutcome
        match action:
            case Propose() if how == "deserted":
                outcome = WorkFailed(work, NO_WORKER, deserted=True)
            case Propose() if how == "well":
                outcome = Planned(work, plan(names), 2.0 if action.old else None)
            case Divide() if how == "well":
                halves = grouping("a", "bc", latency_s=1.3, period_s=1.1)
                outcome = Divided(work, {1: grouping(names, latency_s=1.0), 2: halves})
            case Prepare(_, _, wanted) if how == "well":
                outcome = Prepared(work, tuple(map(graph, wanted)))
            case Prepare():
                outcome = Unprepared(work, {DeviceId("a"): GONE})
            case _:
                outcome = WorkFailed(work, GONE)
        self.take(self.plans, self.plans.ended(outcome, self.now))
        self.step(self.regrouping, self.regrouping.ended(outcome, self.now))

    @rule(seconds=st.sampled_from([0.1, 0.3, 5.0, 100.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for ticket in [each for each, where in self.asked.items() if where is self.admission]:
            until_s = self.admission.waits_until_s(ticket)
            assert until_s is not None
            if until_s <= self.now:
                self.act(Refuse(ticket, self.admission.expire(ticket, self.now)), self.admission)
        self.tell()
        self.step(self.plans, self.plans.tick(self.now))

    # ------------------------------------------------------------ what happens to plans

    @rule(devices=st.sets(st.sampled_from("abc")), cause=st.sampled_from(["joined", *CONSIDERED]))
    def change(self, devices: set[str], cause: str) -> None:
        self.devices = frozenset(map(DeviceId, devices))
        self.plans.devices_changed(self.devices, cause, self.now)
        self.step(self.regrouping, self.regrouping.devices_changed(self.devices))

    @rule(model=MODELS)
    def hold(self, model: str) -> None:
        self.held[model] = made = graph("bc")
        self.take(self.plans, self.plans.hold(model, made, self.now))
        self.step(self.regrouping, self.regrouping.hold(model, made))

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        model, _ = self.held.popitem()
        self.plans.release(model, self.now)

    @rule(model=MODELS)
    def forget(self, model: str) -> None:
        self.held.pop(model, None)
        self.take(self.plans, self.plans.forget(model, self.now))
        self.take(self.regrouping, self.regrouping.forget(model))
        assert not self.plans.knows(model, IN_FORCE)
        assert not self.plans.knows(model, LW)
        assert not self.plans.programs_of(model) | self.regrouping.programs(model)
        assert not [work for work in self.works if self.of[work][0] == model], "works go on"
        waits = [each for each, where in self.asked.items() if where is self.plans]
        assert not [each for each in waits if self.model.get(each) == model], "somebody waits"
        self.tell()

    # ------------------------------------------------------------ what must hold

    @invariant()
    def one_work_at_a_time(self) -> None:
        for_whom = [self.of[work] for work in self.works]
        assert len(for_whom) == len(set(for_whom))

    @invariant()
    def a_held_plan_is_in_force(self) -> None:
        for model, made in self.held.items():
            assert self.plans.graph(model) is made

    @invariant()
    def a_held_plan_is_not_divided(self) -> None:
        for model in self.held:
            assert self.regrouping.status(model, self.now).groups == 1
            assert not [work for work in self.works if self.of[work] == (model,)]

    @invariant()
    def places_are_counted(self) -> None:
        assert len(self.admission.running) == len(self.places) <= IN_FLIGHT
        waits = [each for each, where in self.asked.items() if where is self.admission]
        assert self.admission.waiting == len(waits)
        assert len(set(waits) - self.alone) <= QUEUE

    @invariant()
    def whoever_waits_for_a_plan_will_be_told(self) -> None:
        if any(where is self.plans for where in self.asked.values()):
            assert self.plans.is_busy()
            assert self.plans.due_s <= self.now + 301

    def teardown(self) -> None:
        """Once nothing more goes wrong, everybody is answered, and nobody is left anywhere."""
        for _ in range(200):
            for work in sorted(self.works):
                if work in self.works:
                    self.outcome(work, "well", "bc")
            for ticket in sorted(self.places - self.asked.keys()):
                if ticket in self.model:
                    self.end(ticket)
            if not (self.asked or self.places or self.works or self.plans.is_busy()):
                break
            self.wait(0.3)
        assert not self.asked, "somebody waits for ever"
        assert not self.places
        assert not self.works
        assert self.regrouping._line_of == {}
        assert not any(self.regrouping.is_busy(model) for model in "mn")


AnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


# ---------------------------------------------------------------- it can fail


def goes_on_making(entry: ModelPlan) -> Iterator[PlanStep]:
    """A plan that is held, or a model that is forgotten, does not stop what is being made."""
    entry.causes.clear()
    entry.making = None
    return iter(())


def begins_another(entry: ModelPlan, cause: str, now: float) -> None:
    """A cause begins another plan at once, whatever is being made."""
    if not entry.held:
        entry.causes.setdefault(cause)
        entry.begins_s = now


def tells_nobody(entry: ModelPlan, now: float) -> Iterator[PlanStep]:
    """Who waits is forgotten when a plan is there."""
    entry.making = None
    return iter(())


def takes_what_is_late(plans: PlanBook, model: str, made: TaskGraph, now: float) -> list[PlanStep]:
    """A plan that was made before another was held takes over."""
    for entry in plans._entries.values():
        if entry.model == model:
            entry.held, entry.graph = True, graph("a")
            return []
    return HOLD(plans, model, made, now)


def goes_on_in_groups(state: Regrouping, model: str, made: TaskGraph) -> list[PlanStep]:
    """A plan that is held leaves groups, and what is made for them, as they are."""
    return []


def starts_everybody(groups, waiting: int):
    """Groups take whoever comes."""
    return [(position, groups[0]) for position in range(waiting)]


def keeps_its_turn(line: grouping_module.ModelLine, ticket: Ticket) -> bool:
    """Who is answered still counts as on its way."""
    line.waiting.pop(ticket, None)
    return line.started.pop(ticket, None) is not None


def never_alone(state: AdmissionQueue, now: float) -> list[Ticket]:
    """Who wants to be alone is let in beside others."""
    admitted = list(state._waiting)[: IN_FLIGHT - len(state.running)]
    for ticket in admitted:
        del state._waiting[ticket]
        state._running[ticket] = 1
    return admitted


HOLD = PlanBook.hold
FAULTS: list[tuple[object, str, Callable[..., object]]] = [
    (ModelPlan, "stopped", goes_on_making),
    (ModelPlan, "want", begins_another),
    (ModelPlan, "ended", tells_nobody),
    (PlanBook, "hold", takes_what_is_late),
    (Regrouping, "hold", goes_on_in_groups),
    (grouping_module, "starts", starts_everybody),
    (AdmissionQueue, "_let_in", never_alone),
    (grouping_module.ModelLine, "leave", keeps_its_turn),
]


@pytest.mark.parametrize(("where", "what", "fault"), FAULTS, ids=[each[1] for each in FAULTS])
def test_a_fault_is_noticed(
    where: object, what: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, fault)
    with pytest.raises(AssertionError):
        run_in_any_order(AnyOrder)
