"""Who gets a place, who waits for one, and when the others are told to come back."""

from math import inf

import pytest

from coordinator.control.actions import Action, Refuse, Start
from coordinator.control.admission import Admission, Throughput
from coordinator.control.events import Arrived, Left, Tick, Ticket
from protos.errors import Overloaded


def tickets(*numbers: int) -> list[Ticket]:
    return [Ticket(number) for number in numbers]


def arrive(state: Admission, now: float, *numbers: int) -> list[Action]:
    return [action for each in tickets(*numbers) for action in state.step(Arrived(each), now)]


def told_s(state: Admission, now: float) -> float:
    """When one too many is told to come back."""
    waiting = f"{state.waiting} requests are already waiting"
    with pytest.raises(Overloaded, match=waiting) as refused:
        state.step(Arrived(Ticket(999)), now)
    return refused.value.retry_after_s


def answered(state: Admission, now: float, seconds: float, times: int) -> float:
    """So many are answered one after the other; the time then."""
    for each in tickets(*range(100, 100 + times)):
        assert state.step(Arrived(each), now) == [Start(each)]
        now += seconds
        assert state.step(Left(each, answered=True), now) == []
    return now


def test_throughput_is_how_often_requests_end_while_busy() -> None:
    seen = Throughput()
    seen.busy(100.0)
    for moment in (102.0, 104.0, 106.0):
        seen.ended(moment, 1)
    assert seen.interval_s == pytest.approx(2.0)
    seen.busy(500.0)  # a pause is not slowness
    seen.ended(502.0, 1)
    assert seen.interval_s == pytest.approx(2.0)
    for moment in range(503, 520):
        seen.ended(float(moment), 1)
    assert seen.interval_s == pytest.approx(1.0, abs=0.01)


def test_many_that_begin_at_once_share_what_the_first_one_takes() -> None:
    seen = Throughput()
    seen.busy(0.0)
    for moment, in_flight in ((8.0, 8), (9.0, 8), (10.0, 8)):
        seen.ended(moment, in_flight)
    assert seen.interval_s == pytest.approx(1.0)


def test_first_come_first_served() -> None:
    state = Admission(in_flight=2, queue=5, most_wait_s=10.0)
    one, two, three, four = tickets(1, 2, 3, 4)
    assert arrive(state, 0.0, 1, 2, 3, 4) == [Start(one), Start(two)]
    assert (state.running, state.waiting) == (2, 2)
    assert state.step(Left(two, answered=True), 1.0) == [Start(three)]
    assert state.step(Left(four), 1.0) == []  # it does not wait any longer
    assert state.step(Left(one, answered=True), 1.0) == []
    assert (state.running, state.waiting, state.due_s) == (1, 0, inf)


def test_a_queue_ends_by_length_and_by_predicted_wait() -> None:
    state = Admission(in_flight=2, queue=5, most_wait_s=10.0)
    assert state.wait_s == 0
    now = answered(state, 0.0, 4.0, times=3)  # one per four seconds
    assert len(arrive(state, now, 1, 2, 3, 4)) == 2
    assert state.wait_s == pytest.approx(12.0)
    assert told_s(state, now) == pytest.approx(4.0)
    assert told_s(state, now) == pytest.approx(8.0)  # the next place has been promised
    fresh = Admission(in_flight=1, queue=1, most_wait_s=10.0)  # nothing known yet
    arrive(fresh, now, 1, 2)
    told_s(fresh, now)


def test_who_comes_back_when_told_is_let_in_though_many_were_told_so() -> None:
    state = Admission(in_flight=1, queue=4, most_wait_s=10.0)
    now = answered(state, 0.0, 0.1, times=3)
    arrive(state, now, *range(5))
    told = [told_s(state, now) for _ in range(8)]
    assert told == pytest.approx([0.1 * place for place in range(1, 9)])
    for each in tickets(*range(5)):
        state.step(Left(each, answered=True), now)
    # All were told one second, rounded up.
    arrive(state, now + 1.0, *range(5))
    assert (state.running, state.waiting) == (1, 4)


def test_failures_say_nothing_of_the_speed() -> None:
    state = Admission(in_flight=1, queue=5, most_wait_s=10.0)
    now = answered(state, 0.0, 4.0, times=1)
    arrive(state, now, 1)
    state.step(Left(Ticket(1)), now + 0.01)
    arrive(state, now + 1.0, 2)
    assert state.wait_s == pytest.approx(4.0)


def test_who_has_waited_as_long_as_anybody_may_is_told_so() -> None:
    """Nothing was known of the speed when it came."""
    state = Admission(in_flight=1, queue=5, most_wait_s=3.0)
    arrive(state, 0.0, 1)
    arrive(state, 1.0, 2)
    assert state.due_s == 4.0
    assert state.step(Tick(), 3.9) == []
    (refused,) = state.step(Tick(), 4.0)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, refused.error.code) == (Ticket(2), "overloaded")
    assert (state.waiting, state.running) == (0, 1)


def test_whoever_wants_to_be_alone_waits_its_turn_and_keeps_the_others_out() -> None:
    state = Admission(in_flight=2, queue=5, most_wait_s=3.0)
    one, alone, three, also = tickets(1, 2, 3, 4)
    arrive(state, 0.0, 1)
    assert state.step(Arrived(alone, alone=True), 0.0) == []
    assert arrive(state, 0.0, 3) == []
    assert state.step(Arrived(also, alone=True), 0.0) == []
    assert (state.waiting, state.due_s) == (3, 3.0)
    assert state.step(Left(one, answered=True), 1.0) == [Start(alone)]
    assert state.running == 1
    assert state.step(Left(alone, answered=True), 2.0) == [Start(three)]
    assert state.step(Left(also), 2.0) == []
    assert state.step(Left(three), 2.0) == []
    assert arrive(state, 2.0, 5) == [Start(Ticket(5))]
