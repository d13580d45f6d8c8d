"""Weights on their way: told of, and there before a model is ready.

That they are sent once is in tests/devices/test_programs.py.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from coordinator.devices import children
from tests import forked
from tests.serving.processes import Service, wait
from tests.serving.real import started_workers

MODEL = "vgg16-conv"
WEIGHTS_BYTES = 58_000_000  # every device needs all of them, whatever its tile
DEVICES = 2


def kept_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_model_is_ready_when_its_weights_have_arrived_and_not_before(tmp_path: Path) -> None:
    with started_workers(tmp_path, DEVICES) as workers:
        wait(lambda: all(each.ready() for each in workers))
        folders = [tmp_path / each.name for each in workers]
        before = [kept_bytes(folder) for folder in folders]
        state = tmp_path / "coordinator"
        arguments = ["coordinator", "--no-mdns", "--port", "0", "--state-dir", str(state)]
        arguments += ["--no-host-computes", "--no-profile", "--strategy", "ofl", "--model", MODEL]
        for each in workers:
            arguments += ["--worker", str((each.ready() or {})["address"])]
        coordinator = forked.start("coordinator", arguments, state, state / "ready.json")
        try:
            told = wait(coordinator.ready)
            service = Service(told["url"], told["grpc"], workers, coordinator)
            arriving, ready = watched(service)
        finally:
            children.stop([coordinator])
        assert arriving, "nobody was told that weights are on their way"
        assert all(re.fullmatch(r"weights: [\d.]+ MB of [\d.]+ MB", each) for each in arriving)
        assert ready, "and meanwhile the model was not ready"
        for folder, size in zip(folders, before, strict=True):
            assert kept_bytes(folder) - size > WEIGHTS_BYTES


def watched(service: Service) -> tuple[set[str], bool]:
    """What was said of arriving weights until the model was ready; whether they came before."""
    arriving: set[str] = set()
    pause, deadline = threading.Event(), time.monotonic() + 120
    while time.monotonic() < deadline:
        (model,) = service.get("/v1/models")["models"]
        reasons = {each["reason"] for each in service.get("/v1/devices")["devices"]}
        now = {each for each in reasons if each.startswith("weights")}
        if model["ready"]:
            return arriving, not now
        arriving |= now
        pause.wait(0.01)
    raise AssertionError((arriving, service.get("/v1/models")))
