"""More than the cluster can do: a queue with an end, an honest Retry-After, and nothing computed
for those who left.
"""

import asyncio

import httpx
import pytest

from coordinator.control.admission import Admission, Throughput
from coordinator.serving.common.intake import Intake
from protos.errors import BadRequest, Overloaded
from tests.serving.in_place import InPlace, picture
from tests.serving.real import running as running_coordinator
from tests.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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


async def hold(admission: Admission, until_set: asyncio.Event) -> None:
    async with admission:
        await until_set.wait()


async def admitted(admission: Admission, clock: Clock, seconds: float) -> None:
    async with admission:
        clock.now += seconds


async def test_a_queue_ends_by_length_and_by_predicted_wait() -> None:
    clock = Clock()
    admission = Admission(in_flight=2, queue=5, most_wait_s=10.0, clock=clock)
    assert admission.wait_s == 0
    for _ in range(3):
        await admitted(admission, clock, 4.0)  # one per four seconds
    done = asyncio.Event()
    waiting = [asyncio.create_task(hold(admission, done)) for _ in range(4)]
    await until(lambda: admission.waiting == 2)
    assert admission.wait_s == pytest.approx(12.0)
    with pytest.raises(Overloaded, match="2 requests are waiting") as refused:
        await hold(admission, done)
    assert refused.value.retry_after_s == pytest.approx(4.0)
    with pytest.raises(Overloaded) as second:  # the first one has been promised the next place
        await hold(admission, done)
    assert second.value.retry_after_s == pytest.approx(8.0)
    done.set()
    await asyncio.gather(*waiting)
    fresh = Admission(in_flight=1, queue=1, most_wait_s=10.0, clock=clock)  # nothing known yet
    done.clear()
    waiting = [asyncio.create_task(hold(fresh, done)) for _ in range(2)]
    await until(lambda: fresh.waiting == 1)
    with pytest.raises(Overloaded):
        await hold(fresh, done)
    done.set()
    await asyncio.gather(*waiting)


async def test_who_comes_back_when_told_is_let_in_though_many_were_told_so() -> None:
    clock, done = Clock(), asyncio.Event()
    admission = Admission(in_flight=1, queue=4, most_wait_s=10.0, clock=clock)
    for _ in range(3):
        await admitted(admission, clock, 0.1)
    first = [asyncio.create_task(hold(admission, done)) for _ in range(5)]
    await until(lambda: admission.waiting == 4)
    told = []
    for _ in range(8):
        with pytest.raises(Overloaded) as refused:
            await hold(admission, done)
        told.append(refused.value.retry_after_s)
    assert told == pytest.approx([0.1 * place for place in range(1, 9)])
    done.set()
    await asyncio.gather(*first)
    clock.now += 1.0  # all were told one second, rounded up
    done.clear()
    back = [asyncio.create_task(hold(admission, done)) for _ in range(5)]
    await until(lambda: admission.running + admission.waiting == 5)
    done.set()
    await asyncio.gather(*back)


async def test_failures_say_nothing_of_the_speed() -> None:
    clock = Clock()
    admission = Admission(in_flight=1, queue=5, most_wait_s=10.0, clock=clock)
    await admitted(admission, clock, 4.0)

    async def fails() -> None:
        async with admission:
            raise Overloaded(cause="no", cure="no", retry_after_s=0)

    with pytest.raises(Overloaded):
        await fails()
    done = asyncio.Event()
    waiting = asyncio.create_task(hold(admission, done))
    await until(lambda: admission.running)
    assert admission.wait_s == pytest.approx(4.0)
    done.set()
    await waiting


async def test_the_answer_says_when_to_come_back(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    coordinator.fails_with = Overloaded(cause="full", cure="Wait.", retry_after_s=6.2)
    answer = await http.post(
        "/v1/models/tiny/infer", content=picture(), headers={"content-type": "image/png"}
    )
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "7"
    assert answer.json()["error"]["code"] == "overloaded"


async def test_a_sender_that_goes_away_frees_what_is_computed_for_it() -> None:
    begun, freed, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def computes(scope, receive, send) -> None:
        assert (await receive())["body"] == b"picture"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            freed.set()

    messages = [{"type": "http.request", "body": b"picture"}]

    async def receive():
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message) -> None:
        raise AssertionError("nobody reads this")

    intake = Intake(computes, 1000, 0.0)
    scope = {"type": "http", "headers": [(b"content-length", b"7")]}
    serving = asyncio.create_task(intake(scope, receive, send))
    await begun.wait()
    assert (intake.small.taken, intake.small.held_bytes) == (1, 7)
    left.set()
    await serving
    assert freed.is_set()
    assert (intake.small.taken, intake.small.held_bytes) == (0, 0)


async def test_who_has_waited_as_long_as_anybody_may_is_told_so() -> None:
    """Nothing was known of the speed when it came."""
    admission, done = Admission(in_flight=1, queue=5, most_wait_s=0.05), asyncio.Event()
    running = asyncio.create_task(hold(admission, done))
    await until(lambda: admission.running)
    with pytest.raises(Overloaded):
        await hold(admission, done)
    assert admission.waiting == 0
    done.set()
    await running


async def test_a_picture_takes_its_place_before_it_is_decoded(tmp_path, workers, model) -> None:
    """Beyond the queue's end nothing is decoded, however slow decoding is."""
    decoding, go_on = [], asyncio.Event()

    async def feeds():
        decoding.append(1)
        await go_on.wait()
        raise BadRequest(cause="no picture", cure="Send one")

    settings = {"max_in_flight": 1, "max_queue": 2}
    async with running_coordinator(tmp_path, workers, model, **settings) as real:
        source = real.coordinator.names.source("tiny")
        asked = [asyncio.create_task(real.coordinator.infer(source, feeds)) for _ in range(3)]
        await until(lambda: decoding and real.coordinator.queue_depth == 2)
        with pytest.raises(Overloaded):
            await real.coordinator.infer(source, feeds)
        assert len(decoding) == 1
        go_on.set()
        ended = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in ended] == [BadRequest] * 3
