"""The choice of an engine: real trials in processes of their own."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question
from tests.worker.plugged import plant
from tests.worker.support import in_process, process, terminate
from worker.engines import choice
from worker.engines.choice import FILE, MOST_RUNS, Choice
from worker.engines.comparison import ReferenceRun
from worker.engines.trial import Tried

MODEL = "digits"
BETTER = Tried(0.0, 1.0, 2.0, 50_000_000, 50_000_000)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(choice, "IDLE_S", 0.3)


async def chosen(state):
    """What the worker has kept of its choice."""
    file = state / "optimised" / FILE
    await until(file.exists, 90)
    return json.loads(file.read_text())


async def test_every_faulty_engine_is_refused_by_name_in_its_trial(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Wrong", "Raising", "Dying", "Eating")
    feeds, whole = question(MODEL)
    state = tmp_path / "worker"
    async with (
        in_process(state, engine="auto", memory_mb=700) as worker,
        coordinator(tmp_path / "host", [worker.address], "lw") as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        assert host.devices()[0].facts["engine"] == "onnxruntime"
        kept = await chosen(state)
        refused = kept["refused"]
        assert "openvino" not in refused
        assert "of the largest magnitude" in refused["wrong"]
        assert "this compiler has a bug" in refused["raising"]
        assert "signal 6" in refused["dying"]
        assert "MB" in refused["eating"] or "emory" in refused["eating"]
        assert_right(await host.infer(MODEL, feeds), whole)
        for connection in host._live._pool.ready().values():
            connection.tell_members()
        await until(lambda: "dying is refused" in host.devices()[0].facts["refused"])
        assert host.devices()[0].state == "ready"


async def test_a_device_that_changes_its_engine_goes_on_and_is_examined_again(
    tmp_path, monkeypatch
):
    plant(tmp_path, monkeypatch, "Sound")
    tried = {"sound": BETTER, "openvino": "not for this test"}
    monkeypatch.setattr(Choice, "_tried", lambda self, job: tried[job.engine])
    monkeypatch.setattr("worker.engines.verdicts.SLOWER", 1000.0)
    feeds, whole = question(MODEL)
    async with (
        in_process(tmp_path / "worker", engine="auto") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw", profile=True) as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        (before,) = host.devices()
        await chosen(tmp_path / "worker")
        async with asyncio.timeout(60):
            while host.devices()[0].facts["engine_programs"] < 5:
                assert_right(await host.infer(MODEL, feeds), whole)
                for connection in host._live._pool.ready().values():
                    connection.tell_members()
                assert host.devices()[0].state == "ready"
                await asyncio.sleep(0.01)
        (after,) = host.devices()
        assert (before.facts["engine"], after.facts["engine"]) == ("onnxruntime", "sound")
        assert before.fingerprint != after.fingerprint
        assert host.profile_of(worker.id).state in ("waiting", "measuring", "measured")
        await until(lambda: not host._live.examiner._at_work)
        assert host.devices()[0].state == "ready"


class Given:
    """Programs that a choice can ask for."""

    def get(self, sha256):
        return sha256

    def programs(self):
        return []


def made(place, monkeypatch, found, **versions):
    """A choice among engines whose trials find this; their names serve as makers."""
    monkeypatch.setattr(Choice, "_tried", lambda self, job: found[job.engine])
    monkeypatch.setattr(choice, "weight_bytes", lambda refs: 1)
    monkeypatch.setattr("tests.worker.test_choice.Given.get", lambda self, sha256: Nothing)
    return Choice(place, lambda name: name, versions, "this processor")


class Nothing:
    weights = ()


@pytest.fixture
def place(tmp_path):
    from worker.engines.base import Place
    from worker.programs.store import BlobStore

    return Place(tmp_path, BlobStore(tmp_path, 1), 1, 750_000_000)


def case(number):
    return ReferenceRun(f"{number}", {}, {}, float(number))


def settle(made):
    made.add(case(1))
    assert not made.is_due(0.1)
    assert made.is_due(1.0)
    made.choose(Given())
    return made


def test_the_fastest_that_is_right_and_leaves_room_is_chosen(place, monkeypatch):
    found = {
        "slow": replace(BETTER, engine_s=1.95),
        "good": BETTER,
        "wrong": replace(BETTER, engine_s=0.1, wrong=1e-4),
        "broken": "its trial ended with signal 11",
        "large": replace(BETTER, engine_s=0.1, base_bytes=400_000_000),
    }
    versions = dict.fromkeys(found, "1")
    settled = settle(made(place, monkeypatch, found, **versions))
    assert settled.engine == settled.maker == "good"
    assert settled.refused.keys() == {"wrong", "broken", "large"}
    assert "375 MB" in settled.refused["large"]
    again = made(place, monkeypatch, {}, **versions)
    assert (again.engine, again.is_open) == ("good", False)
    again.refuse("good", "it failed in service")
    assert made(place, monkeypatch, {}, **versions).maker is None


@pytest.mark.parametrize(("memory_mb", "tries"), [(240, True), (190, False)])
async def test_without_the_memory_for_a_trial_nothing_is_tried(
    tmp_path, monkeypatch, memory_mb, tries
):
    offered = []
    monkeypatch.setattr("worker.engines.checked.Checked.offer", lambda *each: offered.append(each))
    feeds, whole = question(MODEL)
    async with (
        in_process(tmp_path / "worker", engine="auto", memory_mb=memory_mb) as worker,
        coordinator(tmp_path / "host", [worker.address], "single") as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
    assert bool(offered) is tries


def test_without_a_gain_it_stays_with_onnxruntime(place, monkeypatch):
    settled = settle(made(place, monkeypatch, {"equal": replace(BETTER, engine_s=1.95)}, equal="1"))
    assert (settled.engine, settled.maker, settled.refused) == ("onnxruntime", None, {})


def test_another_version_or_engine_is_tried_again(place, monkeypatch):
    settle(made(place, monkeypatch, {"good": BETTER}, good="1"))
    assert made(place, monkeypatch, {}, good="2").is_open
    assert made(place, monkeypatch, {}, good="1", new="1").is_open
    assert not made(place, monkeypatch, {}, good="1").is_open


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', '{"bogus": 1}'])
def test_a_damaged_file_is_ignored(place, monkeypatch, text):
    settle(made(place, monkeypatch, {"good": BETTER}, good="1"))
    (place.folder / FILE).write_text(text)
    assert made(place, monkeypatch, {}, good="1").is_open


def test_the_longest_runs_are_tried(place, monkeypatch):
    choosing = made(place, monkeypatch, {"good": BETTER}, good="1")
    for number in (5, 1, 9, 3, 7, 9, 2):
        choosing.add(case(number))
    tried = []
    monkeypatch.setattr(Choice, "_tried", lambda self, job: tried.append(job) or BETTER)
    choosing.choose(Given())
    assert sorted(run.seconds for _, run in tried[0].runs) == [3.0, 5.0, 7.0, 9.0]
    assert len(tried[0].runs) == MOST_RUNS


async def test_a_kept_choice_is_used_from_the_start(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Sound")
    state = tmp_path / "worker"
    with process(state, ENGINE="auto") as running:
        assert terminate(running) == 0
    from worker.engines.base import Place
    from worker.engines.registry import engine_maker
    from worker.programs.store import BlobStore

    kept = engine_maker("auto")(Place(state / "optimised", BlobStore(state, 1), 1))
    kept._choice._chosen.engine, kept._choice._chosen.speedup = "sound", 2.0
    kept._choice._keep()
    async with (
        in_process(state, engine="auto") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw") as host,
    ):
        assert host.devices()[0].facts["engine"] == "sound"
        feeds, whole = question(MODEL)
        async with asyncio.timeout(60):
            while host.devices()[0].facts["engine_programs"] < 2:
                assert_right(await host.infer(MODEL, feeds), whole)
                for connection in host._live._pool.ready().values():
                    connection.tell_members()
