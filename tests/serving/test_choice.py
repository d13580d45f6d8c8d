"""Requests choose their plan; plans are sent, held and released; real workers execute them."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest

from coordinator.answers import PlanChoice
from coordinator.costs.cluster import Cluster
from coordinator.devices import children
from coordinator.plans import book
from coordinator.serving.common import names
from coordinator.serving.common.tensors import load_tensors, write_tensors
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from models.run.reference import WholeModel, compare
from tests.serving.real import Real, running
from tests.waiting import until

INFER, PLAN = "/v1/models/tiny/infer", "/v1/plans/tiny"
MAKE = "/v1/models/tiny/plan"
FEEDS = {"image": np.random.default_rng(4).standard_normal((1, 3, 64, 64), np.float32)}
NPZ = {"Content-Type": names.NPZ, "Accept": names.NPZ}


def broken(network: Network, cluster: Cluster) -> Plan:
    """A planner of somebody's that has a fault."""
    raise ZeroDivisionError("a fault in it")


@pytest.fixture
async def real(tmp_path: Path, workers: list[children.Child], model: Path) -> AsyncIterator[Real]:
    planners = (f"{__name__}:broken", "coordinator.planning.planners.lw:lw")
    async with running(tmp_path, workers, model, planners=planners) as made:
        yield made


