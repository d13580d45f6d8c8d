"""Settings of the coordinator, as flags, environment and file give them."""

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from coordinator.settings import GRPC_PORT, CoordinatorSettings, load_settings
from imbrex.cli.app import worker
from imbrex.cli.daemon import coordinator
from imbrex.cli.options import said
from protos.channels import is_loopback
from protos.errors import BadConfiguration
from worker.settings import WorkerSettings
from worker.settings import load as load_worker_settings


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


def test_the_defaults_that_help_tells_are_those_of_the_settings() -> None:
    told = {}
    for command, settings in ((coordinator, CoordinatorSettings), (worker, WorkerSettings)):
        for name, annotation in get_type_hints(command, include_extras=True).items():
            helps = [each.help or "" for each in getattr(annotation, "__metadata__", ())]
            found = re.search(r"\[default: (\S+)\]$", " ".join(helps))
            if found:
                default = settings.model_fields[name].default
                told[settings, name] = (found[1], GRPC_PORT if name == "grpc_port" else default)
    wrong = {name: each for (_, name), each in told.items() if not _is_told(*each)}
    assert wrong == {}
    assert len(told) > 8


def _is_told(shown: str, default: object) -> bool:
    """A number may be shown without its zeros."""
    return shown == str(default) or (isinstance(default, float) and float(shown) == default)


@pytest.mark.parametrize("damage", [b"replan = ", b"\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_bytes(damage)
    with pytest.raises(BadConfiguration, match=r"coordinator\.toml cannot be read"):
        load_settings({}, file)


def test_one_file_serves_both_daemons(tmp_path: Path) -> None:
    file = tmp_path / "imbrex.toml"
    file.write_text("[coordinator]\nreplan = 7\n[worker]\nthreads = 2\n")
    assert load_settings({}, file).replan == 7.0
    assert load_worker_settings(file, environ={}).threads == 2


def test_only_what_was_said_is_a_setting() -> None:
    told = {"config": Path("x"), "host": None, "workers": ["a:1"], "models": [], "port": 0}
    assert said(told | {"mdns": False}) == {"workers": ("a:1",), "port": 0, "mdns": False}
