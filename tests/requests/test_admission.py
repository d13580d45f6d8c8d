"""Who gets a place, who waits for one, and when the others are told to come back."""

import asyncio
import time

import pytest

from coordinator.requests.admission import Admission, AdmissionQueue, PlaceTicket, Throughput
from protos.errors import Overloaded
from tests.waiting import until


def tickets(*numbers: int) -> list[PlaceTicket]:
    return [PlaceTicket(number) for number in numbers]


def arrive(state: AdmissionQueue, now: float, *numbers: int) -> list[PlaceTicket]:
    return [ticket for each in tickets(*numbers) for ticket in state.arrive(each, now)]


def told_s(state: AdmissionQueue, now: float) -> float:
    """When one too many is told to come back."""
    waiting = f"{state.waiting} requests are already waiting"
    with pytest.raises(Overloaded, match=waiting) as refused:
        state.arrive(PlaceTicket(999), now)
    return refused.value.retry_after_s


def answered(state: AdmissionQueue, now: float, seconds: float, times: int) -> float:
    """So many are answered one after the other; the time then."""
    for each in tickets(*range(100, 100 + times)):
        assert state.arrive(each, now) == [each]
        now += seconds
        assert state.leave(each, now, answered=True) == []
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


def test_requests_that_begin_at_once_share_the_time_of_the_first() -> None:
    seen = Throughput()
    seen.busy(0.0)
    for moment, in_flight in ((8.0, 8), (9.0, 8), (10.0, 8)):
        seen.ended(moment, in_flight)
    assert seen.interval_s == pytest.approx(1.0)


def test_requests_are_admitted_in_order_of_arrival() -> None:
    state = AdmissionQueue(in_flight=2, queue=5, most_wait_s=10.0)
    one, two, three, four = tickets(1, 2, 3, 4)
    assert arrive(state, 0.0, 1, 2, 3, 4) == [one, two]
    assert (len(state.running), state.waiting) == (2, 2)
    assert state.leave(two, 1.0, answered=True) == [three]
    assert state.leave(four, 1.0) == []  # it does not wait any longer
    assert state.leave(one, 1.0, answered=True) == []
    assert (len(state.running), state.waiting) == (1, 0)


def test_a_queue_ends_by_length_and_by_predicted_wait() -> None:
    state = AdmissionQueue(in_flight=2, queue=5, most_wait_s=10.0)
    assert state.wait_s == 0
    now = answered(state, 0.0, 4.0, times=3)  # one per four seconds
    assert len(arrive(state, now, 1, 2, 3, 4)) == 2
    assert state.wait_s == pytest.approx(12.0)
    assert told_s(state, now) == pytest.approx(4.0)
    assert told_s(state, now) == pytest.approx(8.0)  # the next place has been promised
    fresh = AdmissionQueue(in_flight=1, queue=1, most_wait_s=10.0)  # nothing known yet
    arrive(fresh, now, 1, 2)
    told_s(fresh, now)


def test_client_that_returns_on_time_is_admitted() -> None:
    state = AdmissionQueue(in_flight=1, queue=4, most_wait_s=10.0)
    now = answered(state, 0.0, 0.1, times=3)
    arrive(state, now, *range(5))
    told = [told_s(state, now) for _ in range(8)]
    assert told == pytest.approx([0.1 * place for place in range(1, 9)])
    for each in tickets(*range(5)):
        state.leave(each, now, answered=True)
    # All were told one second, rounded up.
    arrive(state, now + 1.0, *range(5))
    assert (len(state.running), state.waiting) == (1, 4)


def test_failures_say_nothing_of_the_speed() -> None:
    state = AdmissionQueue(in_flight=1, queue=5, most_wait_s=10.0)
    now = answered(state, 0.0, 4.0, times=1)
    arrive(state, now, 1)
    state.leave(PlaceTicket(1), now + 0.01)
    arrive(state, now + 1.0, 2)
    assert state.wait_s == pytest.approx(4.0)


