"""Which plans are made, take over and go: what happens, and exactly what is to be done."""

from dataclasses import replace
from itertools import count
from math import inf, log

import pytest

from coordinator.answers import IN_FORCE, PlanChoice
from coordinator.costs.corrections import Observed
from coordinator.plans import book as module
from coordinator.plans.book import FIRST_PLAN_S, NO_WORKER, PlanBook
from coordinator.plans.entries import DRIFT, MOST_LEFT, PERIOD, SETTLE_S
from coordinator.plans.steps import (
    Planned,
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
)
from coordinator.plans.switching import HEARD_S, WORTH_A_LOOK
from coordinator.tasks.plan import MadeFor
from protos.errors import Infeasible, LostWorker, NotFound, TooLittleMemory, Unavailable
from protos.wire.facts import DeviceId
from tests.plans.support import ALL, LW, M, graph, in_force, plan, plans

ONE, TWO = Ticket(1), Ticket(2)
W1, W2, W3 = Work(1), Work(2), Work(3)
AB, CD = graph("ab"), graph("cd")
FULL = LostWorker(cause="its disk is full", cure="Make room")
NO_PLAN = Infeasible(cause="it fits nowhere", cure="Add a device")
TOO_LITTLE = TooLittleMemory(cause="at least 90 MB are missing", cure="Add a device")


def test_the_first_plan_from_the_first_request_to_its_start() -> None:
    state = plans()
    assert state.ask(ONE, M, IN_FORCE, 5.0) == []
    assert state.ask(TWO, M, IN_FORCE, 5.1) == []
    assert state.due_s == 5.0 + SETTLE_S
    assert state.tick(5.1) == []
    assert state.state(M) == "planning"
    assert state.tick(5.0 + SETTLE_S) == [Propose(W1, M, IN_FORCE, ("first use",), {}, None)]
    assert state.ended(Planned(W1, AB.plan), 6.0) == [Prepare(W1, M, (AB.plan,))]
    assert state.is_busy(M)
    assert state.ended(Prepared(W1, (AB,)), 7.0) == [
        Swap(M, IN_FORCE, AB, ("first use",)),
        Start(ONE, AB),
        Start(TWO, AB),
    ]
    assert (state.graph(M), state.in_force(), state.state(M)) == (AB, [AB], "ready")
    assert not state.is_busy()
    assert state.due_s == inf
    assert state.ask(ONE, M, IN_FORCE, 8.0) == [Start(ONE, AB)]


def test_causes_that_come_together_lead_to_one_plan_and_later_ones_to_another() -> None:
    state = plans()
    now = in_force(state, AB)
    state.devices_changed(ALL, "c joined", 1)
    state.devices_changed(ALL, "d joined", 1)
    state.devices_changed(ALL, "c joined", 1)
    assert state.tick(1 + SETTLE_S) == [
        Propose(W2, M, IN_FORCE, ("c joined", "d joined"), {}, None)
    ]
    # `c` again: the devices may have been looked at in between.
    state.devices_changed(ALL, "c joined", 9.0)
    assert state.tick(9.0) == []
    assert state.ended(Planned(W2, CD.plan), 9.0) == [Prepare(W2, M, (CD.plan,))]
    assert state.ended(Prepared(W2, (CD,)), 9.0) == [
        Swap(M, IN_FORCE, CD, ("c joined", "d joined"))
    ]
    assert state.tick(9.0 + SETTLE_S) == [Propose(W3, M, IN_FORCE, ("c joined",), {}, None)]
    assert now < 1


