"""What a home does to its devices, while requests are being computed: none is lost, none wrong."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import threading
import time
from dataclasses import replace

import psutil
import pytest

from coordinator.plans.switching import PERIOD_S
from protos.errors import ImbrexError
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, plan_devices, question, ready, running
from tests.worker.support import in_process
from worker.compute.compute import RealClock, Throttle
from worker.engines.base import Runnable

MODEL = "digits"
# Slow enough that plans divide the work, and that a fault can come in the middle of it.
SLOW = {"PACE": "0.02"}
# A disk with room for 20 KB.
NO_SPACE = ("prlimit", "--fsize=20000:unlimited")


@contextlib.asynccontextmanager
async def workers(tmp_path, count, **changes):
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(worker_process(tmp_path / f"w{i}", **(SLOW | changes)))
            for i in range(count)
        ]


async def midway(host, feeds):
    """A request that several devices compute right now."""
    request = asyncio.create_task(host.infer(MODEL, feeds))
    await until(lambda: len(running(host)) >= 2)
    return request


@pytest.mark.parametrize("strategy", ["ofl", pytest.param("halo", marks=pytest.mark.slow)])
async def test_a_stalled_worker_is_not_waited_for(tmp_path, strategy) -> None:
    feeds, whole = question(MODEL)
    async with (
        workers(tmp_path, 3) as started,
        coordinator(tmp_path / "host", [each.address for each in started], strategy) as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        request = await midway(host, feeds)
        victim = next(each for each in started if each.id in running(host))
        os.kill(victim.process.pid, signal.SIGSTOP)
        try:
            answer = await request
            assert_right(answer, whole)
            assert answer.retried_tasks
            await until(lambda: ready(host) == 2)
            await until(lambda: victim.id not in plan_devices(host, MODEL))
        finally:
            os.kill(victim.process.pid, signal.SIGCONT)
        await until(lambda: ready(host) == 3)  # it is back by itself
        assert_right(await host.infer(MODEL, feeds), whole)


@contextlib.contextmanager
def silent_address():
    """Takes connections and never says a word, as a host behind a cut does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_peers_that_cannot_reach_each_other_go_through_the_host(
    tmp_path, monkeypatch
) -> None:
    feeds, whole = question(MODEL)
    async with (
        workers(tmp_path, 2) as (one, other),
        coordinator(tmp_path / "host", [one.address, other.address], "halo") as host,
    ):
        address = host.requests._address
        with silent_address() as nobody:
            for wrong in (nobody, one.address):
                away = {other.id: wrong}
                monkeypatch.setattr(
                    host.requests,
                    "_address",
                    lambda device, away=away: away.get(device) or address(device),
                )
                answer = await host.infer(MODEL, feeds)
                assert_right(answer, whole)
                assert answer.retried_tasks
        monkeypatch.undo()
        answer = await host.infer(MODEL, feeds)
        assert_right(answer, whole)
        assert not answer.retried_tasks
        assert answer.traffic.halo


