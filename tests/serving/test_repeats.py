"""Requests that are sent again by the same id: computed once, and only for whoever asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import Request, Response

from coordinator.serving.app import create_app
from coordinator.serving.common import repeats as module
from coordinator.serving.common.body import BODY, Body, Intake
from coordinator.serving.common.keys import Keys, Role
from coordinator.serving.common.names import ID_HEADER
from coordinator.serving.common.repeats import ENTRY_BYTES, KEPT_BYTES, LARGEST_BYTES, Repeats
from coordinator.settings import CoordinatorSettings
from coordinator.trust.cluster_state import ClusterState
from imbrex.client import AsyncClient
from protos.errors import Unavailable
from tests.serving.in_place import InPlace, picture
from tests.waiting import until

URL = "/v1/models/tiny/infer"
KEY = "9f1c2f0e-7a51-4d0c"


class Counting(InPlace):
    """Counts what is computed, each only when `go` is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.computed = self.cancelled = 0
        self.go = asyncio.Event()
        self.go.set()

    @asynccontextmanager
    async def answering(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        self.computed += 1
        named["request_id"] = f"request-{self.computed}"
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        async with super().answering(*arguments, **named) as answer:
            yield answer


@pytest.fixture
async def coordinator(tmp_path: Path) -> Counting:
    settings = CoordinatorSettings(
        state_dir=tmp_path, models=("tiny",), host_names=("test",), rate_per_s=0
    )
    return Counting(settings)


@pytest.fixture
async def client(coordinator: Counting) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(coordinator), raise_app_exceptions=False)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


def asked(client: httpx.AsyncClient, key: str = KEY, **changes: Any) -> Any:
    headers = {"Content-Type": "image/png", "Idempotency-Key": key} | changes.pop("headers", {})
    given: dict[str, Any] = {"content": picture(), "headers": headers} | changes
    return client.post(given.pop("url", URL), **given)


async def test_repeated_request_joins_the_first_or_gets_its_kept_answer(
    client: httpx.AsyncClient, coordinator: Counting
) -> None:
    coordinator.go.clear()
    both = [asyncio.ensure_future(asked(client)) for _ in range(2)]
    await until(lambda: coordinator.computed)
    await asyncio.sleep(0.05)
    coordinator.go.set()
    answers = [*await asyncio.gather(*both), await asked(client)]
    assert {each.status_code for each in answers} == {200}
    assert len({each.json()["request_id"] for each in answers}) == 1
    assert len({each.content for each in answers}) == 1
    assert coordinator.computed == 1
    other = await asked(client, key="another-id")
    assert other.json()["request_id"] != answers[0].json()["request_id"]
    for _ in range(2):
        await client.post(URL, content=picture(), headers={"Content-Type": "image/png"})
    assert coordinator.computed == 4


@pytest.mark.needs_room("coordinator/serving/oip")
async def test_the_inference_protocol_has_it_too(
    client: httpx.AsyncClient, coordinator: Counting
) -> None:
    graph = coordinator.network.graph
    (name,) = graph.inputs
    shape = list(graph.shape(name))
    tensor = {"name": name, "datatype": "FP32", "shape": shape}
    body = {"inputs": [{**tensor, "data": np.zeros(shape).ravel().tolist()}]}
    url = "/v2/models/tiny/infer"
    for _ in range(2):
        answer = await client.post(url, json=body, headers={"Idempotency-Key": KEY})
        assert answer.status_code == 200, answer.text
    assert coordinator.computed == 1
    body["inputs"][0]["data"][0] = 1.0
    refused = await client.post(url, json=body, headers={"Idempotency-Key": KEY})
    assert (refused.status_code, "another request" in refused.json()["error"]) == (409, True)


@pytest.mark.parametrize(
    "change",
    [
        {"content": picture() + b"\0"},
        {"params": {"min_score": "0.5"}},
        {"headers": {"Accept": "image/png"}},
        {"headers": {"Content-Type": "image/jpeg"}},
    ],
)
async def test_different_request_with_the_same_id_is_refused(
    client: httpx.AsyncClient, coordinator: Counting, change: dict[str, Any]
) -> None:
    assert (await asked(client)).status_code == 200
    refused = await asked(client, **change)
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert error["code"] == "id_reused"
    assert "UUID" in error["cure"]
    assert coordinator.computed == 1


@pytest.mark.parametrize(
    "key", ["", "short", "x" * 65, "with a space", "semi;colon", '"quoted-id"', "nul\tnul\tnul"]
)
async def test_malformed_id_is_refused(
    client: httpx.AsyncClient, coordinator: Counting, key: str
) -> None:
    refused = await asked(client, key=key)
    assert (refused.status_code, "is not an id" in refused.json()["error"]["cause"]) == (400, True)
    assert coordinator.computed == 0


async def test_answer_is_not_given_to_another_caller(
    client: httpx.AsyncClient, coordinator: Counting
) -> None:
    keys = Keys(ClusterState(coordinator.settings.state_dir))
    ours, theirs = (keys.add(name, Role.INFER) for name in ("us", "them"))
    first = await asked(client, headers={"X-API-Key": ours})
    second = await asked(client, headers={"X-API-Key": theirs}, content=picture(41))
    assert (first.status_code, second.status_code, coordinator.computed) == (200, 200, 2)
    assert (await asked(client)).status_code == 401
    assert (await asked(client, headers={"X-API-Key": ours})).content == first.content
    assert coordinator.computed == 2


