"""One group or several: what happens to a line, and exactly what is to be done."""

from dataclasses import replace
from itertools import count

import pytest

from coordinator.costs.corrections import Observed
from coordinator.plans.book import PlanBook
from coordinator.plans.grouping import KEEP_S, Regrouping
from coordinator.plans.steps import (
    Divide,
    Divided,
    Prepare,
    Prepared,
    Regroup,
    Start,
    Stop,
    Ticket,
    Unprepared,
    Work,
    WorkFailed,
)
from coordinator.plans.switching import HEARD_S
from coordinator.settings import Objective
from protos.errors import LostWorker
from protos.wire.facts import DeviceId
from tests.plans.support import ALL, M, graph, grouping, plan

W1, W2 = Work(1), Work(2)
TOGETHER = graph(plan("abcd", latency_s=1.0))
ALL_ONE = grouping("abcd", latency_s=1.0)
HALVES = grouping("ab", "cd", latency_s=1.2)
GONE = LostWorker(cause="it is gone", cure="none")


class Crowd:
    """Requests that come and go; a line of them, seen from outside."""

    def __init__(self, objective: Objective = "auto") -> None:
        self.plans = PlanBook(count(100), period_s=600.0)
        self.state = Regrouping(self.plans, count(1), objective)
        self.state.devices_changed(ALL)
        self.numbers = map(Ticket, count(1))
        self.here: list[Ticket] = []
        self.slower = 0.0
        self.plans.answered(M, {"a": Observed(0.0)}, 0.0)

    def come(self, now: float, many: int = 1, on=TOGETHER):
        found = []
        for _ in range(many):
            ticket = next(self.numbers)
            self.here.append(ticket)
            found += self.state.queue(ticket, M, on, now)
        return found

    def go(self, now: float, many: int = 1):
        found = []
        for _ in range(many):
            found += self.state.leave(self.here.pop(0), now)
        return found

    def drifts(self, now: float) -> None:
        """A device is found to be slower, until another plan is looked for."""
        self.slower += 1.0
        for seconds in (0.0, HEARD_S):
            self.plans.answered(M, {"a": Observed(self.slower)}, now - HEARD_S + seconds)

    def divided(self) -> float:
        """Two groups are ready, and take whoever comes; the time then."""
        self.come(0.0, many=9)
        assert self.go(2.0) == [Divide(W1, M, TOGETHER.plan), Start(Ticket(3), TOGETHER)]
        assert self.state.ended(Divided(W1, {1: ALL_ONE, 2: HALVES}), 3.0) == []
        assert self.go(4.0)[0] == Prepare(W2, M, HALVES.plans)
        actions = self.state.ended(Prepared(W2, (graph("ab"), graph("cd"))), 5.0)
        assert isinstance(actions[0], Regroup)
        assert (actions[0].model, actions[0].groups) == (M, 2)
        on = [each.graph.plan.devices for each in actions[1:] if isinstance(each, Start)]
        assert sorted(on) == [("a", "b")] * 2 + [("c", "d")] * 2
        return 5.0


def test_a_lone_request_starts_at_once_on_all_devices() -> None:
    crowd = Crowd()
    assert crowd.come(0.0) == [Start(Ticket(1), TOGETHER)]
    assert crowd.go(1.0) == []
    assert not crowd.state.is_busy(M)
    # The next one gets the plan that is in force by then.
    later = graph("abc")
    assert crowd.come(9.0, on=later) == [Start(Ticket(2), later)]


def test_requests_beyond_one_more_in_transit_wait_in_order() -> None:
    crowd = Crowd("latency")
    assert crowd.come(0.0, many=4) == [Start(Ticket(1), TOGETHER), Start(Ticket(2), TOGETHER)]
    assert crowd.state.leave(Ticket(3), 0.1) == []  # it does not wait any longer
    assert crowd.state.leave(Ticket(2), 0.2) == [Start(Ticket(4), TOGETHER)]
    assert crowd.state.leave(Ticket(2), 0.2) == []


def test_a_crowd_gets_groups_and_whoever_is_alone_gets_all_devices_again() -> None:
    crowd = Crowd()
    now = crowd.divided()
    assert crowd.state.status(M, now).groups == 2
    assert crowd.state.programs(M) == {f"program of {each}" for each in "abcd"}
    crowd.go(now + 1, many=len(crowd.here))
    assert crowd.come(now + 600) == [
        Regroup(M, 1, 1.0),
        Start(crowd.here[0], TOGETHER),
    ]


