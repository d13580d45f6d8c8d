"""Connections that never become requests: ended, and bounded in number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs

from coordinator.serving import daemon
from coordinator.serving.app import create_app
from coordinator.serving.daemon import HttpConnection
from tests.serving.in_place import InPlace

ALIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
WAIT_S = 30.0


@asynccontextmanager
async def listening(app=None) -> AsyncIterator[int]:
    """A port that answers."""
    config = uvicorn.Config(
        app or create_app(InPlace()), http=HttpConnection, lifespan="off", log_config=None
    )
    config.load()
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: HttpConnection(config, server.server_state, {}, most_of_address=3), "127.0.0.1", 0
    )
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        made.close()
        for each in list(server.server_state.connections):
            each.transport.abort()


async def read(reader: asyncio.StreamReader, until: bytes) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.readuntil(until)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What was still sent before the other side hung up."""
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(daemon, "HEAD_S", 0.1)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("sent", [b"", b"GET / HT", ALIVE[:-2]])
async def test_a_head_that_never_ends_is_hung_up_on(sent) -> None:
    with capture_logs() as logs:
        async with listening() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await ended(reader) == b""
            writer.close()
    assert [each["cause"] for each in logs] == ["no complete request came in time"]


@pytest.mark.usefixtures("hasty")
async def test_a_second_head_is_no_slower_than_the_first() -> None:
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ALIVE)
        assert b" 200 " in await read(reader, b"}")
        writer.write(ALIVE[:7])
        assert await ended(reader) == b""
        writer.close()


@pytest.mark.usefixtures("hasty")
async def test_connection_that_waits_for_an_answer_is_left_alone() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        asked.set()
        await answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with listening(slow) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ALIVE)
        await asked.wait()
        asyncio.get_running_loop().call_later(3 * daemon.HEAD_S, answer.set)
        assert b" 204 " in await read(reader, b"\r\n\r\n")
        writer.close()


async def test_answer_whose_body_never_comes_is_not_seen() -> None:
    async def dying(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        send.__self__.transport.close()

    async with listening(dying) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ALIVE)
        assert await ended(reader) == b""
        writer.close()


async def alive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ALIVE)
    assert b" 200 " in await read(reader, b"}")


async def connected(port: int, own: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(own, 0))


async def test_idle_connection_of_whoever_has_most_goes_at_the_cap(monkeypatch) -> None:
    monkeypatch.setattr(daemon, "MOST_CONNECTIONS", 4)
    async with listening() as port:
        lone = await connected(port, "127.0.0.1")
        await alive(*lone)
        flood = [await connected(port, "127.0.0.2") for _ in range(3)]
        for each in flood:
            await alive(*each)
        more = await connected(port, "127.0.0.3")
        await alive(*more)
        assert await ended(flood[0][0]) == b""
        for each in (lone, more, *flood[1:]):
            await alive(*each)
        for _, writer in (lone, more, *flood):
            writer.close()


async def test_of_one_address_the_idle_one_goes_and_who_is_answered_stays() -> None:
    begun, answer = asyncio.Semaphore(0), asyncio.Event()

    async def slow(scope, receive, send):
        begun.release()
        await answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with listening(slow) as port:
        idle = await connected(port, "127.0.0.2")
        busy = [await connected(port, "127.0.0.2") for _ in range(2)]
        for _, writer in busy:
            writer.write(ALIVE)
            await begun.acquire()
        newer = await connected(port, "127.0.0.2")
        newer[1].write(ALIVE)
        await begun.acquire()
        assert await ended(idle[0]) == b""
        refused = await connected(port, "127.0.0.2")
        assert await ended(refused[0]) == b""
        answer.set()
        for reader, writer in (*busy, newer):
            assert b" 204 " in await read(reader, b"\r\n\r\n")
            writer.close()
        for _, writer in (idle, refused):
            writer.close()


async def test_a_proxy_on_this_device_has_no_limit_of_its_own() -> None:
    async with listening() as port:
        many = [await connected(port, "127.0.0.1") for _ in range(8)]
        for each in many:
            await alive(*each)
            each[1].close()


@pytest.mark.needs_room("coordinator/serving/oip")
async def test_only_a_proxy_on_this_device_says_who_calls() -> None:
    plain = InPlace()
    settings = plain.settings.model_copy(update={"rate_per_s": 0.001})  # one request each
    async with listening(create_app(replace(plain, settings=settings))) as port:

        async def asks(own: str, named: str) -> int:
            transport = httpx.AsyncHTTPTransport(local_address=own)
            async with httpx.AsyncClient(transport=transport) as client:
                headers = {"X-Forwarded-For": named}
                return (
                    await client.get(f"http://127.0.0.1:{port}/v2", headers=headers)
                ).status_code

        by_proxy = [await asks("127.0.0.1", f"192.168.1.{each}") for each in (7, 7, 8)]
        assert by_proxy == [HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.OK]
        elsewhere = [await asks("127.0.0.2", f"192.168.1.{each}") for each in (9, 10)]
        assert elsewhere == [HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS]
