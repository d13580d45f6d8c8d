"""A plan has one predicted time wherever it is shown: the one that it was made with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from coordinator.answers import PlanChoice
from imbrex import Client
from imbrex.calls import plain
from models.digits.examples import examples
from protos.errors import NotFound, Unavailable
from tests.serving.in_place import InPlace
from tests.serving.processes import serving, wait


def test_a_plan_keeps_the_times_that_it_was_made_with(tmp_path: Path) -> None:
    body = examples()[0].path.read_bytes()
    flags = ["--model", "digits", "--replan", "0"]
    with serving(tmp_path, flags) as service, Client(service.url) as client:

        def unchanged() -> bool:
            """Whether requests went by without another plan, for which links may be measured."""
            version = client.plan("digits").version
            asked = [client.infer("digits", body).plan_version for _ in range(12)]
            return {version, *asked, client.plan("digits").version} == {version}

        wait(unchanged)
        plan, now = client.plan("digits"), client.plan_now("digits")
        kept = (plan.predicted_latency_s, plan.single_device_latency_s)
        for _ in range(5):
            client.infer("digits", body)
        again = client.plan("digits")
        assert (again.predicted_latency_s, again.single_device_latency_s) == kept
        assert now.predicted_latency_s == plan.predicted_latency_s
        assert (now.model, now.plan_version) == ("digits", plan.version)
        # What its tasks took has shown that these devices are not as fast as was assumed.
        assert now.predicted_now_s != now.predicted_latency_s

        shown = httpx.post(f"{service.url}/page/plans/digits", trust_env=False).json()
        assert shown["predicted_ms"] == round(kept[0] * 1e3, 2)
        assert shown["alone_ms"] == round(kept[1] * 1e3, 2)
        got = service.get("/v1/plans/digits")
        assert (got["predicted_latency_s"], got["single_device_latency_s"]) == kept
        log = service.coordinator.log.read_text()
        (line,) = (each for each in log.splitlines() if f"version={plan.version} " in each)
        logged = re.search(r"predicted_ms=([\d.]+)", line)
        assert logged
        assert float(logged[1]) == round(kept[0] * 1e3, 1)

        with pytest.raises(NotFound, match="no such plan now"):
            client.plan_now("digits", PlanChoice("lw"))
        client.hold_plan("digits", json.dumps(plain(plan)).encode())
        lost = got["blocks"][0]["tiles"][0]["device"]
        workers = {(each.ready() or {})["id"]: each for each in service.workers}
        workers[lost].process.kill()

        def is_away() -> bool:
            listed = {each["id"]: each for each in service.get("/v1/devices")["devices"]}
            return bool(listed[lost]["state"] == "waiting")

        wait(is_away)
        with pytest.raises(Unavailable, match="which is away"):
            client.plan_now("digits")


async def test_no_plan_is_made_to_be_predicted(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    told = (await http.get("/v1/plans/tiny/now")).json()
    assert told["predicted_now_s"] == 0.5
    assert (await http.get("/v1/plans/nothing/now")).status_code == 404
    assert (await http.post("/v1/plans/tiny/now")).status_code == 405
