"""Tasks that compute from constants alone, on real workers."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.planners.lw import lw
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from tests.devices.support import worker_process
from tests.models.networks import with_prior
from tests.whole.cluster import assert_right, coordinator, question


def peers(network: Network, cluster: Cluster) -> Plan:
    """Layer-wise, but for what passes between: that goes from peer to peer."""
    first, *later = lw(network, cluster).blocks
    passed = (replace(block, exchange="peer", barrier=False) for block in later)
    return replace(lw(network, cluster), blocks=(first, *passed))


@pytest.mark.parametrize("strategy", ["lw", f"{__name__}:peers"])
async def test_tasks_without_inputs_start_though_nothing_is_sent(
    tmp_path: Path, strategy: str
) -> None:
    model = str(tmp_path / "prior.onnx")
    onnx.save(with_prior(64), model)
    feeds, whole = question(model)
    async with (
        worker_process(tmp_path / "one") as one,
        worker_process(tmp_path / "other") as other,
        coordinator(tmp_path / "host", [one.address, other.address], strategy) as host,
    ):
        for _ in range(2):
            answer = await host.infer(model, feeds)
            assert_right(answer, whole)
            assert not answer.retried_tasks
        graph = host.plans.book.graph(model)
        assert graph is not None
        assert any(not task.inputs for task in graph.tasks)
        assert graph.is_direct == (strategy != "lw")
