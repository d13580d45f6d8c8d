"""A network larger than any of its devices: real workers in cgroups, from their start."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import cgroup
from coordinator.answers import PlanChoice
from coordinator.service import Coordinator
from models.cut.units import divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from protos.errors import Infeasible, TooLittleMemory
from tests.waiting import until
from tests.whole.cluster import Feeds, assert_right, coordinator, plan_devices, ready
from tests.worker.support import Running, process

MEMORY_MB = 220
WORKERS = 3
needs_cgroup = pytest.mark.skipif(bool(cgroup.missing()), reason=cgroup.missing() or "no reason")


def large(folder: Path) -> tuple[str, Feeds, Feeds]:
    """The file of a network with 240 MB of weights in VGG's form, an input, and its answer."""
    net = Builder("large", seed=8)
    x = net.input("image", (1, 3, 32, 32))
    for index, channels in enumerate((32, 128, 512, 512), start=1):
        x = x.conv(f"conv{index}", channels, square(3)).relu()
        x = x.max_pool(f"pool{index}", square(2, 2)) if index < 4 else x
    x = x.flatten("flat").gemm("fc1", 6144).relu().gemm("fc2", 1024).relu().gemm("fc3", 10)
    model, path = net.model(x), folder / "large.onnx"
    onnx.save(model, path)
    feeds = random_inputs(divide(load_graph(model, "large")).graph)
    return str(path), feeds, WholeModel(model, 1).run(feeds)


def weights_mb(path: str) -> float:
    return Path(path).stat().st_size / 1e6


def started(stack: ExitStack, folder: Path) -> tuple[list[Running], list[cgroup.Cap]]:
    caps = [stack.enter_context(cgroup.capped(MEMORY_MB)) for _ in range(WORKERS)]
    running = [
        stack.enter_context(process(folder / f"w{k}", within=cap.within, MEMORY_MB=str(MEMORY_MB)))
        for k, cap in enumerate(caps)
    ]
    return running, caps


async def refused(host: Coordinator, path: str, feeds: Feeds) -> TooLittleMemory:
    """Answers by the old plan, until there is none."""
    while True:
        try:
            await host.infer(path, feeds)
        except TooLittleMemory as error:
            return error
        await asyncio.sleep(0)


@needs_cgroup
async def test_each_worker_holds_its_share_and_none_is_killed(tmp_path: Path) -> None:
    path, feeds, whole = await asyncio.to_thread(large, tmp_path)
    assert weights_mb(path) > MEMORY_MB, "no device could hold it"
    with ExitStack() as stack:
        running, caps = started(stack, tmp_path)
        addresses = [each.address for each in running]
        async with coordinator(tmp_path / "state", addresses, "auto") as host:
            assert_right(await host.infer(path, feeds), whole)
            assert len(plan_devices(host, path)) == WORKERS
            with pytest.raises(Infeasible):
                await host.plans.current(path, PlanChoice(strategy="single"))
            broken = {name: np.roll(array, 1) for name, array in whole.items()}
            answer = await host.infer(path, feeds)
            assert compare(answer.outputs, broken).max_rel_error > 1e-3
            # Nobody has memory for the share of a device that is gone.
            running[-1].process.kill()
            await until(lambda: ready(host) == WORKERS - 1)
            error = await asyncio.wait_for(refused(host, path, feeds), 120)
            assert "MB of memory are missing" in error.cause
        for each, cap in zip(running, caps, strict=True):
            assert not cap.kills
            if each is not running[-1]:
                assert each.process.poll() is None
                assert cap.anonymous_mb < MEMORY_MB
