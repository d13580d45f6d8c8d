"""More than the cluster can do: a queue with an end, an honest Retry-After, and nothing computed
for those who left.
"""

import asyncio

import httpx
import pytest

from coordinator.serving.common.body import Intake
from protos.errors import BadRequest, Overloaded
from tests.serving.in_place import InPlace, picture
from tests.serving.real import running as running_coordinator
from tests.waiting import until


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
    assert (intake.small.held_bodies, intake.small.held_bytes) == (1, 7)
    left.set()
    await serving
    assert freed.is_set()
    assert (intake.small.held_bodies, intake.small.held_bytes) == (0, 0)


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
        await until(lambda: decoding and real.coordinator.admission.waiting == 2)
        with pytest.raises(Overloaded):
            await real.coordinator.infer(source, feeds)
        assert len(decoding) == 1
        go_on.set()
        ended = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in ended] == [BadRequest] * 3
