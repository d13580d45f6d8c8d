"""Which plans are made, take over and go: what happens, and exactly what is to be done."""

from dataclasses import replace
from itertools import count
from math import inf, log

import pytest

from coordinator.costs.observed import Observed
from coordinator.plans import plans as module
from coordinator.plans.actions import Prepare, Propose, Refuse, Start, Stop, Swap
from coordinator.plans.choice import IN_FORCE, Choice
from coordinator.plans.entries import DRIFT, MOST_LEFT, PERIOD, SETTLE_S
from coordinator.plans.events import (
    AnswerSeen,
    Changed,
    Forgotten,
    Held,
    Left,
    PlanKept,
    Planned,
    PlanReleased,
    PlanRequested,
    Prepared,
    Tick,
    Ticket,
    Unprepared,
    Work,
    WorkFailed,
)
from coordinator.plans.plans import FIRST_PLAN_S, NO_WORKER, Plans
from coordinator.plans.switching import HEARD_S, WORTH_A_LOOK
from coordinator.tasks.plan import MadeFor
from protos.errors import Infeasible, LostWorker, NotFound, TooLittleMemory, Unavailable
from protos.wire.facts import DeviceId
from tests.plans.support import ALL, LW, M, changed, graph, in_force, plan, plans, steps

ONE, TWO = Ticket(1), Ticket(2)
W1, W2, W3 = Work(1), Work(2), Work(3)
AB, CD = graph("ab"), graph("cd")
FULL = LostWorker(cause="its disk is full", cure="Make room")
NO_PLAN = Infeasible(cause="it fits nowhere", cure="Add a device")
TOO_LITTLE = TooLittleMemory(cause="at least 90 MB are missing", cure="Add a device")


def test_the_first_plan_from_the_first_request_to_its_start() -> None:
    state = plans()
    assert state.step(PlanRequested(ONE, M, IN_FORCE), 5.0) == []
    assert state.step(PlanRequested(TWO, M, IN_FORCE), 5.1) == []
    assert state.due_s == 5.0 + SETTLE_S
    assert state.step(Tick(), 5.1) == []
    assert state.state(M) == "planning"
    assert state.step(Tick(), 5.0 + SETTLE_S) == [
        Propose(W1, M, IN_FORCE, ("first use",), {}, None)
    ]
    assert state.step(Planned(W1, AB.plan), 6.0) == [Prepare(W1, M, (AB.plan,))]
    assert state.is_busy(M)
    assert state.step(Prepared(W1, (AB,)), 7.0) == [
        Swap(M, IN_FORCE, AB, ("first use",)),
        Start(ONE, AB),
        Start(TWO, AB),
    ]
    assert (state.graph(M), state.in_force(), state.state(M)) == (AB, [AB], "ready")
    assert not state.is_busy()
    assert state.due_s == inf
    assert state.step(PlanRequested(ONE, M, IN_FORCE), 8.0) == [Start(ONE, AB)]


def test_causes_that_come_together_lead_to_one_plan_and_later_ones_to_another() -> None:
    state = plans()
    now = in_force(state, AB)
    assert steps(state, changed("c joined"), changed("d joined"), changed("c joined"), now=1) == []
    assert state.step(Tick(), 1 + SETTLE_S) == [
        Propose(W2, M, IN_FORCE, ("c joined", "d joined"), {}, None)
    ]
    # `c` again: the devices may have been looked at in between.
    assert steps(state, changed("c joined"), Tick(), now=9.0) == []
    assert state.step(Planned(W2, CD.plan), 9.0) == [Prepare(W2, M, (CD.plan,))]
    assert state.step(Prepared(W2, (CD,)), 9.0) == [Swap(M, IN_FORCE, CD, ("c joined", "d joined"))]
    assert state.step(Tick(), 9.0 + SETTLE_S) == [Propose(W3, M, IN_FORCE, ("c joined",), {}, None)]
    assert now < 1


