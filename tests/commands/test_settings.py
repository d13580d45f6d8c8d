"""Settings of the coordinator, as flags, environment and file give them."""

import inspect
from pathlib import Path

import pytest

from coordinator.settings import CoordinatorSettings, load_settings
from imbrex.cli.app import worker
from imbrex.cli.daemon import coordinator
from imbrex.cli.options import said
from protos.channels import is_loopback
from protos.errors import BadConfiguration
from worker.settings import WorkerSettings


def test_nobody_else_reaches_it_unless_somebody_says_so() -> None:
    settings = load_settings({})
    assert is_loopback(settings.host)
    assert is_loopback(settings.host_worker)


@pytest.mark.parametrize(
    ("given", "seconds"), [("off", 0.0), ("0", 0.0), ("12.5", 12.5), (30, 30.0)]
)
def test_replanning_is_a_period_or_off(given: object, seconds: float) -> None:
    assert load_settings({"replan": given}).replan == seconds


def test_off_in_a_file_and_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text('replan = "off"\n')
    assert load_settings({}, file).replan == 0.0
    monkeypatch.setenv("IMBREX_COORDINATOR_REPLAN", "off")
    assert load_settings({}).replan == 0.0


@pytest.mark.parametrize("given", ["never", "-1", "nan"])
def test_other_words_are_refused(given: str) -> None:
    with pytest.raises(BadConfiguration, match="replan"):
        load_settings({"replan": given})


def test_every_flag_of_a_daemon_is_named_after_its_setting() -> None:
    flags = set(inspect.signature(coordinator).parameters) - {"config", "join", "join_only"}
    assert flags <= set(CoordinatorSettings.model_fields)
    assert len(flags) > 20
    flags = set(inspect.signature(worker).parameters) - {"config", "join_only"}
    assert flags <= set(WorkerSettings.model_fields)
    assert len(flags) > 8


def test_only_what_was_said_is_a_setting() -> None:
    told = {"config": Path("x"), "host": None, "workers": ["a:1"], "models": [], "port": 0}
    assert said(told | {"mdns": False}) == {"workers": ("a:1",), "port": 0, "mdns": False}
