"""When one device is measured on a whole network: if a plan has run, and is not clearly faster."""

import asyncio
from types import SimpleNamespace

import pytest

from coordinator.measuring.unsplit import CLEARLY_FASTER, SETTLED, UnsplitTimes
from protos.errors import NotFound

ALONE_S = 3.0
LITTLE_S, MUCH_S = 1.01 * ALONE_S / CLEARLY_FASTER, 0.99 * ALONE_S / CLEARLY_FASTER


@pytest.mark.parametrize(
    ("latency_s", "requests", "known_s", "strategy", "devices", "tries"),
    [
        (LITTLE_S, SETTLED, None, "auto", 2, 1),
        (MUCH_S, SETTLED, None, "auto", 2, 0),
        (LITTLE_S, SETTLED - 1, None, "auto", 2, 0),
        (LITTLE_S, SETTLED, 1.0, "auto", 2, 0),
        (LITTLE_S, SETTLED, None, "halo", 2, 0),
        (LITTLE_S, SETTLED, None, "auto", 1, 0),
    ],
)
async def test_unsplit_model_is_measured_once_where_its_plan_gains_little(
    latency_s, requests, known_s, strategy, devices, tries
) -> None:
    asked = []

    async def load(model):
        asked.append(model)
        raise NotFound(cause="it is gone", cure="")

    plan = SimpleNamespace(
        model="m",
        version=1,
        strategy=strategy,
        devices=range(devices),
        baseline_device="d",
        predicted_latency_s=0.1,  # as of a plan that was made before anything was observed
        single_device_latency_s=ALONE_S,
    )
    measured = SimpleNamespace(answered=lambda graph: requests, unsplit_s=lambda *of: known_s)
    unsplit = UnsplitTimes(
        SimpleNamespace(measured=measured), SimpleNamespace(load=load), None, None
    )
    for _ in range(3):  # what failed is not tried again for the same plan
        unsplit.answered("source", SimpleNamespace(plan=plan), latency_s)
        await asyncio.sleep(0.01)
    assert asked == ["source"] * tries
    await unsplit.stop()