@pytest.mark.parametrize("cause", [PERIOD, DRIFT])
def test_where_nothing_happened_a_plan_has_to_be_worth_the_change(cause: str) -> None:
    state = plans()
    in_force(state, AB)
    state.step(changed(cause), 1.0)
    assert state.step(Tick(), 2.0) == [Propose(W2, M, IN_FORCE, (cause,), {}, AB.plan)]
    # The same cause is no news while it is followed.
    assert steps(state, changed(cause), Tick(), now=3.0) == []
    assert state.step(Planned(W2, plan("cd", 0.99), old_s=1.0), 3.0) == []
    assert state.graph(M) is AB
    assert not state.is_busy()
    steps(state, changed(cause), Tick(), now=4.0)
    assert state.step(Tick(), 5.0) == [Propose(W3, M, IN_FORCE, (cause,), {}, AB.plan)]
    better = plan("cd", 0.5)
    assert state.step(Planned(W3, better, old_s=1.0), 5.0) == [Prepare(W3, M, (better,))]


def test_what_preparing_costs_is_weighed() -> None:
    state = plans()
    in_force(state, AB)
    for _ in range(20):  # of any model, or its groups
        state.step(Prepared(Work(99), (AB,), 60.0), 1.0)
    steps(state, changed(PERIOD), now=1.0)
    assert steps(state, Tick(), Planned(W2, plan("cd", 0.5), old_s=1.0), now=2.0) == []


def test_the_same_plan_stays_and_one_whose_device_is_gone_goes() -> None:
    state = plans()
    in_force(state, AB)
    steps(state, changed("c joined"), now=1.0)
    assert steps(state, Tick(), Planned(W2, plan("ab", 0.1)), now=2.0) == []
    assert state.graph(M) is AB
    steps(state, changed(PERIOD), now=3.0)
    state.step(Tick(), 4.0)
    worse = plan("cd", 9.0)
    assert state.step(Planned(W3, worse, old_s=None), 4.0) == [Prepare(W3, M, (worse,))]


def test_a_plan_says_which_devices_it_was_made_for_or_found_good_enough_for() -> None:
    state = plans()
    few = (MadeFor(DeviceId("a"), measured=True),)
    all_of_them = (*few, MadeFor(DeviceId("b"), measured=False))
    made = graph(replace(plan("ab"), made_for=few))
    in_force(state, made)
    assert state.made_for(M) == few
    steps(state, changed("c joined"), now=1.0)
    steps(state, Tick(), Planned(W2, replace(plan("ab"), made_for=all_of_them)), now=2.0)
    assert state.graph(M) is made
    assert state.made_for(M) == all_of_them
    assert state.made_for("another") == ()


def test_who_cannot_be_prepared_is_left_out_until_the_next_occasion() -> None:
    state = plans()
    steps(state, PlanRequested(ONE, M, IN_FORCE))
    a, b = DeviceId("a"), DeviceId("b")
    steps(state, Tick(), Planned(W1, plan("abc")), now=1.0)
    assert state.step(Unprepared(W1, {a: FULL}), 1.0) == [
        Propose(W1, M, IN_FORCE, ("first use",), {a: FULL}, None)
    ]
    state.step(Planned(W1, plan("bc")), 1.0)
    assert state.step(Unprepared(W1, {b: FULL}), 1.0) == [
        Propose(W1, M, IN_FORCE, ("first use",), {a: FULL, b: FULL}, None)
    ]
    assert state.step(WorkFailed(W1, FULL), 1.0) == [Refuse(ONE, FULL)]
    assert state.state(M) == str(FULL)
    steps(state, changed("d joined"), now=2.0)
    assert state.step(Tick(), 3.0) == [Propose(W2, M, IN_FORCE, ("d joined",), {}, None)]