@pytest.mark.parametrize("cause", [PERIOD, DRIFT])
def test_where_nothing_happened_a_plan_has_to_be_worth_the_change(cause: str) -> None:
    state = plans()
    in_force(state, AB)
    state.devices_changed(ALL, cause, 1.0)
    assert state.tick(2.0) == [Propose(W2, M, IN_FORCE, (cause,), {}, AB.plan)]
    # The same cause is no news while it is followed.
    state.devices_changed(ALL, cause, 3.0)
    assert state.tick(3.0) == []
    assert state.ended(Planned(W2, plan("cd", 0.99), old_s=1.0), 3.0) == []
    assert state.graph(M) is AB
    assert not state.is_busy()
    state.devices_changed(ALL, cause, 4.0)
    state.tick(4.0)
    assert state.tick(5.0) == [Propose(W3, M, IN_FORCE, (cause,), {}, AB.plan)]
    better = plan("cd", 0.5)
    assert state.ended(Planned(W3, better, old_s=1.0), 5.0) == [Prepare(W3, M, (better,))]


def test_costs_of_preparing_are_weighed() -> None:
    state = plans()
    in_force(state, AB)
    for _ in range(20):  # of any model, or its groups
        state.ended(Prepared(Work(99), (AB,), 60.0), 1.0)
    state.devices_changed(ALL, PERIOD, 1.0)
    state.tick(2.0)
    assert state.ended(Planned(W2, plan("cd", 0.5), old_s=1.0), 2.0) == []


def test_the_same_plan_stays_and_one_whose_device_is_gone_goes() -> None:
    state = plans()
    in_force(state, AB)
    state.devices_changed(ALL, "c joined", 1.0)
    state.tick(2.0)
    assert state.ended(Planned(W2, plan("ab", 0.1)), 2.0) == []
    assert state.graph(M) is AB
    state.devices_changed(ALL, PERIOD, 3.0)
    state.tick(4.0)
    worse = plan("cd", 9.0)
    assert state.ended(Planned(W3, worse, old_s=None), 4.0) == [Prepare(W3, M, (worse,))]


def test_a_plan_says_which_devices_it_was_made_for_or_found_good_enough_for() -> None:
    state = plans()
    few = (MadeFor(DeviceId("a"), measured=True),)
    all_of_them = (*few, MadeFor(DeviceId("b"), measured=False))
    made = graph(replace(plan("ab"), made_for=few))
    in_force(state, made)
    assert state.made_for(M) == few
    state.devices_changed(ALL, "c joined", 1.0)
    state.tick(2.0)
    state.ended(Planned(W2, replace(plan("ab"), made_for=all_of_them)), 2.0)
    assert state.graph(M) is made
    assert state.made_for(M) == all_of_them
    assert state.made_for("another") == ()


def test_devices_that_cannot_be_prepared_are_left_out_until_the_next_occasion() -> None:
    state = plans()
    state.ask(ONE, M, IN_FORCE, 0.0)
    a, b = DeviceId("a"), DeviceId("b")
    state.tick(1.0)
    state.ended(Planned(W1, plan("abc")), 1.0)
    assert state.ended(Unprepared(W1, {a: FULL}), 1.0) == [
        Propose(W1, M, IN_FORCE, ("first use",), {a: FULL}, None)
    ]
    state.ended(Planned(W1, plan("bc")), 1.0)
    assert state.ended(Unprepared(W1, {b: FULL}), 1.0) == [
        Propose(W1, M, IN_FORCE, ("first use",), {a: FULL, b: FULL}, None)
    ]
    assert state.ended(WorkFailed(W1, FULL), 1.0) == [Refuse(ONE, FULL)]
    assert state.state(M) == str(FULL)
    state.devices_changed(ALL, "d joined", 2.0)
    assert state.tick(3.0) == [Propose(W2, M, IN_FORCE, ("d joined",), {}, None)]


