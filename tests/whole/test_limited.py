"""A device that takes whole networks only, beside others: real workers, a toy engine."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from coordinator.planning.planners.strategies import STRATEGIES
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question, running, settled
from tests.worker.plugged import plug

MODEL = "digits"


@pytest.fixture(autouse=True)
def _plugged(tmp_path, monkeypatch):
    toys = {"wholeonly": "WholeOnly", "compiled": "Compiled"}
    plug(tmp_path, monkeypatch, **{name: f"limited_engine:{toy}" for name, toy in toys.items()})


@asynccontextmanager
async def one_of_three(folder):
    """A worker with limits, and the addresses of it and of two slow ones without."""
    async with (
        worker_process(folder / "limited", ENGINE="wholeonly") as limited,
        worker_process(folder / "one", PACE="0.2") as one,
        worker_process(folder / "two", PACE="0.2") as two,
    ):
        yield limited, [each.address for each in (limited, one, two)]


@pytest.mark.parametrize(
    "strategies",
    [("single", "lw", "halo", "auto"), pytest.param(tuple(STRATEGIES), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
async def test_limited_device_gets_no_tile_of_any_strategy(tmp_path, strategies):
    feeds, whole = question(MODEL)
    async with one_of_three(tmp_path) as (limited, addresses):
        for strategy in strategies:
            async with coordinator(tmp_path / strategy, addresses, strategy) as host:
                (device,) = (each for each in host.device_statuses() if each.id == limited.id)
                assert device.facts["limits"] == {"networks": (), "shapes": (), "dtypes": ()}
                for _ in range(3):
                    answer = await host.infer(MODEL, feeds)
                    assert_right(answer, whole)
                    assert limited.id not in answer.devices or len(answer.devices) == 1
                    assert strategy in ("single", "auto") or limited.id not in answer.devices
                # Links look slow until they are measured undisturbed.
                async with asyncio.timeout(60):
                    while strategy == "single" and answer.devices != (limited.id,):
                        answer = await host.infer(MODEL, feeds)
                        assert_right(answer, whole)
                await settled(host)


async def crowd(host, feeds, clients, enough):
    """A closed loop of clients until the answers are enough."""
    answers = []

    async def client():
        while not enough(answers):
            answers.append(await host.infer(MODEL, feeds))

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def test_a_crowd_gives_it_whole_images_and_its_death_costs_none(tmp_path):
    feeds, whole = question(MODEL)
    async with (
        one_of_three(tmp_path) as (limited, addresses),
        coordinator(tmp_path / "host", addresses, "efl") as host,
    ):

        def by_it(answers):
            return [each for each in answers if limited.id in each.devices]

        answers = await crowd(host, feeds, 1, len)
        assert not by_it(answers)
        answers += await crowd(host, feeds, 9, lambda got: len(by_it(got)) >= 20)
        assert {each.devices for each in by_it(answers)} == {(limited.id,)}
        dying = asyncio.create_task(crowd(host, feeds, 9, lambda got: len(got) >= 30))
        await until(lambda: limited.id in running(host))
        os.kill(limited.process.pid, signal.SIGKILL)
        answers += await dying
        for each in answers:
            assert_right(each, whole)
        await until(lambda: limited.id not in host.devices.plannable())
        assert not by_it([await host.infer(MODEL, feeds)])


async def test_an_engine_with_another_network_gets_nothing(tmp_path):
    feeds, whole = question(MODEL)
    compiled = tmp_path / "limited" / "optimised" / "compiled"
    compiled.mkdir(parents=True)
    (compiled / f"{'0' * 64}.toy").write_bytes(b"")
    async with (
        worker_process(tmp_path / "limited", ENGINE="compiled") as limited,
        worker_process(tmp_path / "one") as one,
        coordinator(tmp_path / "host", [limited.address, one.address], "auto") as host,
    ):
        for _ in range(3):
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            assert answer.devices == (one.id,)
        assert not any(each.facts["refused"] for each in host.device_statuses())