def test_without_a_better_plan_the_old_one_goes_on_and_without_devices_none() -> None:
    state = plans()
    in_force(state, AB)
    steps(state, changed("a left"), now=1.0)
    assert steps(state, Tick(), WorkFailed(W2, NO_PLAN), now=2.0) == []
    assert state.graph(M) is AB
    steps(state, changed("b left"), now=3.0)
    assert steps(state, Tick(), WorkFailed(W3, NO_WORKER, deserted=True), now=4.0) == []
    assert state.graph(M) is None
    assert state.state(M) == str(NO_WORKER)
    # Who asks now has it tried again.
    assert steps(state, PlanRequested(ONE, M, IN_FORCE), now=5.0) == []
    assert state.step(Tick(), 6.0) == [Propose(Work(4), M, IN_FORCE, ("asked for",), {}, None)]
    assert state.step(WorkFailed(Work(4), NO_WORKER, deserted=True), 6.0) == [
        Refuse(ONE, NO_WORKER)
    ]


def test_a_plan_ends_if_nobody_has_memory_for_what_a_lost_device_held() -> None:
    state = plans()
    in_force(state, AB)
    # Measurements were new, all devices are there: the plan goes on.
    steps(state, changed("measured"), now=1.0)
    assert steps(state, Tick(), WorkFailed(W2, TOO_LITTLE), now=2.0) == []
    assert state.graph(M) is AB
    gone = Changed("a left", ALL - {DeviceId("a")}, "")
    steps(state, gone, now=3.0)
    steps(state, Tick(), WorkFailed(W3, TOO_LITTLE), now=4.0)
    assert state.graph(M) is None
    assert state.state(M) == str(TOO_LITTLE)
    # Who asks is refused at once, until the device is back.
    assert steps(state, PlanRequested(ONE, M, IN_FORCE), now=5.0) == [Refuse(ONE, TOO_LITTLE)]
    steps(state, changed("a joined"), PlanRequested(TWO, M, IN_FORCE), now=7.0)
    assert state.step(Tick(), 8.0) == [Propose(Work(4), M, IN_FORCE, ("a joined",), {}, None)]
    steps(state, Planned(Work(4), AB.plan), now=9.0)
    assert Start(TWO, AB) in state.step(Prepared(Work(4), (AB,)), 9.0)


def test_an_error_is_not_told_while_there_is_news() -> None:
    state = plans()
    steps(state, PlanRequested(ONE, M, IN_FORCE))
    steps(state, Tick(), changed("a joined"), now=1.0)
    assert state.step(WorkFailed(W1, NO_WORKER, deserted=True), 1.0) == []
    steps(state, Tick(), Planned(W2, AB.plan), now=2.0)
    assert Start(ONE, AB) in state.step(Prepared(W2, (AB,)), 2.0)


def test_nobody_waits_for_longer_than_for_weights_to_arrive() -> None:
    state = plans()
    state.step(PlanRequested(ONE, M, IN_FORCE), 0.0)
    state.step(Tick(), SETTLE_S)
    state.step(PlanRequested(TWO, M, IN_FORCE), 9.0)
    assert state.due_s == FIRST_PLAN_S
    (refused,) = state.step(Tick(), FIRST_PLAN_S)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, refused.error.code) == (ONE, "unavailable")
    assert state.step(Left(TWO), FIRST_PLAN_S) == []
    assert state.due_s == inf


def test_a_plan_that_is_held_stays_until_it_is_released() -> None:
    state = plans()
    in_force(state, AB)
    steps(state, changed("c joined"), now=1.0)
    state.step(Tick(), 2.0)
    assert state.step(Held(M, CD), 3.0) == [Stop(W2)]
    assert state.held(M)
    assert steps(state, Planned(W2, plan("abcd")), Prepared(W2, (graph("abcd"),)), now=4.0) == []
    assert steps(state, changed("d joined"), changed(PERIOD), Tick(), now=5.0) == []
    assert (state.graph(M), state.due_s) == (CD, inf)
    assert state.step(PlanReleased(M), 6.0) == []
    assert state.step(Tick(), 7.0) == [Propose(W3, M, IN_FORCE, ("released",), {}, None)]
    # Of a model that nobody has asked for, too.
    other = plans()
    assert other.step(Held(M, CD), 0.0) == []
    assert other.graph(M) is CD


def test_who_waits_gets_the_plan_that_is_held() -> None:
    state = plans()
    steps(state, PlanRequested(ONE, M, IN_FORCE))
    assert state.step(Held(M, CD), 0.1) == [Start(ONE, CD)]
    assert state.due_s == inf