def test_old_plans_go_on_without_a_better_one_but_not_without_devices() -> None:
    state = plans()
    in_force(state, AB)
    state.devices_changed(ALL, "a left", 1.0)
    state.tick(2.0)
    assert state.ended(WorkFailed(W2, NO_PLAN), 2.0) == []
    assert state.graph(M) is AB
    state.devices_changed(ALL, "b left", 3.0)
    state.tick(4.0)
    assert state.ended(WorkFailed(W3, NO_WORKER, deserted=True), 4.0) == []
    assert state.graph(M) is None
    assert state.state(M) == str(NO_WORKER)
    # Who asks now has it tried again.
    assert state.ask(ONE, M, IN_FORCE, 5.0) == []
    assert state.tick(6.0) == [Propose(Work(4), M, IN_FORCE, ("asked for",), {}, None)]
    assert state.ended(WorkFailed(Work(4), NO_WORKER, deserted=True), 6.0) == [
        Refuse(ONE, NO_WORKER)
    ]


def test_a_plan_ends_if_nobody_has_memory_for_what_a_lost_device_held() -> None:
    state = plans()
    in_force(state, AB)
    # Measurements were new, all devices are there: the plan goes on.
    state.devices_changed(ALL, "measured", 1.0)
    state.tick(2.0)
    assert state.ended(WorkFailed(W2, TOO_LITTLE), 2.0) == []
    assert state.graph(M) is AB
    state.devices_changed(ALL - {DeviceId("a")}, "a left", 3.0)
    state.tick(4.0)
    state.ended(WorkFailed(W3, TOO_LITTLE), 4.0)
    assert state.graph(M) is None
    assert state.state(M) == str(TOO_LITTLE)
    # Who asks is refused at once, until the device is back.
    assert state.ask(ONE, M, IN_FORCE, 5.0) == [Refuse(ONE, TOO_LITTLE)]
    state.devices_changed(ALL, "a joined", 7.0)
    state.ask(TWO, M, IN_FORCE, 7.0)
    assert state.tick(8.0) == [Propose(Work(4), M, IN_FORCE, ("a joined",), {}, None)]
    state.ended(Planned(Work(4), AB.plan), 9.0)
    assert Start(TWO, AB) in state.ended(Prepared(Work(4), (AB,)), 9.0)


def test_an_error_is_not_told_while_there_is_news() -> None:
    state = plans()
    state.ask(ONE, M, IN_FORCE, 0.0)
    state.tick(1.0)
    state.devices_changed(ALL, "a joined", 1.0)
    assert state.ended(WorkFailed(W1, NO_WORKER, deserted=True), 1.0) == []
    state.tick(2.0)
    state.ended(Planned(W2, AB.plan), 2.0)
    assert Start(ONE, AB) in state.ended(Prepared(W2, (AB,)), 2.0)


def test_waits_for_a_plan_end_when_weights_should_have_arrived() -> None:
    state = plans()
    state.ask(ONE, M, IN_FORCE, 0.0)
    state.tick(SETTLE_S)
    state.ask(TWO, M, IN_FORCE, 9.0)
    assert state.due_s == FIRST_PLAN_S
    (refused,) = state.tick(FIRST_PLAN_S)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, refused.error.code) == (ONE, "unavailable")
    state.leave(TWO)
    assert state.due_s == inf


def test_a_plan_that_is_held_stays_until_it_is_released() -> None:
    state = plans()
    in_force(state, AB)
    state.devices_changed(ALL, "c joined", 1.0)
    state.tick(2.0)
    assert state.hold(M, CD, 3.0) == [Stop(W2)]
    assert state.held(M)
    state.ended(Planned(W2, plan("abcd")), 4.0)
    assert state.ended(Prepared(W2, (graph("abcd"),)), 4.0) == []
    state.devices_changed(ALL, "d joined", 5.0)
    state.devices_changed(ALL, PERIOD, 5.0)
    assert state.tick(5.0) == []
    assert (state.graph(M), state.due_s) == (CD, inf)
    state.release(M, 6.0)
    assert state.tick(7.0) == [Propose(W3, M, IN_FORCE, ("released",), {}, None)]
    # Of a model that nobody has asked for, too.
    other = plans()
    assert other.hold(M, CD, 0.0) == []
    assert other.graph(M) is CD


