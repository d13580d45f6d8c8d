"""One live cluster for the commands: two workers and a coordinator, real processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from coordinator.devices import children
from coordinator.serving.common.tensors import write_tensors
from imbrex.client import Client
from tests import forked
from tests.cli.run_cli import Ran, imbrex
from tests.serving.real import save_tiny, started_workers


@dataclass(frozen=True)
class Live:
    """The running cluster; its model is `tiny` over HTTP, `file` here, `tensors` its input."""

    client: Client
    file: Path
    tensors: Path

    def ask(self, *arguments: object) -> Ran:
        return imbrex(*arguments, "--url", self.client.url)

    def refuses(self, *arguments: object) -> str:
        """What it says of a command that must fail with cause and cure."""
        ran = self.ask(*arguments)
        assert (ran.code, ran.out) == (1, ""), ran
        assert ran.err.startswith("error: "), ran.err
        assert "\ncure:  " in ran.err
        return ran.err


@contextmanager
def started(
    folder: Path, workers: int, profile_s: float = 60.0, installed: Sequence[str] = ()
) -> Iterator[Live]:
    """A coordinator of some workers; it measures them when it is asked to. It also serves models
    that are `installed`.
    """
    file, tensors, state = save_tiny(folder), folder / "input.npz", folder / "coordinator"
    # Not made of pixels: those travel as bytes.
    image = np.random.default_rng(0).standard_normal((1, 3, 64, 64), np.float32)
    tensors.write_bytes(write_tensors({"image": image}))
    config = folder / "coordinator.toml"
    with started_workers(folder, workers) as running:
        wait_for(lambda: all(child.ready() for child in running))
        addresses = [str((child.ready() or {})["address"]) for child in running]
        config.write_text(
            f"workers = {json.dumps(addresses)}\nprofile_s = {profile_s}\nprofile = false\n"
            f"models = {json.dumps([str(file), *installed])}\nstrategy = 'ofl'\nreplan = 0\n"
            f"mdns = false\nhost_computes = false\nport = 0\nstate_dir = {json.dumps(str(state))}\n"
        )
        coordinator = forked.start(
            "coordinator", ["coordinator", "--config", str(config)], state, state / "ready.json"
        )
        try:
            wait_for(coordinator.ready)
            with Client((coordinator.ready() or {})["url"]) as client:
                wait_for(lambda: sum(each.state == "ready" for each in client.devices()) == workers)
                yield Live(client, file, tensors)
        finally:
            children.stop([coordinator])


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    pause, deadline = threading.Event(), time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with started(tmp_path_factory.mktemp("live"), 2) as made:
        yield made
