"""Slow and many bodies end with an answer; what is held is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from coordinator.serving.app import create_app
from coordinator.serving.intake import BODIES_HELD, Intake
from protos.errors import Unavailable
from tests.serving.in_place import LIMIT_BYTES, InPlace, picture

URL = "/v1/models/tiny/infer"


@pytest.fixture
def intake() -> Intake:
    return Intake(create_app(InPlace()), LIMIT_BYTES, idle_s=0.05)


@pytest.fixture
async def client(intake: Intake) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(intake, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


async def stalled() -> AsyncIterator[bytes]:
    yield b"the beginning"
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        (URL, 408, '"code":"slow_body"'),
        ("/v2/models/tiny/infer", 400, '{"error":"the body stopped coming after 13 bytes'),
        ("/v1/vision/detection", 408, '"success":false'),
    ],
)
async def test_a_body_that_stops_coming(
    client: httpx.AsyncClient, intake: Intake, path: str, status: int, said: str
) -> None:
    response = await client.post(path, content=stalled())
    assert (response.status_code, said in response.text) == (status, True), response.text
    assert (intake.open, intake.held_bytes) == (0, 0)


async def test_bodies_that_are_held_have_a_cap(client: httpx.AsyncClient, intake: Intake) -> None:
    intake.take(BODIES_HELD * LIMIT_BYTES)
    refused = await client.post(URL, content=picture())
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    intake.take(-BODIES_HELD * LIMIT_BYTES)
    assert (await client.post(URL, content=picture())).status_code == 200
    assert intake.held_bytes == 0


async def test_of_many_bodies_at_once_those_are_taken_that_there_is_room_for() -> None:
    """Each is a quarter of the room and comes in halves, all first halves first."""
    size = BODIES_HELD * LIMIT_BYTES // 4
    seconds = asyncio.Event()
    taken = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.append(await Request(scope, receive).body())

    intake = Intake(app, LIMIT_BYTES)

    async def post() -> None:
        pieces = [
            {"type": "http.request", "body": bytes(size // 2), "more_body": True},
            {"type": "http.request", "body": bytes(size - size // 2)},
        ]

        async def receive() -> Message:
            if len(pieces) < 2:
                await seconds.wait()
            return pieces.pop(0) if pieces else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            raise AssertionError("nothing is sent")

        headers = [(b"content-length", str(size).encode())]
        await intake({"type": "http", "headers": headers}, receive, send)

    asyncio.get_running_loop().call_later(0.1, seconds.set)
    async with asyncio.timeout(10):
        ended = await asyncio.gather(*(post() for _ in range(8)), return_exceptions=True)
    assert [type(each) for each in ended] == [type(None)] * 4 + [Unavailable] * 4
    assert [len(body) for body in taken] == [size] * 4
    assert intake.held_bytes == 0


async def test_several_pictures_in_one_call(client: httpx.AsyncClient) -> None:
    files = [("image", (f"{n}.png", picture(20 + n, 30))) for n in range(3)]
    answers = (await client.post(URL, files=files)).json()["answers"]
    alone = [(await client.post(URL, content=file[1][1])).json() for file in files]
    assert [each["predictions"] for each in answers] == [each["predictions"] for each in alone]
    drawn = await client.post(URL, files=files, headers={"Accept": "image/png"})
    assert (drawn.status_code, drawn.json()["error"]["code"]) == (406, "not_acceptable")
    files[1] = ("image", ("bad.png", b"no picture"))
    assert (await client.post(URL, files=files)).json()["error"]["code"] == "bad_image"


async def test_the_annotated_picture_as_jpeg(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, content=picture(), headers={"Accept": "image/jpeg"})
    assert response.headers["Content-Type"] == "image/jpeg"
    assert response.content.startswith(b"\xff\xd8")