def test_chosen_plans_are_made_again_when_they_are_next_asked_for() -> None:
    state = plans()
    in_force(state, AB, LW)
    steps(state, changed(PERIOD), changed(DRIFT), now=1.0)
    assert state.step(PlanRequested(ONE, M, LW), 1.0) == [Start(ONE, AB)]
    assert steps(state, changed("c joined"), Tick(), now=2.0) == []
    assert state.graph(M, LW) is None
    assert state.step(PlanRequested(ONE, M, LW), 3.0) == []
    assert state.step(Tick(), 4.0) == [
        Propose(W2, M, LW, ("devices or measurements changed",), {}, None)
    ]
    # Even if it is found to be the same: nobody knows whether its programs are there.
    assert state.step(Planned(W2, AB.plan), 4.0) == [Prepare(W2, M, (AB.plan,))]


def test_plans_that_were_sent_are_never_made() -> None:
    state = plans()
    sent = Choice(plan="0123")
    with pytest.raises(NotFound, match="0123"):
        state.step(PlanRequested(ONE, M, sent), 0.0)
    assert not state.knows(M, sent)
    assert state.step(PlanKept(M, sent, AB), 0.0) == []
    assert steps(state, changed("c joined"), Tick(), now=9.0) == []
    assert state.step(PlanRequested(ONE, M, sent), 9.0) == [Start(ONE, AB)]
    state.step(changed("a left", ALL - {DeviceId("a")}), 10.0)
    with pytest.raises(Unavailable, match="needs a, which is not ready"):
        state.step(PlanRequested(ONE, M, sent), 10.0)


def test_the_chosen_plan_that_was_not_used_for_longest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_CHOSEN", 2)
    state, choices = plans(), [Choice(plan=each) for each in "xyz"]
    steps(state, changed("joined"), Held(M, CD))
    steps(
        state,
        PlanKept(M, choices[0], AB),
        PlanKept(M, choices[1], AB),
        PlanRequested(ONE, M, choices[0]),
    )
    state.step(PlanKept(M, choices[2], AB), 0.0)
    assert [state.knows(M, each) for each in choices] == [True, False, True]
    assert state.graph(M) is CD
    busy = Plans(count(1))
    steps(busy, PlanRequested(ONE, M, LW), PlanRequested(TWO, M, Choice("efl")))
    with pytest.raises(Unavailable, match="already being made"):
        busy.step(PlanKept(M, choices[0], AB), 0.0)
    assert not busy.knows(M, choices[0])


def test_a_forgotten_model_leaves_nothing_but_its_programs() -> None:
    state = plans()
    in_force(state, AB)
    state.step(Held("another", graph("a")), 1.0)
    steps(state, changed("c joined", model=M), now=1.0)
    steps(state, Tick(), Planned(W2, CD.plan), Prepared(W2, (CD,)), now=2.0)
    state.step(PlanRequested(ONE, M, LW), 3.0)
    state.step(Tick(), 4.0)
    before = {f"program of {each}" for each in "abcd"}
    assert state.programs_of(M) == before
    stopped, refused = state.step(Forgotten(M), 5.0)
    assert stopped == Stop(W3)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, "unloaded" in refused.error.cause) == (ONE, True)
    assert before - state.programs() == {f"program of {each}" for each in "bcd"}
    assert not state.knows(M, IN_FORCE)
    assert not state.is_busy()
    assert state.due_s == inf
    assert state.step(Planned(W3, AB.plan), 6.0) == []


def test_programs_of_plans_before_are_remembered_up_to_a_cap() -> None:
    state = plans()
    for number in range(MOST_LEFT + 9):
        state.step(Held(M, graph(plan("a" if number % 2 else "b"))), 0.0)
        state._entries[M, IN_FORCE].left[f"made up {number}"] = None
    assert len(state._entries[M, IN_FORCE].left) <= MOST_LEFT + 1


