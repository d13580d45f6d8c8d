"""What counts against an engine as a whole, and what stands between a task and onnxruntime."""

import pytest

from models.cut.program import Program
from protos.failures import RunError
from tests.worker.plugged import plant
from tests.worker.support import conv_model, picture
from worker.engines.base import Place, Runnable
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
def test_nothing_stands_between_a_task_and_onnxruntime_unless_another_engine_does(
    tmp_path, monkeypatch, name, kind
):
    plant(tmp_path, monkeypatch, "Sound")
    monkeypatch.setattr("worker.engines.pick.candidates", dict)
    engine = pick_engine(name, Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1))
    program = Program(conv_model()[0].SerializeToString(), ())
    engine.prepare(program)
    assert type(engine.load(program.sha256)) is kind


def test_where_engines_are_for_speed_one_that_crashes_is_not_measured(tmp_path, monkeypatch):
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
