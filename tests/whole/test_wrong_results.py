"""A worker that computes nonsense, beside one that doesn't."""

import numpy as np
import pytest

from tests.cluster.support import worker_process
from tests.whole.cluster import assert_right, coordinator, plan_devices, question
from tests.worker.support import in_process
from worker.runtime import Session

MODEL = "digits"


def halved(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16)


def spoilt(array: np.ndarray) -> np.ndarray:
    spoilt = array.copy()
    spoilt.reshape(-1)[-1] = np.nan
    return spoilt


@pytest.mark.parametrize(
    ("spoil", "strategy"), [(halved, "ofl"), (spoilt, "ofl"), (spoilt, "halo")]
)
async def test_its_results_are_refused_and_computed_elsewhere(
    monkeypatch, tmp_path, spoil, strategy
) -> None:
    feeds, whole = question(MODEL)
    bound = Session.bound

    def wrong(self, inputs, shapes):
        compute = bound(self, inputs, shapes)
        return lambda: {name: spoil(array) for name, array in compute().items()}

    bad_dir, good_dir = tmp_path / "bad", tmp_path / "good"
    # Slow enough that a plan divides the work.
    async with worker_process(good_dir, PACE="0.1") as good, in_process(bad_dir, pace=0.1) as bad:
        addresses = [good.address, bad.address]
        async with coordinator(tmp_path / "host", addresses, strategy) as host:
            assert_right(await host.infer(MODEL, feeds), whole)
            assert bad.id in plan_devices(host, MODEL)
            monkeypatch.setattr(Session, "bound", wrong)  # of this process's worker alone
            for _ in range(3):
                answer = await host.infer(MODEL, feeds)
                assert_right(answer, whole)
                assert answer.retried_tasks
            refused = {device.id: device.refused_results for device in host.devices()}
    assert refused[good.id] == 0
    assert refused[bad.id] >= 3