def test_plans_are_looked_at_again_every_period_and_when_what_is_seen_has_drifted() -> None:
    state = Plans(count(1), period_s=60.0)
    assert state.due_s == inf
    now = in_force(state, AB)
    state.step(changed("b joined"), 1.0)
    steps(state, Tick(), Planned(W2, AB.plan), now=2.0)
    assert state.due_s == 61.0
    still, moved = {"a": Observed(0.0)}, {"a": Observed(1.0)}
    state.step(AnswerSeen(M, still), 60.0)
    assert state.step(Tick(), 61.0) == []
    assert state.step(Tick(), 61.0 + SETTLE_S) == [Propose(W3, M, IN_FORCE, (PERIOD,), {}, AB.plan)]
    state.step(WorkFailed(W3, NO_PLAN), 62.0)
    assert state.due_s == 121.0
    assert steps(state, AnswerSeen(M, still), AnswerSeen(M, moved), now=63.0) == []
    assert state.due_s == 121.0
    state.step(AnswerSeen(M, moved), 63.0 + HEARD_S)
    assert state.due_s == 63.0 + HEARD_S + SETTLE_S
    assert state.step(Tick(), 80.0) == [Propose(Work(4), M, IN_FORCE, (DRIFT,), {}, AB.plan)]
    assert now < 1.0


def test_a_period_in_which_nothing_new_was_seen_leads_to_no_search() -> None:
    state = Plans(count(1), period_s=60.0)
    in_force(state, AB)
    state.step(changed("b joined", model="another"), 0.0)
    numbers = count(2)

    def searches(now: float) -> bool:
        state.step(Tick(), now)
        found = state.step(Tick(), now + SETTLE_S)
        if found:
            state.step(Planned(Work(next(numbers)), AB.plan), now + SETTLE_S)
        return bool(found)

    # Without any request:
    assert not searches(61.0)
    little = WORTH_A_LOOK * log(1.2)
    for now, factor, expected in (
        (121.0, 0.0, True),
        (181.0, 0.9 * little, False),
        (241.0, 1.1 * little, True),
        (301.0, 1.1 * little, False),
    ):
        state.step(AnswerSeen(M, {"a": Observed(factor)}), now - 1)
        assert searches(now) == expected, now


@pytest.mark.parametrize("error", [None, FULL])
def test_a_device_that_was_left_out_is_tried_again_after_the_period(error) -> None:
    """Though nothing new was seen; and so is a model without a plan."""
    state = Plans(count(1), period_s=60.0)
    a, b = DeviceId("a"), DeviceId("b")
    steps(state, PlanRequested(ONE, M, IN_FORCE), changed("a joined"))
    steps(state, Tick(), Planned(W1, plan("ab")), now=1.0)
    state.step(Unprepared(W1, {a: FULL}), 1.0)
    if error:
        state.step(WorkFailed(W1, error), 1.0)
    else:
        steps(state, Planned(W1, plan("b")), Prepared(W1, (graph("b"),)), now=1.0)
    state.step(Tick(), 61.0)
    (proposed,) = state.step(Tick(), 61.0 + SETTLE_S)
    assert proposed == Propose(W2, M, IN_FORCE, (PERIOD,), {}, None if error else plan("b"))
    assert b not in proposed.without


def test_where_replanning_is_off_plans_change_with_the_devices_alone() -> None:
    state = plans()
    in_force(state, AB)
    for second in range(100):
        steps(state, AnswerSeen(M, {"a": Observed(second % 7)}), now=float(second))
    assert (state.due_s, state.is_busy()) == (inf, False)


def test_the_first_time_that_weights_are_sent_says_nothing_of_the_next() -> None:
    state = plans()
    state.step(PlanRequested(ONE, M, IN_FORCE), 0.0)
    steps(state, Tick(), Planned(W1, AB.plan), now=SETTLE_S)
    state.step(Prepared(W1, (AB,), 600.0), 1.0)
    assert state.switching.preparing_s == 0.0
    steps(state, changed(PERIOD), Tick(), now=2.0)
    steps(state, Tick(), Planned(W2, plan("cd", 0.5), old_s=1.0), now=4.0)
    state.step(Prepared(W2, (CD,), 2.0), 5.0)
    assert state.switching.preparing_s > 0.0