def test_requests_that_wait_get_the_plan_that_is_held() -> None:
    state = plans()
    state.ask(ONE, M, IN_FORCE, 0.0)
    assert state.hold(M, CD, 0.1) == [Start(ONE, CD)]
    assert state.due_s == inf


def test_chosen_plans_are_made_again_when_they_are_next_asked_for() -> None:
    state = plans()
    in_force(state, AB, LW)
    state.devices_changed(ALL, PERIOD, 1.0)
    state.devices_changed(ALL, DRIFT, 1.0)
    assert state.ask(ONE, M, LW, 1.0) == [Start(ONE, AB)]
    state.devices_changed(ALL, "c joined", 2.0)
    assert state.tick(2.0) == []
    assert state.graph(M, LW) is None
    assert state.ask(ONE, M, LW, 3.0) == []
    assert state.tick(4.0) == [Propose(W2, M, LW, ("devices or measurements changed",), {}, None)]
    # Even if it is found to be the same: nobody knows whether its programs are there.
    assert state.ended(Planned(W2, AB.plan), 4.0) == [Prepare(W2, M, (AB.plan,))]


def test_plans_that_were_sent_are_never_made() -> None:
    state = plans()
    sent = PlanChoice(plan="0123")
    with pytest.raises(NotFound, match="0123"):
        state.ask(ONE, M, sent, 0.0)
    assert not state.knows(M, sent)
    state.keep(M, sent, AB)
    state.devices_changed(ALL, "c joined", 9.0)
    assert state.tick(9.0) == []
    assert state.ask(ONE, M, sent, 9.0) == [Start(ONE, AB)]
    state.devices_changed(ALL - {DeviceId("a")}, "a left", 10.0)
    with pytest.raises(Unavailable, match="needs a, which is not ready"):
        state.ask(ONE, M, sent, 10.0)


def test_the_chosen_plan_that_was_not_used_for_longest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_CHOSEN", 2)
    state, choices = plans(), [PlanChoice(plan=each) for each in "xyz"]
    state.devices_changed(ALL, "joined", 0.0)
    state.hold(M, CD, 0.0)
    state.keep(M, choices[0], AB)
    state.keep(M, choices[1], AB)
    state.ask(ONE, M, choices[0], 0.0)
    state.keep(M, choices[2], AB)
    assert [state.knows(M, each) for each in choices] == [True, False, True]
    assert state.graph(M) is CD
    busy = PlanBook(count(1))
    busy.ask(ONE, M, LW, 0.0)
    busy.ask(TWO, M, PlanChoice("efl"), 0.0)
    with pytest.raises(Unavailable, match="already being made"):
        busy.keep(M, choices[0], AB)
    assert not busy.knows(M, choices[0])


def test_a_forgotten_model_leaves_nothing_but_its_programs() -> None:
    state = plans()
    in_force(state, AB)
    state.hold("another", graph("a"), 1.0)
    state.devices_changed(ALL, "c joined", 1.0, model=M)
    state.tick(2.0)
    state.ended(Planned(W2, CD.plan), 2.0)
    state.ended(Prepared(W2, (CD,)), 2.0)
    state.ask(ONE, M, LW, 3.0)
    state.tick(4.0)
    before = {f"program of {each}" for each in "abcd"}
    assert state.programs_of(M) == before
    stopped, refused = state.forget(M, 5.0)
    assert stopped == Stop(W3)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, "unloaded" in refused.error.cause) == (ONE, True)
    assert before - state.programs() == {f"program of {each}" for each in "bcd"}
    assert not state.knows(M, IN_FORCE)
    assert not state.is_busy()
    assert state.due_s == inf
    assert state.ended(Planned(W3, AB.plan), 6.0) == []


def test_programs_of_plans_before_are_remembered_up_to_a_cap() -> None:
    state = plans()
    for number in range(MOST_LEFT + 9):
        state.hold(M, graph(chr(ord("a") + number)), 0.0)
    assert len(state.programs_of(M)) == MOST_LEFT + 1


