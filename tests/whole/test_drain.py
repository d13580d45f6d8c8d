"""A device is taken out under load and nobody notices; it stays out until somebody says so."""

import asyncio

import pytest

from protos.errors import NotFound, Unavailable
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import (
    assert_right,
    coordinator,
    plan_devices,
    question,
    ready,
    running,
    state_of,
)

MODEL = "digits"
# Slow enough that plans divide the work.
SLOW = {"PACE": "0.05"}


async def test_drained_under_load_and_resumed(tmp_path) -> None:
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "stays", **SLOW) as stays,
        worker_process(tmp_path / "goes", **SLOW) as goes,
    ):
        addresses = [stays.address, goes.address]
        async with coordinator(tmp_path / "host", addresses) as host:
            assert_right(await host.infer(MODEL, feeds), whole)
            assert goes.id in plan_devices(host, MODEL)
            asked = asyncio.create_task(host.infer(MODEL, feeds))
            await until(lambda: goes.id in running(host))
            assert (await host.drain(goes.id)).state == "draining"
            answer = await asked
            assert_right(answer, whole)
            assert goes.id in answer.devices
            assert not answer.retried_tasks  # it was not taken away in the middle
            await until(lambda: state_of(host, goes.id) == "drained")
            assert plan_devices(host, MODEL) == (stays.id,)
            answer = await host.infer(MODEL, feeds)
            assert answer.devices == (stays.id,)
            assert not answer.retried_tasks
        # Another coordinator with the same state, as after a restart: it is still drained.
        again = coordinator(tmp_path / "host", addresses, at_least=1)
        async with again as host:
            await until(lambda: state_of(host, goes.id) == "drained")
            answer = await host.infer(MODEL, feeds)
            assert answer.devices == (stays.id,)
            name = next(each.name for each in host.device_statuses() if each.id == goes.id)
            with pytest.raises(NotFound, match="neither drained nor"):
                await host.resume(stays.id)
            assert (await host.resume(goes.id)).name == name
            await until(lambda: goes.id in plan_devices(host, MODEL))
            assert_right(await host.infer(MODEL, feeds), whole)


async def test_a_held_plan_goes_on_elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.devices.withheld.PATIENCE_S", 0.2)
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "stays", **SLOW) as stays,
        worker_process(tmp_path / "goes", **SLOW) as goes,
        coordinator(tmp_path / "host", [stays.address, goes.address]) as host,
    ):
        await host.infer(MODEL, feeds)
        await host.plans.hold(MODEL, host.plans.book.graph(MODEL).plan)
        asked = asyncio.create_task(host.infer(MODEL, feeds))
        await until(lambda: goes.id in running(host))
        await host.drain(goes.id)
        await until(lambda: state_of(host, goes.id) == "drained")
        assert_right(await asked, whole)
        answer = await host.infer(MODEL, feeds)
        assert_right(answer, whole)
        assert answer.devices == (stays.id,)


@pytest.mark.slow
async def test_drained_device_that_is_away_can_be_resumed(tmp_path) -> None:
    async with worker_process(tmp_path / "stays") as stays:
        async with (
            worker_process(tmp_path / "goes", NAME="goes") as goes,
            coordinator(tmp_path / "host", [stays.address, goes.address]) as host,
        ):
            await host.drain("goes")
            await until(lambda: state_of(host, goes.id) == "drained")
        async with coordinator(tmp_path / "host", [stays.address]) as host:
            told = await host.resume("goes")
            assert (told.id, told.state) == (goes.id, "waiting")
            with pytest.raises(NotFound):
                await host.resume("goes")


async def test_drained_last_device_leaves_none(tmp_path) -> None:
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "only", **SLOW) as only,
        coordinator(tmp_path / "host", [only.address]) as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        await host.drain(only.id)
        await until(lambda: state_of(host, only.id) == "drained")
        assert ready(host) == 0
        with pytest.raises(Unavailable):
            await host.infer(MODEL, feeds)
        await host.resume(only.id)
        assert_right(await host.infer(MODEL, feeds), whole)
