"""A worker that computes nonsense, beside one that doesn't."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from coordinator.devices.withheld import STRIKES
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import (
    assert_right,
    coordinator,
    plan_devices,
    question,
    settled,
    state_of,
)
from tests.worker.support import in_process
from worker.engines.base import Runnable

MODEL = "digits"


def halved(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16)


def spoilt(array: np.ndarray) -> np.ndarray:
    spoilt = array.copy()
    spoilt.reshape(-1)[-1] = np.nan
    return spoilt


@pytest.mark.parametrize(
    ("spoil", "strategy"),
    [(halved, "ofl"), pytest.param(spoilt, "ofl", marks=pytest.mark.slow), (spoilt, "halo")],
)
async def test_worker_of_wrong_results_is_refused_and_at_last_left_out(
    monkeypatch, tmp_path, spoil, strategy
) -> None:
    feeds, whole = question(MODEL)
    bound = Runnable.bound

    def wrong(self, inputs, shapes):
        ready = bound(self, inputs, shapes)
        return replace(
            ready, compute=lambda: {k: spoil(array) for k, array in ready.compute().items()}
        )

    bad_dir, good_dir = tmp_path / "bad", tmp_path / "good"
    # Slow enough that a plan divides the work.
    async with worker_process(good_dir, PACE="0.1") as good, in_process(bad_dir, pace=0.1) as bad:
        addresses = [good.address, bad.address]
        # Without exams and audits: they would find it first.
        async with coordinator(tmp_path / "host", addresses, strategy, audit_every=0) as host:
            assert_right(await host.infer(MODEL, feeds), whole)
            assert bad.id in plan_devices(host, MODEL)
            await settled(host)
            monkeypatch.setattr(Runnable, "bound", wrong)  # of this process's worker alone
            retried = 0
            async with asyncio.timeout(60):
                while state_of(host, bad.id) == "ready":
                    answer = await host.infer(MODEL, feeds)
                    assert_right(answer, whole)
                    retried += answer.retried_tasks
            assert retried
            await until(lambda: bad.id not in plan_devices(host, MODEL))
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            assert not answer.retried_tasks
            told = {device.id: device for device in host.device_statuses()}
            assert told[bad.id].state == "quarantined"
            assert "imbrex resume" in told[bad.id].reason
            assert told[bad.id].refused_results >= STRIKES
            assert told[good.id].refused_results == 0
            monkeypatch.undo()  # it is mended, and somebody says so
            await host.resume(bad.id)
            await until(lambda: bad.id in plan_devices(host, MODEL))
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            assert bad.id in answer.devices
