"""The benchmark of networks larger than a device: what it asks for, and what it calls a failure."""

import subprocess
import sys
from argparse import ArgumentTypeError
from typing import Any

import pytest

from benchmarks import cgroup, sharded
from benchmarks.sharded import Case

WORKER = {"resident_mb": 200.0, "peak_mb": 300.0, "anonymous_mb": 90.0, "kills": 0}
RATE: dict[str, Any] = {"cluster": {"lost": []}, "alone": {"lost": []}, "kills": 0}
FOUND: dict[str, Any] = {"memory_mb": 300, "max_rel_error": 1e-7, "worker_memory": [WORKER]}


def test_a_case_is_a_model_and_two_numbers() -> None:
    assert Case.of("vgg16:4:300") == Case("vgg16", 4, 300)
    assert Case.of("a:b.onnx:2:100") == Case("a:b.onnx", 2, 100)


@pytest.mark.parametrize("text", ["", "vgg16", "vgg16:4", "vgg16:4:many", "vgg16:0:300", "a:1:-1"])
def test_malformed_case_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not MODEL:WORKERS:MEGABYTES"):
        Case.of(text)
    with pytest.raises(SystemExit) as caught:
        sharded.main(["--cases", text])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("changed", "ok"),
    [
        ({}, True),
        ({"max_rel_error": 1e-4}, False),
        ({"worker_memory": [WORKER, WORKER | {"kills": 1}]}, False),
        ({"loss": {"workers": [WORKER], "max_rel_error": 1e-7}}, True),
        ({"loss": {"workers": [WORKER], "max_rel_error": 1e-3}}, False),
        ({"loss": {"workers": [WORKER | {"kills": 1}]}}, False),
        ({"loss": {"workers": [WORKER], "code": "too_little_memory"}}, True),
        ({"loss": {"workers": [WORKER], "code": "peer_violation"}}, False),
        ({"rate": RATE}, True),
        ({"rate": RATE | {"kills": 1}}, False),
        ({"rate": RATE | {"max_rel_error": 1e-3}}, False),
        ({"rate": RATE | {"alone": {"lost": ["no answer"]}}}, False),
    ],
)
def test_wrong_answers_and_killed_workers_are_failures(changed: dict[str, Any], ok: bool) -> None:
    assert sharded.is_ok(FOUND | changed) is ok


@pytest.mark.skipif(bool(cgroup.missing()), reason=cgroup.missing() or "a cap can be set")
def test_a_process_beyond_its_cap_is_killed_and_counted() -> None:
    with cgroup.capped(60) as cap:
        modest = [*cap.within, sys.executable, "-c", "len(bytes(1))"]
        assert subprocess.run(modest, check=False).returncode == 0
        assert not cap.kills
        greedy = [*cap.within, sys.executable, "-c", "b'x' * 200_000_000"]
        assert subprocess.run(greedy, check=False).returncode != 0
        assert cap.kills == 1
        assert 0 < cap.peak_mb <= 61
    assert not cap.folder.exists()