async def test_an_error_is_told_to_all_who_wait_and_then_forgotten(
    client: httpx.AsyncClient, coordinator: Counting
) -> None:
    coordinator.go.clear()
    coordinator.fails_with = Unavailable(cause="no worker is left", cure="Wait")
    both = [asyncio.ensure_future(asked(client)) for _ in range(2)]
    await until(lambda: coordinator.computed)
    await asyncio.sleep(0.05)
    coordinator.go.set()
    assert {each.status_code for each in await asyncio.gather(*both)} == {503}
    coordinator.fails_with = None
    assert (await asked(client)).status_code == 200
    assert coordinator.computed == 2


async def test_lost_client_may_come_back_for_the_answer(
    client: httpx.AsyncClient, coordinator: Counting
) -> None:
    coordinator.go.clear()
    gone = asyncio.ensure_future(asked(client))
    await until(lambda: coordinator.computed)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    back = asyncio.ensure_future(asked(client))
    await asyncio.sleep(0.05)
    coordinator.go.set()
    assert (await back).status_code == 200
    assert (coordinator.computed, coordinator.cancelled) == (1, 0)


async def test_requests_of_lost_clients_are_limited(
    client: httpx.AsyncClient, coordinator: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ALONE", 1)
    coordinator.go.clear()
    asking = [asyncio.ensure_future(asked(client, key=f"request-{n}")) for n in range(3)]
    await until(lambda: coordinator.computed == 3)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await until(lambda: coordinator.cancelled == 2)
    coordinator.go.set()


async def test_a_large_body_ends_with_its_connection(
    client: httpx.AsyncClient, coordinator: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALONE_BYTES", 10)
    coordinator.go.clear()
    gone = asyncio.ensure_future(asked(client))
    await until(lambda: coordinator.computed)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await until(lambda: coordinator.cancelled == 1)
    coordinator.go.set()
    assert (await asked(client)).status_code == 200
    assert coordinator.computed == 2


async def test_answers_are_kept_for_a_while_and_within_a_limit(
    coordinator: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(coordinator)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        app.state.repeats = Repeats(kept_s=0.05)
        for _ in range(2):
            await asked(client)
            await until(lambda: not app.state.repeats)
        assert coordinator.computed == 2
        assert app.state.repeats.held_bytes == 0

        size = len((await asked(client)).content) + ENTRY_BYTES
        app.state.repeats = Repeats(kept_bytes=2 * size + ENTRY_BYTES)
        coordinator.computed = 0
        for number in (1, 2, 3, 3, 2, 1):  # the oldest has left when it is asked for again
            await asked(client, key=f"request-{number}")
            assert app.state.repeats.held_bytes <= 2 * size + ENTRY_BYTES
        assert coordinator.computed == 4
    assert 2 * LARGEST_BYTES <= KEPT_BYTES


async def test_our_client_sends_the_same_id_again_and_another_one_for_another_request() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Idempotency-Key", ""))
        if len(seen) == 3:
            raise httpx.ReadError("the machine is gone")
        if request.method == "GET":
            return httpx.Response(200, json={"status": "ok", "version": "1"})
        return httpx.Response(200, content=json.dumps(ANSWER))

    async with AsyncClient("http://test") as client:
        client._http = httpx.AsyncClient(
            base_url="http://test", transport=httpx.MockTransport(answer)
        )
        await client.version()
        for _ in range(2):
            await client.infer("tiny", picture())
    assert seen[0] == ""
    first, second, again = seen[1:]
    assert second == again
    assert len({first, second}) == 2


ANSWER = {
    "request_id": "3f9c2e81a7b4",
    "model": "tiny",
    "task": "classification",
    "timing_ms": dict.fromkeys(("queue", "decode", "scatter", "compute", "gather", "total"), 1.0),
    "plan_version": 1,
    "devices": [],
    "bytes": {"scatter": 0, "gather": 0, "halo": 0},
    "predictions": [],
}


async def test_answers_that_end_together_leave_no_bytes_behind() -> None:
    """Some make room for others before they were counted themselves."""
    repeats, goes = Repeats(0.1, 3 * ENTRY_BYTES), [asyncio.Event() for _ in range(20)]

    async def compute(go: asyncio.Event) -> Response:
        await go.wait()
        return Response(b"answer")

    intake = Intake(None, 1 << 20, 0.0)  # type: ignore[arg-type]
    headers = [(b"host", b"test"), (ID_HEADER.lower().encode(), b"request")]
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/", "headers": headers}

    def asked() -> Request:
        own = {**scope, "query_string": b"", "root_path": ""}
        return Request({**own, BODY: Body(intake, own, None)})  # type: ignore[arg-type]

    waiting = [
        asyncio.create_task(repeats.once(asked(), f"request-{number}", partial(compute, go)))
        for number, go in enumerate(goes)
    ]
    await until(lambda: len(repeats) == len(goes))
    await asyncio.sleep(0.01)
    for go in reversed(goes):
        go.set()
    await asyncio.gather(*waiting)
    await until(lambda: not repeats)
    assert repeats.held_bytes == 0