def test_plans_are_looked_at_again_every_period_and_when_what_is_seen_has_drifted() -> None:
    state = PlanBook(count(1), period_s=60.0)
    assert state.due_s == inf
    now = in_force(state, AB)
    state.devices_changed(ALL, "b joined", 1.0)
    state.tick(2.0)
    state.ended(Planned(W2, AB.plan), 2.0)
    assert state.due_s == 61.0
    still, moved = {"a": Observed(0.0)}, {"a": Observed(1.0)}
    state.answered(M, still, 60.0)
    assert state.tick(61.0) == []
    assert state.tick(61.0 + SETTLE_S) == [Propose(W3, M, IN_FORCE, (PERIOD,), {}, AB.plan)]
    state.ended(WorkFailed(W3, NO_PLAN), 62.0)
    assert state.due_s == 121.0
    state.answered(M, still, 63.0)
    state.answered(M, moved, 63.0)
    assert state.due_s == 121.0
    state.answered(M, moved, 63.0 + HEARD_S)
    assert state.due_s == 63.0 + HEARD_S + SETTLE_S
    assert state.tick(80.0) == [Propose(Work(4), M, IN_FORCE, (DRIFT,), {}, AB.plan)]
    assert now < 1.0


def test_a_period_in_which_nothing_new_was_seen_leads_to_no_search() -> None:
    state = PlanBook(count(1), period_s=60.0)
    in_force(state, AB)
    state.devices_changed(ALL, "b joined", 0.0, model="another")
    numbers = count(2)

    def searches(now: float) -> bool:
        state.tick(now)
        found = state.tick(now + SETTLE_S)
        if found:
            state.ended(Planned(Work(next(numbers)), AB.plan), now + SETTLE_S)
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
        state.answered(M, {"a": Observed(factor)}, now - 1)
        assert searches(now) == expected, now


@pytest.mark.parametrize("error", [None, FULL])
def test_a_device_that_was_left_out_is_tried_again_after_the_period(error) -> None:
    """Though nothing new was seen; and so is a model without a plan."""
    state = PlanBook(count(1), period_s=60.0)
    a, b = DeviceId("a"), DeviceId("b")
    state.ask(ONE, M, IN_FORCE, 0.0)
    state.devices_changed(ALL, "a joined", 0.0)
    state.tick(1.0)
    state.ended(Planned(W1, plan("ab")), 1.0)
    state.ended(Unprepared(W1, {a: FULL}), 1.0)
    if error:
        state.ended(WorkFailed(W1, error), 1.0)
    else:
        state.ended(Planned(W1, plan("b")), 1.0)
        state.ended(Prepared(W1, (graph("b"),)), 1.0)
    state.tick(61.0)
    (proposed,) = state.tick(61.0 + SETTLE_S)
    assert proposed == Propose(W2, M, IN_FORCE, (PERIOD,), {}, None if error else plan("b"))
    assert b not in proposed.without


def test_where_replanning_is_off_plans_change_with_the_devices_alone() -> None:
    state = plans()
    in_force(state, AB)
    for second in range(100):
        state.answered(M, {"a": Observed(second % 7)}, float(second))
    assert (state.due_s, state.is_busy()) == (inf, False)


def test_the_first_time_that_weights_are_sent_says_nothing_of_the_next() -> None:
    state = plans()
    state.ask(ONE, M, IN_FORCE, 0.0)
    state.tick(SETTLE_S)
    state.ended(Planned(W1, AB.plan), SETTLE_S)
    state.ended(Prepared(W1, (AB,), 600.0), 1.0)
    assert state.switching.preparing_s == 0.0
    state.devices_changed(ALL, PERIOD, 2.0)
    state.tick(2.0)
    state.tick(4.0)
    state.ended(Planned(W2, plan("cd", 0.5), old_s=1.0), 4.0)
    state.ended(Prepared(W2, (CD,), 2.0), 5.0)
    assert state.switching.preparing_s > 0.0