def test_groups_are_planned_anew_once_devices_have_changed_their_speed() -> None:
    crowd = Crowd()
    now = crowd.divided()
    late = 3.0 + KEEP_S + 0.1
    assert not any(isinstance(each, Divide) for each in crowd.come(late, many=5))
    crowd.drifts(late + 1)
    assert Divide(Work(3), M, TOGETHER.plan, (HALVES,)) in crowd.come(late + 2)
    assert crowd.state.status(M, now).groups == 2


def test_groups_are_planned_anew_beside_another_plan_in_force() -> None:
    """What led to that plan, such as the cost of messages, counts for theirs, too."""
    crowd = Crowd()
    now = crowd.divided()
    later = graph(plan("abcd", latency_s=0.9))
    assert Divide(Work(3), M, later.plan, (HALVES,)) in crowd.come(now + 1, on=later)
    latest = graph(plan("abcd", latency_s=0.8))
    assert not any(isinstance(each, Divide) for each in crowd.come(now + 2, on=latest))
    # What was found for the plan before is not taken.
    assert crowd.state.ended(Divided(Work(3), {1: ALL_ONE}), now + 3) == []
    assert Divide(Work(4), M, latest.plan, (HALVES,)) in crowd.come(now + 4, on=latest)


def test_groups_are_not_planned_anew_twice_in_a_minute() -> None:
    crowd = Crowd()
    now = crowd.divided()
    crowd.drifts(now + 1)
    assert not any(isinstance(each, Divide) for each in crowd.come(now + 2, many=5))


def test_groups_whose_plans_stay_are_not_prepared_again() -> None:
    """Their times are new, and their requests go on."""
    crowd = Crowd()
    crowd.divided()
    crowd.drifts(70.0)
    crowd.come(71.0)
    slower = replace(HALVES, services=(replace(HALVES.services[0], latency_s=2.0),) * 2)
    told = crowd.state.ended(Divided(Work(3), {1: ALL_ONE, 2: slower}), 72.0) + crowd.go(73.0)
    assert not any(isinstance(each, Prepare | Regroup) for each in told)
    (line,) = crowd.state._lines.values()
    assert [each.service.latency_s for each in line.groups] == [2.0, 2.0]
    others = replace(slower, plans=(plan("ac"), plan("bd")))
    crowd.drifts(150.0)
    crowd.come(151.0)
    told = crowd.state.ended(Divided(Work(4), {1: ALL_ONE, 2: others}), 152.0) + crowd.go(153.0)
    assert Prepare(Work(5), M, others.plans) in told


def test_a_plan_that_is_held_is_not_divided() -> None:
    crowd = Crowd()
    crowd.plans.hold(M, TOGETHER, 0.0)
    crowd.come(0.0, many=9)
    assert crowd.go(2.0) == [Start(Ticket(3), TOGETHER)]


@pytest.mark.parametrize("objective", ["auto", "throughput"])
def test_groups_end_when_a_plan_is_held(objective: Objective) -> None:
    """Also for one that is slower than the groups, and in each objective."""
    crowd = Crowd(objective)
    now = crowd.divided()
    slow = graph(plan("d", latency_s=9.0))
    crowd.plans.hold(M, slow, now)
    assert crowd.state.hold(M, slow) == [Regroup(M, 1, 1.0)]
    later = crowd.go(now + 1, many=len(crowd.here)) + crowd.come(now + 600, many=9, on=slow)
    assert {each.graph for each in later if isinstance(each, Start)} == {slow}
    assert not any(isinstance(each, Regroup | Divide | Prepare) for each in later)
    assert crowd.state.programs(M) == {"program of d"}


def test_making_of_groups_stops_when_a_plan_is_held() -> None:
    crowd = Crowd()
    crowd.come(0.0, many=9)
    crowd.go(2.0)
    crowd.plans.hold(M, TOGETHER, 2.1)
    assert crowd.state.hold(M, TOGETHER) == [Stop(W1)]
    assert crowd.state.ended(Divided(W1, {1: ALL_ONE, 2: HALVES}), 3.0) == []


def test_groups_of_a_plan_that_is_not_in_force_any_more_are_not_prepared() -> None:
    crowd = Crowd()
    crowd.come(0.0, many=9)
    crowd.go(2.0)
    crowd.come(2.1, on=graph("abc"))
    assert crowd.state.ended(Divided(W1, {1: ALL_ONE, 2: HALVES}), 3.0) == []
    assert not any(isinstance(each, Prepare) for each in crowd.go(4.0))