async def test_a_worker_with_a_full_disk_is_left_out(tmp_path) -> None:
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "full", within=NO_SPACE, **SLOW) as full,
        worker_process(tmp_path / "good", **SLOW) as good,
        coordinator(tmp_path / "host", [full.address, good.address]) as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        assert plan_devices(host, MODEL) == (good.id,)
        # Once there is room, the next plan has it again.
        resource.prlimit(full.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        host.plans.devices_changed("room on a disk")
        await until(lambda: len(plan_devices(host, MODEL)) == 2)
        assert_right(await host.infer(MODEL, feeds), whole)


async def test_a_lone_worker_that_cannot_serve_says_why(tmp_path) -> None:
    feeds, _ = question(MODEL)
    async with (
        worker_process(tmp_path / "full", within=NO_SPACE) as full,
        coordinator(tmp_path / "host", [full.address]) as host,
    ):
        with pytest.raises(ImbrexError, match=r"too large|No space|disk"):
            await host.infer(MODEL, feeds)


@pytest.mark.slow
async def test_a_worker_short_of_memory_is_done_without(tmp_path) -> None:
    feeds, whole = question("vgg16-conv")
    async with (
        worker_process(tmp_path / "short", PACE="0.3") as short,
        worker_process(tmp_path / "good", PACE="0.3") as good,
        coordinator(tmp_path / "host", [short.address, good.address]) as host,
    ):
        limit = 60 << 20
        used = psutil.Process(short.process.pid).memory_info().vms
        resource.prlimit(short.process.pid, resource.RLIMIT_AS, (used + limit,) * 2)
        assert_right(await host.infer("vgg16-conv", feeds), whole)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ofl", "halo"])
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_comes_back_with_an_empty_disk(tmp_path, strategy, kind) -> None:
    feeds, whole = question(MODEL)
    async with workers(tmp_path, 2) as (stays, goes):
        port = goes.address.rpartition(":")[2]
        addresses = [stays.address, goes.address]
        async with coordinator(tmp_path / "host", addresses, strategy) as host:
            assert_right(await host.infer(MODEL, feeds), whole)
            request = await midway(host, feeds)
            os.kill(goes.process.pid, kind)
            assert_right(await request, whole)
            await asyncio.to_thread(goes.process.wait)
            shutil.rmtree(goes.state_dir)
            async with worker_process(tmp_path / "again", PORT=port, **SLOW) as again:
                await until(lambda: again.id in plan_devices(host, MODEL))
                answer = await host.infer(MODEL, feeds)
                assert_right(answer, whole)
                assert again.id in answer.devices


async def test_a_straggler_that_answers_pings_is_hedged(tmp_path, monkeypatch) -> None:
    """Its computation hangs, its event loop does not: only a deadline can notice."""
    feeds, whole = question(MODEL)
    hangs, goes_on = threading.Event(), threading.Event()
    bound = Runnable.bound

    def stuck(self, inputs, shapes):
        if not hangs.is_set():
            hangs.set()
            goes_on.wait(60)
        return bound(self, inputs, shapes)

    async with (
        workers(tmp_path, 1) as (sound,),
        in_process(tmp_path / "here", pace=0.02) as here,
        coordinator(tmp_path / "host", [sound.address, here.address]) as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        assert here.id in plan_devices(host, MODEL)
        monkeypatch.setattr(Runnable, "bound", stuck)  # of this process's worker alone
        try:
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            assert hangs.is_set()
            assert answer.retried_tasks
            assert ready(host) == 2
        finally:
            goes_on.set()
        assert_right(await host.infer(MODEL, feeds), whole)


@pytest.mark.slow
async def test_a_worker_that_slows_to_a_third_gets_less_to_do(tmp_path, monkeypatch) -> None:
    feeds, whole = question(MODEL)
    run = Throttle.run

    def throttled(self, work):
        timed = run(self, work)
        RealClock().sleep_until(timed.start_s + 3 * (timed.stop_s - timed.start_s))
        return replace(timed, stop_s=time.monotonic())

    async with (
        workers(tmp_path, 2) as (one, other),
        in_process(tmp_path / "here", pace=0.02) as here,
        coordinator(tmp_path / "host", [one.address, other.address, here.address], "auto") as host,
    ):
        for _ in range(8):  # corrections settle, and the plan with them
            await host.infer(MODEL, feeds)

        plans = host.plans.book

        def share() -> float:
            blocks = plans.graph(MODEL).plan.blocks
            tiles = [tile for block in blocks for tile in block.tiles]
            flop = sum(tile.flop for tile in tiles)
            return sum(tile.flop for tile in tiles if tile.device == here.id) / flop

        await until(lambda: plans.switching._watched[MODEL].looked_s < time.monotonic() - PERIOD_S)
        before = share()
        assert before > 0.2
        monkeypatch.setattr(Throttle, "run", throttled)  # of this process's worker alone
        async with asyncio.timeout(60):
            while share() > 0.7 * before:
                assert_right(await host.infer(MODEL, feeds), whole)
        assert_right(await host.infer(MODEL, feeds), whole)
