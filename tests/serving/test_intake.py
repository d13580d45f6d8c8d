"""Slow and many bodies end with an answer; what is held is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from coordinator.serving.app import create_app
from coordinator.serving.common import body as module
from coordinator.serving.common.body import BODY, GUEST_BYTES, BodyMemory, Intake
from coordinator.serving.common.errors import SlowBody
from coordinator.serving.common.keys import Keys, NoKey, Role
from coordinator.trust.cluster_state import ClusterState
from protos.errors import Unavailable
from tests.serving.in_place import LIMIT_BYTES, InPlace, picture

URL = "/v1/models/tiny/infer"
FLOOR = 1000.0


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(module.Intake.__init__, "__defaults__", (0.05, lambda: None))
    transport = httpx.ASGITransport(create_app(InPlace()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


async def stalled() -> AsyncIterator[bytes]:
    yield b"--x\r\nContent-"
    await asyncio.Event().wait()


@pytest.mark.needs_room("coordinator/serving/deepstack")
@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        (URL, 408, '"code":"slow_body"'),
        ("/v2/models/tiny/infer", 400, '{"error":"the body stopped coming after 13 bytes'),
        ("/v1/vision/detection", 408, '"success":false'),
    ],
)
async def test_a_body_that_stops_coming(
    client: httpx.AsyncClient, path: str, status: int, said: str
) -> None:
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    response = await client.post(path, content=stalled(), headers=form)
    assert (response.status_code, said in response.text) == (status, True), response.text


# ---------------------------------------------------------------- places


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_caller_has_at_most_half_of_the_room() -> None:
    memory = BodyMemory(100, 8, FLOOR, wait_s=0.0)
    for size in (30, 20):
        await memory.reserve("greedy", size)
    with pytest.raises(Unavailable, match="2 bodies with 50 bytes"):
        await memory.reserve("greedy", 1)
    taken = await memory.reserve("other", 50)
    with pytest.raises(Unavailable):
        await memory.reserve("third", 1)
    taken.settle(20)
    await memory.reserve("third", 30)
    small = BodyMemory(1000, 4, FLOOR, wait_s=0.0)
    for _ in range(2):
        await small.reserve("greedy", 1)
    with pytest.raises(Unavailable):
        await small.reserve("greedy", 1)


async def test_body_without_room_waits_for_it() -> None:
    memory = BodyMemory(100, 8, FLOOR, wait_s=30.0)
    first = await memory.reserve("a", 50)
    await memory.reserve("b", 50)
    waiting = asyncio.create_task(memory.reserve("c", 40))
    asyncio.get_running_loop().call_soon(first.free)
    async with asyncio.timeout(60):
        assert (await waiting).size_bytes == 40
    assert memory.held_bytes == 90


async def test_a_slow_sender_is_ended_only_when_somebody_waits_and_no_more_than_needed() -> None:
    clock = Clock()
    memory = BodyMemory(100, 8, FLOOR, wait_s=20.0, clock=clock)
    names = {"a": 0, "b": 900, "c": 2000}  # bytes a second
    reserved = {name: await memory.reserve(name, 33) for name in names}

    def evicted() -> list[str]:
        return [name for name, each in reserved.items() if each.evicted]

    for second in range(12):
        clock.now = float(second)
        for name, rate in names.items():
            reserved[name].come(rate)
    assert evicted() == []  # nobody waits
    waiting = asyncio.create_task(memory.reserve("d", 33))
    async with asyncio.timeout(60):
        while not evicted():
            await asyncio.sleep(0)
    assert evicted() == ["a"]  # the slowest; the other slow one may stay
    reserved["a"].free()
    async with asyncio.timeout(60):
        await waiting


async def test_a_sender_is_not_judged_before_the_window_is_over() -> None:
    clock = Clock()
    memory = BodyMemory(100, 8, FLOOR, wait_s=0.0, clock=clock)
    place = await memory.reserve("a", 100 // 2)
    clock.now = module.WINDOW_S - 0.1
    assert place.bytes_per_s(clock.now) == float("inf")
    clock.now = module.WINDOW_S + 0.1
    assert place.bytes_per_s(clock.now) == 0.0
    place.settle(10)
    assert place.bytes_per_s(clock.now) == float("inf")


# ---------------------------------------------------------------- bodies over HTTP


@dataclass
class Sender:
    """A body that comes as the test says."""

    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece


async def echo(request: Request) -> Response:
    try:
        return PlainTextResponse(str(len(await request.body())))
    except (SlowBody, Unavailable, NoKey) as error:
        return PlainTextResponse(error.code, status_code=400)


async def as_guest(request: Request) -> Response:
    request.scope[BODY].guest = True
    return await echo(request)


@pytest.fixture
def around() -> Intake:
    app = Starlette(
        routes=[Route("/", echo, methods=["POST"]), Route("/guest", as_guest, methods=["POST"])]
    )
    return Intake(app, LIMIT_BYTES, FLOOR)


def to(around: Intake, host: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(around, client=(host, 1)), base_url="http://test"
    )


async def test_slow_senders_of_one_address_hold_nobody_up(around: Intake) -> None:
    """Those of the address itself are ended for its own next body, others wait for nothing."""
    clock = Clock()
    around.large.clock = clock
    dripping = [Sender() for _ in range(2)]
    async with to(around, "10.0.0.1") as flood, to(around, "10.0.0.2") as other:
        slow = [asyncio.create_task(flood.post("/", content=each)) for each in dripping]
        async with asyncio.timeout(60):
            while around.large.held_bodies < 2:
                await asyncio.sleep(0)
            assert (await other.post("/", content=b"12345")).text == "5"
            clock.now = module.WINDOW_S + 0.1
            assert (await flood.post("/", content=b"123")).text == "3"  # a small one has room
            own = Sender()
            own.pieces.put_nowait(b"1234")
            own.pieces.put_nowait(None)
            assert (await flood.post("/", content=own)).text == "4"
            done, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
            assert [each.result().text for each in done] == ["slow_body"]
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    assert (around.large.held_bodies, around.large.held_bytes) == (0, 0)


async def test_a_guest_sends_little_and_takes_no_members_place(
    around: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GUEST_BYTES", 1000)
    sender = Sender()
    async with to(around, "10.0.0.1") as client:
        asking = asyncio.create_task(client.post("/guest", content=sender))
        async with asyncio.timeout(60):
            while not around.guests.held_bodies:
                await asyncio.sleep(0)
            assert (around.large.held_bodies, around.guests.held_bytes) == (0, 1000)
            sender.pieces.put_nowait(bytes(1001))
            assert (await asking).text == "no_key"
    assert around.guests.held_bodies == 0


@pytest.mark.needs_room("coordinator/serving/deepstack")
@pytest.mark.needs_room("coordinator/serving/oip")
async def test_bodies_without_a_key_are_not_read_and_delay_nobody(tmp_path) -> None:
    """Four hold what DeepStack's clients may, with no key: who has one is answered meanwhile."""
    plain = InPlace()
    settings = plain.settings.model_copy(
        update={"state_dir": tmp_path, "max_body_bytes": 4 * GUEST_BYTES}
    )
    key = Keys(ClusterState(tmp_path)).add("camera", Role.INFER)
    app = create_app(InPlace(settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    read = []

    async def watched() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"x"

    form = {"Content-Type": "multipart/form-data; boundary=x"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in (URL, "/v1/plans/tiny", "/v2/models/tiny/infer", "/v2/repository/index"):
            assert (await client.post(path, content=watched())).status_code == 401
        assert read == []
        slow = [
            asyncio.create_task(client.post("/v1/vision/custom/x", content=Sender(), headers=form))
            for _ in range(4)
        ]
        async with asyncio.timeout(60):
            answered = await client.post(URL, content=picture(), headers={"X-API-Key": key})
        assert answered.status_code == 200
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


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


async def test_a_request_without_a_body_ends_with_its_client() -> None:
    ended: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope[BODY].expect_nothing()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    gone = asyncio.Event()

    async def receive() -> Message:
        if not gone.is_set():
            gone.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        raise AssertionError("nobody is there")

    around = Intake(app, 1 << 20, 0.0)
    async with asyncio.timeout(60):
        await around({"type": "http", "headers": []}, receive, send)
    assert ended == ["cancelled"]