@pytest.mark.parametrize("event", [Unprepared(W2, {DeviceId("a"): GONE}), WorkFailed(W2, GONE)])
def test_groups_that_cannot_be_prepared_are_not_tried_again(event) -> None:
    crowd = Crowd()
    crowd.come(0.0, many=9)
    crowd.go(2.0)
    crowd.state.ended(Divided(W1, {1: ALL_ONE, 2: HALVES}), 3.0)
    assert crowd.go(4.0)[0] == Prepare(W2, M, HALVES.plans)
    assert crowd.state.ended(event, 5.0) == []
    assert crowd.go(6.0) == [Start(Ticket(5), TOGETHER)]


def test_groups_that_cannot_be_planned_are_planned_after_a_while() -> None:
    crowd = Crowd()
    crowd.come(0.0, many=9)
    crowd.go(2.0)
    assert crowd.state.ended(WorkFailed(W1, GONE), 3.0) == []
    assert not any(isinstance(each, Divide) for each in crowd.go(4.0))
    assert crowd.go(3.0 + KEEP_S + 1)[0] == Divide(W2, M, TOGETHER.plan)


def test_a_device_that_is_gone_takes_its_groups_with_it() -> None:
    crowd = Crowd()
    now = crowd.divided()
    waiting = crowd.here[-1:]
    assert crowd.state.status(M, now).groups == 2
    assert crowd.state.devices_changed(ALL - {DeviceId("d")}) == []
    assert crowd.state.status(M, now).groups == 1
    started = [each for each in crowd.go(now + 1, many=5) if isinstance(each, Start)]
    assert {each.ticket for each in started} >= set(waiting)
    assert {each.graph for each in started} == {TOGETHER}


def test_devices_that_left_while_groups_were_planned() -> None:
    crowd = Crowd()
    crowd.come(0.0, many=9)
    crowd.go(2.0)
    crowd.state.devices_changed(ALL - {DeviceId("d")})
    crowd.state.ended(Divided(W1, {1: ALL_ONE, 2: HALVES}), 3.0)
    assert crowd.go(4.0) == [Start(Ticket(4), TOGETHER)]


def test_requests_that_wait_for_a_forgotten_model_are_answered_by_its_groups() -> None:
    crowd = Crowd()
    crowd.come(0.0, many=4)
    assert crowd.go(2.0) == [Divide(W1, M, TOGETHER.plan), Start(Ticket(3), TOGETHER)]
    assert crowd.state.forget(M) == [Stop(W1)]
    assert crowd.state.programs() == set()
    assert not crowd.state.is_busy(M)
    assert crowd.go(9.0) == [Start(Ticket(4), TOGETHER)]
    assert crowd.go(9.0, many=2) == []
    assert crowd.state._line_of == {}


@pytest.mark.parametrize(("objective", "groups"), [("latency", 1), ("auto", 1), ("throughput", 2)])
def test_the_objective_decides_for_a_lone_request(objective: Objective, groups: int) -> None:
    """Latency has nothing else planned; throughput takes what answers most, whoever is there."""
    crowd = Crowd(objective)
    crowd.come(0.0, many=2)
    (divide,) = [
        each for each in crowd.go(2.0) + crowd.come(3.0, many=2) if isinstance(each, Divide)
    ]
    found = {1: ALL_ONE} if objective == "latency" else {1: ALL_ONE, 2: HALVES}
    crowd.state.ended(Divided(divide.work, found), 4.0)
    for each in crowd.go(30.0, many=len(crowd.here)) + crowd.come(60.0):
        if isinstance(each, Prepare):
            crowd.state.ended(Prepared(each.work, tuple(map(graph, each.plans))), 61.0)
    assert crowd.state.status(M, 61.0).groups == groups


def test_groupings_of_equal_latency_are_told_apart_by_capacity() -> None:
    crowd = Crowd("throughput")
    crowd.come(0.0, many=4)
    crowd.go(2.0)
    same = replace(HALVES, services=(replace(ALL_ONE.services[0], period_s=2.0),) * 2)
    crowd.state.ended(Divided(W1, {1: ALL_ONE, 2: same}), 3.0)
    assert not any(isinstance(each, Prepare) for each in crowd.go(4.0, many=2))
