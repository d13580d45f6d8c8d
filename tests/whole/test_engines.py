"""Workers with faulty engines: they are refused and named, and no request is lost or wrong."""

import asyncio
import json

import pytest

from models.check.tolerance import of_engine
from models.digits import MODEL as DIGITS
from models.digits import SIDECAR
from models.run.reference import compare
from models.vision.sidecar import sidecar_path
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question, settled
from tests.worker.plugged import plant

MODEL = "digits"


async def answered_until(host, feeds, whole, told):
    """Asks until the device's facts satisfy `told`; every answer is right."""
    async with asyncio.timeout(120):
        while not told(host.device_statuses()[0].facts):
            assert_right(await host.infer(MODEL, feeds), whole)
            await refreshed(host)
    for _ in range(3):
        assert_right(await host.infer(MODEL, feeds), whole)


async def refreshed(host):
    """The facts are those of now, not of the last regular greeting."""
    for connection in host.devices.pool.ready().values():
        connection.tell_members()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Wrong", "differ from onnxruntime's"),
        ("WrongOnce", "differs by"),
        ("DyingApart", "signal 6"),
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
        facts = host.device_statuses()[0].facts
        if name == "Wrong":
            assert "wrong is refused" in facts["refused"]
            assert (facts["engine"], facts["engine_programs"]) == ("onnxruntime", 0)
        if name == "WrongOnce":
            await answered_until(host, feeds, whole, lambda facts: facts["engine_programs"] > 1)
            assert host.device_statuses()[0].facts["engine"] == "wrongonce"


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
            facts = host.device_statuses()[0].facts
            assert facts["engine"] == "onnxruntime"
            assert "has ended the worker several times" in facts["refused"]


async def test_sound_engine_computes_once_it_was_compared(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Sound")
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "worker", ENGINE="sound") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw") as host,
    ):
        assert host.device_statuses()[0].facts["engine"] == "sound"
        await answered_until(host, feeds, whole, lambda facts: facts["engine_programs"] > 1)
        facts = host.device_statuses()[0].facts
        assert facts["speedup"] > 0
        assert not facts["refused"]
        await until(lambda: host.device_statuses()[0].state == "ready")


def in_half(folder):
    """`digits`, which may be computed in half precision; its path."""
    path = folder / "half.onnx"
    path.write_bytes(DIGITS.read_bytes())
    told = json.loads(SIDECAR.read_text()) | {"name": "half", "precision": "fp16"}
    sidecar_path(path).write_text(json.dumps(told))
    return str(path)


async def test_a_model_may_allow_an_engine_to_be_less_exact(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Wrong")
    feeds, whole = question(MODEL)
    model = in_half(tmp_path)
    async with (
        worker_process(tmp_path / "worker", ENGINE="wrong") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw", audit_every=2) as host,
    ):
        async with asyncio.timeout(120):
            while host.device_statuses()[0].facts["engine_programs"] < 5:
                answer = await host.infer(model, feeds)
                assert compare(answer.outputs, whole).max_rel_error <= of_engine("fp16")
                await refreshed(host)
        for _ in range(6):
            answer = await host.infer(model, feeds)
        # Seen: the engine computed it. It is not taken for a liar, and stays.
        assert compare(answer.outputs, whole).max_rel_error > 1e-4
        await settled(host)
        (device,) = host.device_statuses()
        assert (device.state, device.wrong_tasks) == ("ready", 0)
        assert device.audited_tasks > 0
        assert {each.precision for each in host.served.statuses()} == {"fp16"}
        # The same worker computes a model that allows nothing as exactly as ever.
        await answered_until(host, feeds, whole, lambda facts: "differs by" in facts["refused"])


async def test_a_model_does_not_allow_everything(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "FarOff")
    feeds, whole = question(MODEL)
    model = in_half(tmp_path)
    async with (
        worker_process(tmp_path / "worker", ENGINE="faroff") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw", wire="exact") as host,
        asyncio.timeout(120),
    ):
        while "faroff is refused" not in host.device_statuses()[0].facts["refused"]:
            assert_right(await host.infer(model, feeds), whole)
            await refreshed(host)
