"""The child process of trials."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from models.cut.program import Program
from tests.waiting import until
from tests.worker.plugged import plant
from tests.worker.support import conv_model, picture
from worker.engines import trial
from worker.engines.base import Place
from worker.engines.trial import Trials
from worker.programs.store import BlobStore


@pytest.mark.parametrize("rows", [8, 4096])  # what the pipe holds, and what it does not
def test_a_process_that_does_not_read_is_ended_in_time_and_followed_by_another(
    tmp_path, monkeypatch, rows
):
    plant(tmp_path, monkeypatch, "Sound")
    place = Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1)
    program = Program(conv_model()[0].SerializeToString(), ())
    trials = Trials()
    try:
        assert trials.failure("sound", place, program, {"x": picture()}) == ""
        children = psutil.Process().children()
        next(child for child in children if "worker.engines.trial" in child.cmdline()).suspend()
        with monkeypatch.context() as patch:
            patch.setattr(trial, "MOST_S", 0.5)
            why = trials.failure("sound", place, program, {"x": picture(rows)})
        assert why == "its trial took more than 0.5 s"
        assert trials.failure("sound", place, program, {"x": picture()}) == ""
    finally:
        trials.end()


def test_the_process_waits_for_more_to_try_for_a_while(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Sound")
    place = Place(tmp_path, BlobStore(tmp_path, 1 << 20), 1)
    program = Program(conv_model()[0].SerializeToString(), ())
    others, trials = children(), Trials()
    try:
        assert trials.failure("sound", place, program, {"x": picture()}) == ""
        (first,) = children() - others
        trials.end(60.0)
        assert trials.failure("sound", place, program, {"x": picture()}) == ""
        assert children() - others == {first}
    finally:
        trials.end()
    assert first not in children()


def children():
    return {child.pid for child in psutil.Process().children()}


def try_endlessly(folder):
    """What a worker does that is killed meanwhile."""
    place = Place(Path(folder), BlobStore(Path(folder), 1 << 20), 1)
    program = Program(conv_model()[0].SerializeToString(), ())
    Trials().failure("endless", place, program, {"x": picture()})


async def test_a_trial_does_not_outlive_its_worker(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Endless")
    code = f"import sys, {__name__} as test; test.try_endlessly(sys.argv[1])"
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code, tmp_path)
    try:
        await until(lambda: [*tmp_path.glob(".trial*")])
        (child,) = psutil.Process(worker.pid).children()
    finally:
        worker.kill()
        await worker.wait()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
