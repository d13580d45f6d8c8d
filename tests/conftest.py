"""What holds for every test: models of whoever runs them are neither seen nor changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from models.installed import VARIABLE

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _models_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("models") / "none"))
        yield


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty folder of models, for this test and the processes that it starts."""
    folder = str(tmp_path_factory.mktemp("models"))
    monkeypatch.setenv(VARIABLE, folder)
    return folder
