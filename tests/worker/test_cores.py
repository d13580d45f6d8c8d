"""How cores are used: measured once, kept, and never decided by chance."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from worker.compute.cores import FILE, CoreTiming, _quiet, measured, settled
from worker.engines.base import Place, Traits
from worker.engines.onnxruntime import OnnxRuntime
from worker.programs.store import BlobStore
from worker.settings import WorkerSettings

ENGINE = SimpleNamespace(traits=Traits("onnxruntime", "1", "cpu", "this processor"))

TOGETHER = CoreTiming(together_s=1.0, apart_s=0.9)
APART = CoreTiming(together_s=1.0, apart_s=0.5)


class Measuring:
    """Answers with what it is given, and counts how often it is asked."""

    def __init__(self, timing):
        self.timing, self.asked = timing, []

    def __call__(self, engine, cores, nice):
        self.asked.append((cores, nice))
        return self.timing


@pytest.fixture
def cores(monkeypatch):
    """Four of them, whatever runs the test."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    return 4


def told(tmp_path, **changes):
    return WorkerSettings.load(None, {"state_dir": tmp_path, "memory_mb": 4000, **changes}, {})


def use(settings):
    return settings.task_threads, settings.concurrency


@pytest.mark.parametrize(("timing", "used"), [(TOGETHER, (4, 1)), (APART, (1, 4)), (None, (4, 1))])
def test_the_faster_way_is_taken(tmp_path, cores, timing, used):
    measuring = Measuring(timing)
    assert use(settled(told(tmp_path), ENGINE, measuring)) == used
    assert measuring.asked == [(cores, 5)]


def test_measured_use_of_cores_is_kept(tmp_path, cores):
    settled(told(tmp_path), ENGINE, Measuring(APART))
    again = Measuring(TOGETHER)
    assert use(settled(told(tmp_path), ENGINE, again)) == (1, cores)
    assert not again.asked
    assert use(settled(told(tmp_path, cores=2), ENGINE, again)) == (2, 1)
    assert again.asked == [(2, 5)]


def test_use_of_cores_is_measured_for_another_engine(tmp_path, cores):
    settled(told(tmp_path), ENGINE, Measuring(APART))
    another = SimpleNamespace(traits=replace(ENGINE.traits, fingerprint="another"))
    assert use(settled(told(tmp_path), another, Measuring(TOGETHER))) == (cores, 1)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"key": "another"}'])
def test_unreadable_file_is_measured_again(tmp_path, cores, content):
    (tmp_path / FILE).write_bytes(content)
    measuring = Measuring(APART)
    assert use(settled(told(tmp_path), ENGINE, measuring)) == (1, cores)
    assert measuring.asked


def test_a_busy_machine_decides_nothing(tmp_path, cores):
    settled(told(tmp_path), ENGINE, Measuring(None))
    assert not (tmp_path / FILE).exists()
    busy, quiet = (1.0, 0.1, 0.5), (3.0, 2.0, 0.99)
    assert _quiet([busy] * 9 + [quiet] * 2) is None
    assert _quiet([busy, quiet, (2.5, 2.5, 1.0), quiet]) == CoreTiming(2.5, 2.0)


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({"threads": 3}, (3, 1)),
        ({"threads": 1, "concurrency": 3}, (1, 3)),
        ({"concurrency": 2}, (2, 2)),
        ({"concurrency": 9}, (1, 9)),
        ({"concurrency": 1}, (4, 1)),
        ({"pace": 0.5}, (1, 1)),
        ({"cores": 1}, (1, 1)),
        ({"memory_mb": 1800}, (4, 1)),
    ],
)
def test_use_of_cores_that_is_set_is_not_measured(tmp_path, cores, changes, used):
    measuring = Measuring(APART)
    assert use(settled(told(tmp_path, **changes), ENGINE, measuring)) == used
    assert not measuring.asked


def test_real_convolutions_are_timed(tmp_path):
    engine = OnnxRuntime(Place(tmp_path / "programs", BlobStore(tmp_path, 1), 1))
    timing = measured(engine, 2, 0)
    # Where other programs compute meanwhile there may be none.
    assert timing is None or min(timing.together_s, timing.apart_s) > 0
