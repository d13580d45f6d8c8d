"""Encoded maps between real workers, where a request or a setting allows them, and never else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from coordinator.answers import PlanChoice
from coordinator.devices import children
from coordinator.service import Coordinator
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.check.effect import Encoded
from models.run.reference import WholeModel, compare
from models.tensors.precision import Wire
from tests.serving.real import running

FEEDS = {"image": np.random.default_rng(4).standard_normal((1, 3, 64, 64), np.float32)}


async def loss(coordinator: Coordinator, model: Path, choice: PlanChoice, wire: Wire) -> float:
    """How far an answer is from the whole model's, after comparing it with what encoding its
    plan's boundaries must give, and its bytes with the plan's.
    """
    plan, network = await coordinator.plans.current(str(model), choice)
    assert plan.wire == wire
    answer = await coordinator.infer(str(model), FEEDS, choice=choice)
    assert answer.traffic == plan.traffic
    assert answer.retried_tasks == 0
    blocks = [(block.start, block.stop) for block in plan.blocks]
    expected = Encoded(network.wired(wire), blocks).run(FEEDS)
    assert compare(answer.outputs, expected).max_rel_error <= 1e-5
    whole = WholeModel(onnx.load(model), threads=1).run(FEEDS)
    return compare(answer.outputs, whole).max_rel_error


async def test_a_request_may_allow_a_wire(
    tmp_path: Path, workers: list[children.Child], model: Path
) -> None:
    async with running(tmp_path, workers, model) as real:
        coordinator, name = real.coordinator, "lw"
        assert await loss(coordinator, model, PlanChoice(name), "exact") <= 1e-5
        half = await loss(coordinator, model, PlanChoice(name, wire="fp16"), "fp16")
        eighth = await loss(coordinator, model, PlanChoice(name, wire="int8"), "int8")
        assert 1e-6 < half < 2e-3 < eighth < 0.05
        assert await loss(coordinator, model, PlanChoice(name, wire="exact"), "exact") <= 1e-5
        query = {"strategy": "lw", "wire": "fp16"}
        assert (await real.http.post("/v1/models/tiny/plan", params=query)).json()["wire"] == "fp16"
        refused = await real.http.post("/v1/models/tiny/plan", params={"wire": "fp8"})
        assert refused.status_code == 422
        assert "wire" in refused.json()["error"]["cause"]


@pytest.mark.parametrize("wire", ["fp16", "int8"])
async def test_encoded_halos_pass_between_peers(
    tmp_path: Path, workers: list[children.Child], model: Path, wire: Wire
) -> None:
    async with running(tmp_path, workers, model) as real:
        plan = (await real.http.post("/v1/models/tiny/plan", params={"strategy": "lw"})).json()
        for block in plan["blocks"]:
            block["barrier"] = False
        for block in plan["blocks"][1:]:
            block["exchange"] = "peer"
        halos = {}
        for each in ("exact", wire):
            sent = await real.http.post("/v1/plans/tiny", json={**plan, "wire": each})
            choice = PlanChoice(plan=sent.json()["plan_id"])
            lost = await loss(real.coordinator, model, choice, each)
            assert (lost > 1e-6) == (each != "exact")
            halos[each] = sent.json()["plan"]["bytes"]["halo"]
        assert halos["exact"] == {"fp16": 2, "int8": 4}[wire] * halos[wire] > 0


async def test_a_setting_allows_it_for_every_request(
    tmp_path: Path, workers: list[children.Child], model: Path
) -> None:
    async with running(tmp_path, workers, model, strategy="lw", wire="fp16") as real:
        assert await loss(real.coordinator, model, PlanChoice(), "fp16") < 2e-3
        assert await loss(real.coordinator, model, PlanChoice(wire="exact"), "exact") <= 1e-5


def test_ranges_come_from_noise_where_nothing_better_is_known(model: Path) -> None:
    network = network_of(load(model))
    feeds = {"image": FEEDS["image"] * 100}
    blocks = [(unit, unit + 1) for unit in range(len(network.units))]
    whole = WholeModel(onnx.load(model), threads=1).run(feeds)
    # Inputs a hundred times as large as any sample are cut off, and the effect says so.
    wild = compare(Encoded(network.wired("int8"), blocks).run(feeds), whole).max_rel_error
    assert wild > 0.3
