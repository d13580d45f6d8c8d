"""Which engine is picked: real trials in processes of their own."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

from models.cut.program import Program
from tests.waiting import until
from tests.whole.cluster import assert_right, coordinator, question
from tests.worker.plugged import plant, plug
from tests.worker.support import conv_model, in_process, picture
from worker.engines import AUTO, pick
from worker.engines.base import Place
from worker.engines.comparison import ReferenceRun
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import Session
from worker.engines.pick import FILE, MOST_RUNS, Fastest, pick_engine
from worker.engines.trial import TrialResult, Trials
from worker.engines.verified import Standing, Verified, VerifiedProgram
from worker.programs.store import BlobStore

MODEL = "digits"
BETTER = TrialResult(0.0, 2.0, 100_000_000)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(pick, "IDLE_S", 0.3)


def found(monkeypatch, **results):
    """Trials of these engines find this. Returns the runs that they are made of."""
    runs = {}

    def trial(self, name, place, pairs):
        runs[name] = [run for _, run in pairs]
        return results.get(name, "not for this test")

    monkeypatch.setattr(Trials, "result", trial)
    return runs


async def stored(state):
    """What the worker has stored of its pick."""
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
        assert host.device_statuses()[0].facts["engine"] == "onnxruntime"
        refused = (await stored(state))["refused"]
        assert "openvino" not in refused
        assert "of the largest magnitude" in refused["wrong"]
        assert "this compiler has a bug" in refused["raising"]
        assert "signal 6" in refused["dying"]
        assert "MB" in refused["eating"] or "emory" in refused["eating"]
        assert_right(await host.infer(MODEL, feeds), whole)
        for connection in host.devices.pool.ready().values():
            connection.tell_members()
        await until(lambda: "dying is refused" in host.device_statuses()[0].facts["refused"])
        assert host.device_statuses()[0].state == "ready"


async def test_a_device_that_changes_its_engine_goes_on_and_is_examined_again(
    tmp_path, monkeypatch
):
    plant(tmp_path, monkeypatch, "Sound")
    found(monkeypatch, sound=BETTER)
    monkeypatch.setattr("worker.engines.verified.SLOWER", 1000.0)
    feeds, whole = question(MODEL)
    async with (
        in_process(tmp_path / "worker", engine="auto") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw", profile=True) as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
        (before,) = host.device_statuses()
        await stored(tmp_path / "worker")
        async with asyncio.timeout(60):
            while host.device_statuses()[0].facts["engine_programs"] < 5:
                assert_right(await host.infer(MODEL, feeds), whole)
                for connection in host.devices.pool.ready().values():
                    connection.tell_members()
                assert host.device_statuses()[0].state == "ready"
                await asyncio.sleep(0.01)
        (after,) = host.device_statuses()
        assert (before.facts["engine"], after.facts["engine"]) == ("onnxruntime", "sound")
        assert before.fingerprint != after.fingerprint
        assert host.measuring.profile_of(worker.id).state in ("waiting", "measuring", "measured")
        await until(lambda: not host.examiner._at_work)
        assert host.device_statuses()[0].state == "ready"


@pytest.fixture
def fastest(tmp_path, monkeypatch):
    """The fastest of engines with these versions, on a worker with 750 MB."""
    names = ("slow", "good", "wrong", "broken", "large", "new")
    plug(tmp_path, monkeypatch, **dict.fromkeys(names, "planted_engines:Sound"))
    place = Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1, 750_000_000)
    return lambda **versions: Fastest(place, OnnxRuntime(place), versions)


def program(number):
    return Program(conv_model(seed=number)[0].SerializeToString(), ())


async def picked(engine, folder, *seconds):
    """What it stores after runs, each of another program, that took so long."""
    for number in seconds:
        engine.prepare(program(number))
    for number in seconds:
        sha256 = program(number).sha256
        assert engine.wants(sha256) == AUTO
        engine.offer(engine.load(sha256), ReferenceRun(sha256, {}, {}, float(number)))
    await until((folder / FILE).exists)
    engine.close()
    return json.loads((folder / FILE).read_text())


async def test_all_that_are_faster_and_right_and_leave_room_are_picked(
    tmp_path, monkeypatch, fastest
):
    results = {
        "slow": replace(BETTER, speedup=1.5),
        "good": BETTER,
        "wrong": replace(BETTER, speedup=10.0, wrong=1e-4),
        "broken": "its trial ended with signal 11",
        "large": replace(BETTER, speedup=10.0, memory_bytes=450_000_000),
    }
    found(monkeypatch, **results)
    versions = dict.fromkeys(results, "1")
    settled = await picked(fastest(**versions), tmp_path, 1)
    assert settled["engines"] == {"good": 2.0, "slow": 1.5}
    assert settled["refused"].keys() == {"wrong", "broken", "large"}
    assert "450 MB of 375 MB" in settled["refused"]["large"]
    again = fastest(**versions)
    assert (again.traits.name, again.wants("")) == ("sound+sound", "good+slow")
    alone = pick_engine("good", Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1))
    suspects = tmp_path / "suspects"
    suspects.mkdir()
    for number in range(3):
        (suspects / f"{number}").write_text(alone.traits.fingerprint)
    for _ in range(2):  # the second one reads what the first one has stored
        crashed = fastest(**versions)
        assert (crashed.traits.name, crashed.wants("")) == ("onnxruntime", "")
        assert "it has ended the worker several times" in crashed.standing().refused
        shutil.rmtree(suspects, ignore_errors=True)


@pytest.mark.parametrize(("memory_mb", "tries"), [(240, True), (190, False)])
async def test_engines_are_tried_only_with_memory_for_a_trial(
    tmp_path, monkeypatch, memory_mb, tries
):
    offered = []
    monkeypatch.setattr(Verified, "offer", lambda *offer: offered.append(offer))
    feeds, whole = question(MODEL)
    async with (
        in_process(tmp_path / "worker", engine="auto", memory_mb=memory_mb) as worker,
        coordinator(tmp_path / "host", [worker.address], "single") as host,
    ):
        assert_right(await host.infer(MODEL, feeds), whole)
    assert bool(offered) is tries


async def test_worker_stays_with_onnxruntime_without_a_gain(tmp_path, monkeypatch, fastest):
    found(monkeypatch, slow=replace(BETTER, speedup=1.04))
    engine = fastest(slow="1")
    engine.prepare(program(1))
    assert type(engine.load(program(1).sha256)) is VerifiedProgram
    settled = await picked(engine, tmp_path, 1)
    assert (settled["engines"], settled["refused"]) == ({}, {})
    assert type(engine.load(program(1).sha256)) is Session


async def test_only_an_engine_picked_for_its_speed_loses_what_it_computes_more_slowly(
    tmp_path, monkeypatch, fastest
):
    monkeypatch.setattr("worker.engines.verified.SLOWER", 0.0)
    found(monkeypatch, good=BETTER)
    await picked(fastest(good="1"), tmp_path, 1)
    for engine, is_for_speed in (
        (fastest(good="1"), True),
        (pick_engine("good", Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1)), False),
    ):
        engine.prepare(program(1))
        x = picture()
        engine.load(program(1).sha256).bound({"x": x}, {"y": x.shape}).compute()
        await until(lambda engine=engine: engine.standing() != Standing())
        kept = [(kept.why, kept.is_lacking) for kept in engine.standing().kept]
        assert kept == ([("good is not faster", False)] if is_for_speed else [])
        assert engine.standing().programs == (0 if is_for_speed else 1)
        engine.close()


async def test_new_version_or_engine_is_tried_again(tmp_path, monkeypatch, fastest):
    found(monkeypatch, good=BETTER)
    await picked(fastest(good="1"), tmp_path, 1)
    assert fastest(good="2").wants("") == AUTO
    assert fastest(good="1", new="1").wants("") == AUTO
    assert fastest(good="1").wants("") == "good"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"bogus": 1}', '{"key": 1}'])
async def test_a_damaged_file_is_ignored(tmp_path, fastest, text):
    (tmp_path / FILE).write_text(text)
    assert fastest(good="1").wants("") == AUTO


async def test_the_longest_runs_are_tried(tmp_path, monkeypatch, fastest):
    runs = found(monkeypatch, good=BETTER)
    await picked(fastest(good="1"), tmp_path, 5, 1, 9, 3, 7, 9, 2)
    assert sorted(run.seconds for run in runs["good"]) == [3.0, 5.0, 7.0, 9.0]
    assert len(runs["good"]) == MOST_RUNS


async def test_a_stored_pick_is_used_from_the_start(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Sound")
    found(monkeypatch, sound=BETTER)
    state = tmp_path / "worker"
    place = Place(state / "optimised", BlobStore(state, 1 << 20), 1)
    await picked(pick_engine(AUTO, place), place.folder, 1)
    async with (
        in_process(state, engine="auto") as worker,
        coordinator(tmp_path / "host", [worker.address], "lw") as host,
    ):
        assert host.device_statuses()[0].facts["engine"] == "sound"
        feeds, whole = question(MODEL)
        async with asyncio.timeout(60):
            while host.device_statuses()[0].facts["engine_programs"] < 2:
                assert_right(await host.infer(MODEL, feeds), whole)
                for connection in host.devices.pool.ready().values():
                    connection.tell_members()


@pytest.mark.parametrize(("memory_mb", "computed"), [(750, 1), (190, 0)])
async def test_an_engine_that_may_crash_needs_memory_for_another_process(
    tmp_path, monkeypatch, memory_mb, computed
):
    plug(tmp_path, monkeypatch, apart="planted_engines:SoundApart")
    place = Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1, memory_mb * 1_000_000)
    engine = pick_engine("apart", place)
    engine.prepare(program(1))
    x = picture()
    engine.load(program(1).sha256).bound({"x": x}, {"y": x.shape}).compute()
    await until(lambda: engine.standing() != Standing())
    assert engine.standing().programs == computed
    kept = [kept.why for kept in engine.standing().kept]
    assert kept == ["apart needs memory for another process that tries it"][computed:]
    engine.close()