def test_request_that_waited_for_too_long_is_refused() -> None:
    """Nothing was known of the speed when it came."""
    state = AdmissionQueue(in_flight=1, queue=5, most_wait_s=3.0)
    arrive(state, 0.0, 1)
    arrive(state, 1.0, 2)
    assert state.waits_until_s(PlaceTicket(1)) is None
    assert state.waits_until_s(PlaceTicket(2)) == 4.0
    assert state.expire(PlaceTicket(2), 4.0).code == "overloaded"
    assert (state.waiting, len(state.running)) == (0, 1)


def test_lone_request_waits_its_turn_and_keeps_the_others_out() -> None:
    state = AdmissionQueue(in_flight=2, queue=5, most_wait_s=3.0)
    one, alone, three, also = tickets(1, 2, 3, 4)
    arrive(state, 0.0, 1)
    assert state.arrive(alone, 0.0, alone=True) == []
    assert arrive(state, 0.0, 3) == []
    assert state.arrive(also, 0.0, alone=True) == []
    assert (state.waiting, state.waits_until_s(three)) == (3, 3.0)
    assert state.leave(one, 1.0, answered=True) == [alone]
    assert len(state.running) == 1
    assert state.leave(alone, 2.0, answered=True) == [three]
    assert state.leave(also, 2.0) == []
    assert state.leave(three, 2.0) == []
    assert arrive(state, 2.0, 5) == [PlaceTicket(5)]


async def test_a_pause_between_two_requests_is_enough_for_who_waits_for_one() -> None:
    admission = Admission(1, 1, 0.05)
    had = asyncio.Event()

    async def ask() -> None:
        while not had.is_set():
            async with admission.place():
                await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    await until(lambda: admission.running)
    async with asyncio.timeout(60):
        await admission.idle()
        had.set()
        await asking


async def test_cancelled_request_leaves_its_place_in_the_queue() -> None:
    admission = Admission(1, 1, 0.05)

    async def ask() -> None:
        async with admission.place():
            raise AssertionError("somebody else has the place")

    async with admission.place():
        waiting = asyncio.create_task(ask())
        await until(lambda: admission.waiting)
        with pytest.raises(Overloaded):
            await ask()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert admission.waiting == 0
        # And who waits for too long is told so, though nobody steps for it.
        with pytest.raises(Overloaded):
            await ask()
    assert admission.running == 0


async def test_wait_for_idleness_ends_though_requests_always_overlap() -> None:
    had = asyncio.Event()
    admission = Admission(2, 4, 120.0)

    async def ask() -> None:
        while not had.is_set():
            async with admission.place():
                await asyncio.sleep(0.02)

    async def shifted() -> None:
        await asyncio.sleep(0.01)
        await ask()

    asking = [asyncio.create_task(ask()), asyncio.create_task(shifted())]
    await until(lambda: admission.running == 2)
    async with asyncio.timeout(60):
        await admission.idle(0.1)
        had.set()
        await asyncio.gather(*asking)


async def test_a_request_that_is_cancelled_as_it_is_admitted_gives_its_place_back() -> None:
    admission = Admission(1, 1, 60.0)

    async def ask() -> None:
        async with admission.place():
            raise AssertionError("it was cancelled")

    async with admission.place():
        waiting = asyncio.create_task(ask())
        await until(lambda: admission.waiting)
        waiting.cancel()
    assert admission.running == 1
    await asyncio.gather(waiting, return_exceptions=True)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_request_that_is_admitted_as_its_time_runs_out_keeps_its_place() -> None:
    admission, entered = Admission(1, 1, 0.05), list[bool]()
    place = admission.place()
    await place.__aenter__()

    async def ask() -> None:
        async with admission.place():
            entered.append(True)

    def release() -> None:
        with pytest.raises(StopIteration):
            place.__aexit__(None, None, None).send(None)

    waiting = asyncio.create_task(ask())
    await until(lambda: admission.waiting)
    asyncio.get_running_loop().call_later(0.06, release)
    time.sleep(0.1)  # noqa: ASYNC251 - both timers are due now, one after the other
    await waiting
    assert (entered, admission.running, admission.waiting) == ([True], 0, 0)
