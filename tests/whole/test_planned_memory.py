"""What planners accept, workers take: real workers with caps at the edge prepare every program of
their plan, and what does not fit is refused by name and number.
"""

import math
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.costs.cluster import Cluster
from coordinator.planning.plan_memory import needs
from coordinator.planning.planners.fused import fused
from coordinator.planning.planners.single import single
from coordinator.tasks.plan import Plan
from coordinator.tasks.task_graph import compile_plan
from models.cut.program import BlobSource
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.tensors.memory import megabytes
from protos.errors import Infeasible
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.planning.support import device
from tests.worker.support import install, process

MB = 1_000_000


def dense() -> Network:
    """52 MB of weights, nearly all of them in two fully connected layers."""
    net = Builder("dense", seed=2)
    x = net.input("image", (1, 3, 32, 32)).conv("conv", 16, square(3, 2)).relu()
    x = x.max_pool("pool", square(2, 2)).flatten("flat")
    x = x.gemm("fc1", 8192).relu().gemm("fc2", 512).relu().gemm("fc3", 64)
    return divide(load_graph(net.model(x), "dense"))


def capped(memory_mb: int, count: int) -> Cluster:
    return Cluster(tuple(device(f"d{k}", 1.0, memory_mb=memory_mb) for k in range(count)))


def edge_mb(network: Network, plan: Plan) -> int:
    """The least whole MB with which every device takes its part."""
    most = max(need.total_bytes() for need in needs(network, plan).values())
    return math.ceil(most / MB)


async def assert_prepared(plan: Plan, network: Network, memory_mb: int, folder: Path) -> None:
    """Each device of the plan, a real worker with so much memory, makes its programs ready."""
    blobs = BlobSource()
    tasks = compile_plan(plan, network, blobs)
    async with AsyncExitStack() as stack:
        for name in plan.devices:
            running = stack.enter_context(process(folder / name, MEMORY_MB=str(memory_mb)))
            client = await stack.enter_async_context(WorkerClient(running.address, Caller("host")))
            facts = (await client.hello("1")).facts
            assert facts.memory_bytes == memory_mb * MB
            for program in tasks.programs_of(name):
                await install(client, program, blobs)


@pytest.mark.parametrize("beyond_mb", [0, 1, 40])
async def test_plan_for_one_device_fits_a_worker(tmp_path: Path, beyond_mb: int) -> None:
    network = dense()
    memory_mb = edge_mb(network, single(network, capped(0, 1))) + beyond_mb
    plan = single(network, capped(memory_mb, 1))
    await assert_prepared(plan, network, memory_mb, tmp_path)


async def test_plan_divided_for_want_of_memory_fits_two_workers(tmp_path: Path) -> None:
    network = dense()
    alone_mb = edge_mb(network, single(network, capped(0, 1)))
    found: list[tuple[int, Plan]] = []
    for memory_mb in range(120, alone_mb, 4):
        with suppress(Infeasible):
            found.append((memory_mb, fused(network, capped(memory_mb, 2))))
    assert found, "two devices hold what one can't"
    memory_mb, plan = found[0]
    assert len(plan.devices) == 2
    await assert_prepared(plan, network, memory_mb, tmp_path)


def test_missing_memory_is_said_by_name_and_number() -> None:
    network = dense()
    plan = single(network, capped(0, 1))
    memory_mb = edge_mb(network, plan) - 1
    (need,) = needs(network, plan).values()
    with pytest.raises(Infeasible) as caught:
        single(network, replace(capped(memory_mb, 1)))
    said = caught.value.cause
    assert "MB" in said
    assert megabytes(memory_mb * MB) in said or megabytes(need.largest_bytes) in said
    assert " 0 MB" not in said
