"""One live cluster for the commands: two workers and a coordinator, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from coordinator.client import CoordinatorClient
from coordinator.demo.cluster import ClusterForm, DemoCluster
from coordinator.serving.tensors import write_tensors
from tests.cli.run_cli import Ran, imbrex
from tests.serving.real import save_tiny


@dataclass(frozen=True)
class Live:
    """The running cluster; its model is `tiny` over HTTP, `file` here, `tensors` its input."""

    client: CoordinatorClient
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


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    file, tensors = save_tiny(folder), folder / "input.npz"
    tensors.write_bytes(write_tensors({"image": np.ones((1, 3, 64, 64), np.float32)}))
    form = ClusterForm(str(file), 2, "ofl", 0.5, profile=False, cache=folder / "cache")
    with DemoCluster(form) as cluster:
        cluster.wait_until_listening()
        cluster.wait_until_found(lambda text: None)
        yield Live(cluster.client, file, tensors)
