"""Workers with faulty engines: they are refused and named, and no request is lost or wrong."""

import asyncio

import pytest

from tests.cluster.support import worker_process
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question
from tests.worker.plugged import plant

MODEL = "digits"


async def answered_until(host, feeds, whole, told):
    """Asks until the device's facts satisfy `told`; every answer is right."""
    async with asyncio.timeout(120):
        while not told(host.devices()[0].facts):
            assert_right(await host.infer(MODEL, feeds), whole)
            await refreshed(host)
    for _ in range(3):
        assert_right(await host.infer(MODEL, feeds), whole)


async def refreshed(host):
    """The facts are those of now, not of the last regular greeting."""
    for connection in host._live._pool.ready().values():
        connection.tell_members()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Wrong", "differ from onnxruntime's"),
        ("WrongOnce", "differs by"),
        ("Raising", "this compiler has a bug"),
        ("RaisingLate", "out of luck"),
        ("Eating", "memory"),
    ],
)
async def test_a_faulty_engine_is_refused_by_name_and_no_answer_is_wrong(
    tmp_path, monkeypatch, name, named
):
    plant(tmp_path, monkeypatch, name)
    feeds, whole = question(MODEL)
    state = tmp_path / "worker"
    async with (
        worker_process(state, ENGINE=name.lower(), MEMORY_MB="900") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw") as host,
    ):
        await answered_until(host, feeds, whole, lambda facts: named in facts["refused"])
        facts = host.devices()[0].facts
        if name == "Wrong":
            assert "wrong is refused" in facts["refused"]
            assert (facts["engine"], facts["engine_programs"]) == ("onnxruntime", 0)
        if name == "WrongOnce":
            await answered_until(host, feeds, whole, lambda facts: facts["engine_programs"] > 1)
            assert host.devices()[0].facts["engine"] == "wrongonce"


async def test_an_engine_that_ends_the_worker_is_refused_when_it_starts_again(
    tmp_path, monkeypatch
):
    plant(tmp_path, monkeypatch, "Dying")
    feeds, whole = question(MODEL)
    state = tmp_path / "worker"
    async with worker_process(tmp_path / "other") as other:
        for _ in range(3):
            async with (
                worker_process(state, ENGINE="dying") as worker,
                coordinator(
                    tmp_path / "host", [other.address, worker.address], "lw", at_least=1
                ) as host,
            ):
                while worker.process.poll() is None:
                    assert_right(await host.infer(MODEL, feeds), whole)
        async with (
            worker_process(state, ENGINE="dying") as worker,
            coordinator(tmp_path / "host", [worker.address], "lw") as host,
        ):
            for _ in range(5):
                assert_right(await host.infer(MODEL, feeds), whole)
            facts = host.devices()[0].facts
            assert facts["engine"] == "onnxruntime"
            assert "has ended the worker several times" in facts["refused"]


async def test_what_is_right_computes_and_what_is_not_compared_does_not(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Sound")
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "worker", ENGINE="sound") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw") as host,
    ):
        assert host.devices()[0].facts["engine"] == "sound"
        await answered_until(host, feeds, whole, lambda facts: facts["engine_programs"] > 1)
        facts = host.devices()[0].facts
        assert facts["speedup"] > 0
        assert not facts["refused"]
        await until(lambda: host.devices()[0].state == "ready")
