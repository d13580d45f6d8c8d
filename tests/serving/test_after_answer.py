"""Nothing is learnt from a request before its answer has been sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest

from coordinator.devices import children
from coordinator.measuring import after_answer
from coordinator.plans.plans import TookOver
from coordinator.requests.journal import RequestRecord
from coordinator.serving.app import create_app
from coordinator.serving.common.tensors import write_tensors
from protos.errors import NotFiniteAnswer
from tests.serving.real import Real, running
from tests.waiting import until

URL = "/v1/models/tiny/infer"
NPZ = {"content-type": "application/x-npz"}
IMAGE = {"image": np.zeros((1, 3, 64, 64), np.float32)}


@pytest.fixture
async def real(tmp_path: Path, workers: list[children.Child], model: Path):
    async with running(tmp_path, workers, model) as made:
        yield made


async def test_the_answer_is_sent_before_the_journal_is_told(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_answer, "SETTLE_AFTER_S", 60.0)
    app, happened = create_app(real.coordinator), []

    def heard(entry: RequestRecord | TookOver) -> None:
        if isinstance(entry, RequestRecord):
            happened.append("learnt")

    async def noted(scope, receive, send) -> None:
        async def sent(message) -> None:
            # What the event loop has to do meanwhile comes before an answer that is slow to leave.
            await asyncio.sleep(0.02)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                happened.append("sent")
            await send(message)

        await app(scope, receive, sent)

    real.coordinator.journal.listen(heard)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(noted), base_url="http://test"
    ) as http:
        for _ in range(3):
            answer = await http.post(URL, content=write_tensors(IMAGE), headers=NPZ)
            assert answer.is_success
    assert happened == 3 * ["sent", "learnt"]


async def test_journal_is_told_soon_by_other_callers_and_at_once_by_a_trace(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, journal = real.coordinator.settings.models[0], real.coordinator.journal
    answer = await real.coordinator.infer(source, IMAGE)
    assert journal.latest == ()
    await until(lambda: [each.request_id for each in journal.latest] == [answer.request_id])
    answer = await real.coordinator.infer(source, IMAGE)
    assert real.coordinator.trace(answer.request_id)["traceEvents"]
    monkeypatch.setattr(after_answer, "SETTLE_AFTER_S", 60.0)
    monkeypatch.setattr(after_answer, "MOST_UNSETTLED", 2)
    for _ in range(3):
        await real.coordinator.infer(source, IMAGE)
    assert len(journal.latest) == 2 + 3


async def test_an_answer_is_learnt_from_when_it_has_been_read(real: Real) -> None:
    heard: list[str] = []
    real.coordinator.journal.listen(lambda entry: heard.append(entry.outcome))
    answering = real.coordinator.answering(real.coordinator.settings.models[0], IMAGE)
    await answering.__aenter__()
    real.coordinator.settle()
    assert heard == []
    unread = NotFiniteAnswer(cause="it has NaN", cure="Use another model")
    assert not await answering.__aexit__(NotFiniteAnswer, unread, None)
    real.coordinator.settle()
    assert heard == ["not_finite_answer"]


@pytest.mark.needs_room("coordinator/serving/oip")
async def test_counts_include_all_answers_when_asked_for(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_answer, "SETTLE_AFTER_S", 60.0)
    source = real.coordinator.settings.models[0]
    await real.coordinator.infer(source, IMAGE)
    counted = (await real.http.get("/v2/models/tiny/stats")).json()["model_stats"]
    assert [each["inference_count"] for each in counted] == [1]
    await real.coordinator.infer(source, IMAGE)
    told = (await real.http.get("/metrics")).text
    assert 'imbrex_requests_total{model="tiny",outcome="ok"} 2.0' in told
