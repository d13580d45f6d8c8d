"""What counts against an engine as a whole, and what stands between a task and onnxruntime."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from models.cut.program import Program
from protos.failures import RunError
from tests.waiting import until
from tests.worker.plugged import plant
from tests.worker.support import conv_model, picture
from worker.engines.base import Place, Runnable
from worker.engines.comparison import LEAST_ROUNDS, ROUNDS, seconds_in_turn
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import Session
from worker.engines.pick import pick_engine
from worker.engines.registry import factory_of
from worker.engines.verified import Record, Verified, VerifiedProgram
from worker.programs.store import BlobStore


class ForSpeed(Verified):
    is_for_speed = True


class Loaded(Runnable):
    def __init__(self):
        super().__init__({}, {})

    def _bind(self, inputs, shapes):
        raise NotImplementedError


def test_only_programs_that_are_still_there_count_for_memory() -> None:
    record = Record(100)
    for _ in range(3):  # as plans follow each other
        loaded = Loaded()
        record.loaded(loaded, 60)
        assert not record.fault()
        del loaded
    both = [Loaded(), Loaded()]
    for loaded in both:
        record.loaded(loaded, 60)
    assert "of memory" in record.fault()


@pytest.mark.parametrize(
    ("right", "wrong", "is_refused"), [(0, 2, False), (0, 3, True), (3, 3, False), (3, 4, True)]
)
def test_an_engine_is_refused_after_three_wrong_programs_and_more_than_right_ones(
    right, wrong, is_refused
):
    assert bool(Record(100, right, wrong).fault()) is is_refused


@pytest.mark.parametrize(
    ("name", "kind"), [("onnxruntime", Session), ("auto", Session), ("sound", VerifiedProgram)]
)
def test_onnxruntime_is_wrapped_only_beside_another_engine(tmp_path, monkeypatch, name, kind):
    plant(tmp_path, monkeypatch, "Sound")
    monkeypatch.setattr("worker.engines.pick.candidates", dict)
    engine = pick_engine(name, Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1))
    program = Program(conv_model()[0].SerializeToString(), ())
    engine.prepare(program)
    assert type(engine.load(program.sha256)) is kind


def test_crashing_engine_is_not_measured_for_speed(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "DyingMeasured")
    place = Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1)
    name = "dyingmeasured"
    verified = ForSpeed(place, OnnxRuntime(place), {name: factory_of(name)(place)})
    program = Program(conv_model()[0].SerializeToString(), ())
    trials = {each: trial(program, {}, 1) for each, trial in verified.trials.items()}
    assert trials.keys() == {"onnxruntime", name}
    for _ in range(2):
        with pytest.raises(RunError, match="signal 6"):
            trials[name].bound({"x": picture()}, {})
    trials["onnxruntime"].bound({"x": picture()}, {}).compute()
    verified.close()


async def test_child_process_runs_each_program_once_even_if_a_plan_returns(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Noted")
    monkeypatch.setattr("worker.engines.verified._TICK_S", 0.01)
    monkeypatch.setattr("worker.engines.comparison.CLEARLY", 1000.0)
    engine = pick_engine("noted", Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1))
    x, runs = picture(), tmp_path / "runs"
    for made, seed in enumerate((1, 2, 1), start=1):
        program = Program(conv_model(seed=seed)[0].SerializeToString(), ())
        engine.prepare(program)
        engine.load(program.sha256).bound({"x": x}, {"y": x.shape}).compute()
        least = min(made, 2) + made * LEAST_ROUNDS
        await until(lambda least=least: runs.exists() and len(runs.read_text().split()) >= least)
        await asyncio.sleep(0.1)
    engine.close()
    here = str(os.getpid())
    others = [process for process in runs.read_text().split() if process != here]
    assert len(others) == 2
    assert len({*others}) == 1
    assert runs.read_text().split().count(here) == 3 * LEAST_ROUNDS
    assert engine.standing().programs == 2


@pytest.mark.parametrize(("others_s", "rounds"), [(1.1, ROUNDS), (2.0, LEAST_ROUNDS), (0.5, 2)])
def test_runs_are_timed_until_one_is_clearly_slower(monkeypatch, others_s, rounds):
    now, made = [0.0], []

    def takes(seconds):
        def run():
            made.append(seconds)
            now[0] += seconds

        return lambda: run

    clock = SimpleNamespace(monotonic=lambda: 0.0, perf_counter=lambda: now[0])
    monkeypatch.setattr("worker.engines.comparison.time", clock)
    seconds = seconds_in_turn([takes(1.0), takes(others_s)])
    assert seconds == pytest.approx([1.0, others_s])
    assert made == [1.0, others_s] * rounds
