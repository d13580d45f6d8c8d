"""Branches that can't be divided run on different workers at the same time."""

from pathlib import Path

import onnx

from benchmarks.branches import towers
from tests.devices.support import worker_process
from tests.whole.cluster import assert_right, coordinator, plan_devices, question

# Slow enough that a tower is worth its transfers.
SLOW = {"PACE": "0.01"}


async def test_towers_are_computed_on_two_workers(tmp_path: Path) -> None:
    model = str(tmp_path / "towers.onnx")
    onnx.save(towers(2, width=96, depth=6), model)
    feeds, whole = question(model)
    async with (
        worker_process(tmp_path / "one", **SLOW) as one,
        worker_process(tmp_path / "other", **SLOW) as other,
        coordinator(tmp_path / "host", [one.address, other.address], "auto") as host,
    ):
        for _ in range(2):
            answer = await host.infer(model, feeds)
            assert_right(answer, whole)
            assert not answer.retried_tasks
        assert set(answer.devices) == {one.id, other.id} == set(plan_devices(host, model))