async def planned(real: Real, **query: object) -> dict[str, Any]:
    response = await real.http.post(MAKE, params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def right(real: Real, model: Path, **query: object) -> None:
    """A request gives the whole model's answer."""
    response = await real.http.post(INFER, params=query, content=write_tensors(FEEDS), headers=NPZ)
    assert response.status_code == 200, response.text
    whole = WholeModel(onnx.load(model), threads=1).run(FEEDS)
    assert compare(load_tensors(response.content), whole).max_rel_error <= 1e-5


async def refused(response: httpx.Response, status: int) -> dict[str, str]:
    assert response.status_code == status, response.text
    error: dict[str, str] = response.json()["error"]
    assert error["cause"]
    assert error["cure"]
    return error


async def test_strategies_and_numbers_of_devices(real: Real, model: Path) -> None:
    in_force = await planned(real)
    assert in_force["strategy"] == "ofl"
    versions = {in_force["version"]}
    for strategy, count in (("lw", 2), ("aofl", 1), ("elimination", 2)):
        plan = await planned(real, strategy=strategy, devices=count)
        assert plan["strategy"] == strategy
        assert len(plan["devices_used"]) + len(plan["devices_unused"]) == count
        versions.add(plan["version"])
        await right(real, model, strategy=strategy, devices=count)
    assert len(versions) == 4
    assert (await planned(real, devices=1))["strategy"] == "ofl"
    assert (await planned(real))["version"] == in_force["version"]
    assert (await planned(real, strategy="coordinator.planning.planners.lw:lw"))["strategy"] == "lw"


@pytest.mark.parametrize(
    ("query", "status", "cause"),
    [
        ({"strategy": "aolf"}, 404, "aolf"),
        ({"strategy": "os:abort"}, 404, "os:abort"),
        ({"strategy": f"{__name__}:broken"}, 500, "a fault in it"),
        ({"devices": 3}, 400, "there are 2"),
        ({"devices": 0}, 422, "devices"),
        ({"devices": "two"}, 422, "devices"),
        ({"plan": "0123"}, 404, "0123"),
        ({"plan": "0123", "strategy": "lw"}, 400, "its own strategy"),
    ],
)
async def test_choices_that_cannot_be_made(
    real: Real, model: Path, query: dict[str, Any], status: int, cause: str
) -> None:
    asked = await real.http.post(MAKE, params=query)
    assert cause in (await refused(asked, status))["cause"]
    sent = await real.http.post(INFER, params=query, content=write_tensors(FEEDS), headers=NPZ)
    error = await refused(sent, status)
    assert cause in error["cause"]
    if status == 404 and "strategy" in query:
        assert "elimination" in error["cure"]
    await right(real, model)


async def test_a_plan_is_held_until_it_is_released(real: Real, model: Path) -> None:
    other = await planned(real, strategy="lw")
    held = await real.http.put(PLAN, json=other)
    assert held.status_code == 200, held.text
    assert held.json()["blocks"] == other["blocks"]
    real.coordinator.plans.devices_changed("worker-9 joined")
    real.coordinator.plans.devices_changed("period")
    assert (await planned(real))["version"] == held.json()["version"]
    assert real.coordinator.served.statuses()[0].held
    await right(real, model)
    assert (await real.http.delete(PLAN)).status_code == 200
    await until(lambda: real.coordinator.plans.book.graph(str(model)).plan.strategy == "ofl")
    assert not real.coordinator.served.statuses()[0].held
    await refused(await real.http.delete(PLAN), 404)


async def test_a_plan_is_sent_and_chosen(real: Real, model: Path) -> None:
    before = await planned(real)
    text = (await real.http.post(MAKE, params={"strategy": "lw"})).text
    ids = [device.id for device in real.coordinator.device_statuses()]
    for device, name in zip(ids, ("worker-1", "worker-2"), strict=True):
        text = text.replace(device, name)
    sent = (await real.http.post(PLAN, content=text)).json()
    assert set(sent["plan"]["devices_used"]) == set(ids)
    await right(real, model, plan=sent["plan_id"])
    assert (await planned(real, plan=sent["plan_id"]))["blocks"] == sent["plan"]["blocks"]
    again = (await real.http.post(PLAN, content=text)).json()
    assert again == sent
    assert (await planned(real))["version"] == before["version"]


def first_tile(plan: dict[str, Any]) -> dict[str, Any]:
    return plan["blocks"][0]["tiles"][0]


def unknown_device(plan: dict[str, Any]) -> None:
    first_tile(plan)["device"] = "pi-9"


def missing_rows(plan: dict[str, Any]) -> None:
    for box in first_tile(plan)["boxes"].values():
        box[2][1] -= 1
    del first_tile(plan)["rows"]
    first_tile(plan)["rows"] = next(iter(first_tile(plan)["boxes"].values()))[2]


def backwards(plan: dict[str, Any]) -> None:
    for tile in plan["blocks"][0]["tiles"]:
        tile["rows"] = tile["rows"][::-1]
        del tile["boxes"], tile["channels"]


def far_outside(plan: dict[str, Any]) -> None:
    for tile in plan["blocks"][0]["tiles"]:
        tile["rows"] = [10**30, 10**30 + 1]
        del tile["boxes"], tile["channels"]


def too_many(plan: dict[str, Any]) -> None:
    plan["blocks"][0]["tiles"] *= 300


def another_model(plan: dict[str, Any]) -> None:
    plan["model"] = "digits"


def unknown_key(plan: dict[str, Any]) -> None:
    plan["blcoks"] = []


def no_block(plan: dict[str, Any]) -> None:
    plan["blocks"] = []


@pytest.mark.parametrize(
    ("spoil", "status", "cause"),
    [
        (unknown_device, 404, "'pi-9'"),
        (missing_rows, 422, "exactly once"),
        (backwards, 400, "says otherwise"),
        (far_outside, 422, "not legal"),
        (too_many, 400, "tiles"),
        (another_model, 400, "digits"),
        (unknown_key, 400, "blcoks"),
        (no_block, 422, "ends at unit 0"),
    ],
)
async def test_plans_that_cannot_be_used(
    real: Real, model: Path, spoil: Callable[[dict[str, Any]], None], status: int, cause: str
) -> None:
    plan = copy.deepcopy(await planned(real, strategy="lw"))
    spoil(plan)
    for send in (real.http.post, real.http.put):
        assert cause in (await refused(await send(PLAN, json=plan), status))["cause"]
    assert not real.coordinator.served.statuses()[0].held
    await right(real, model)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"nonsense", b"\xff\xfe", b'{"a": NaN}'])
async def test_bodies_that_are_no_plan(real: Real, body: bytes) -> None:
    for send in (real.http.post, real.http.put):
        error = await refused(await send(PLAN, content=body), 400)
        assert "imbrex plan" in error["cure"]
    await refused(await real.http.put("/v1/plans/nothing", content=body), 404)


async def test_chosen_plans_are_capped(
    real: Real, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "MOST_CHOSEN", 2)
    for strategy in ("lw", "efl", "single", "lw"):
        await planned(real, strategy=strategy)
    known = partial(real.coordinator.plans.book.knows, real.coordinator.served.statuses()[0].name)
    assert [name for name in ("", "efl", "lw", "single") if known(PlanChoice(name))] == [
        *("", "lw", "single")
    ]


async def test_chosen_plans_follow_the_devices(real: Real) -> None:
    before = await planned(real, strategy="lw")
    real.coordinator.plans.devices_changed("period")
    assert (await planned(real, strategy="lw"))["version"] == before["version"]
    real.coordinator.plans.devices_changed("somebody joined")
    after = await planned(real, strategy="lw")
    assert after["version"] > before["version"]
