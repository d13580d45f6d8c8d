"""Settings of the coordinator, as flags, environment and file give them."""

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

from coordinator.devices.host_worker import host_address
from coordinator.settings import CoordinatorSettings
from imbrex.cli.app import app
from imbrex.cli.daemons import coordinator, said, worker
from protos.daemon.settings import DaemonSettings
from protos.errors import BadConfiguration
from protos.rpc.channels import is_loopback
from worker.settings import WorkerSettings


def test_coordinator_listens_on_loopback_by_default() -> None:
    settings = CoordinatorSettings.load()
    assert is_loopback(settings.host)
    assert is_loopback(host_address(settings, is_guarded=True))


@pytest.mark.parametrize(
    ("given", "seconds"), [("off", 0.0), ("0", 0.0), ("12.5", 12.5), (30, 30.0)]
)
def test_replanning_is_a_period_or_off(given: object, seconds: float) -> None:
    assert CoordinatorSettings.load(flags={"replan": given}).replan == seconds


def test_off_in_a_file_and_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text('replan = "off"\n')
    assert CoordinatorSettings.load(file).replan == 0.0
    monkeypatch.setenv("IMBREX_COORDINATOR_REPLAN", "off")
    assert CoordinatorSettings.load().replan == 0.0


@pytest.mark.parametrize("given", ["never", "-1", "nan"])
def test_unknown_words_for_replan_are_refused(given: str) -> None:
    with pytest.raises(BadConfiguration, match="replan"):
        CoordinatorSettings.load(flags={"replan": given})


def test_every_flag_of_a_daemon_is_named_after_its_setting() -> None:
    flags = set(inspect.signature(coordinator).parameters) - {"config", "join", "join_only"}
    assert flags <= set(CoordinatorSettings.model_fields)
    assert len(flags) > 20
    flags = set(inspect.signature(worker).parameters) - {"config", "join_only"}
    assert flags <= set(WorkerSettings.model_fields)
    assert len(flags) > 8


@pytest.mark.parametrize(
    ("name", "settings", "defaults"),
    [
        ("coordinator", CoordinatorSettings, {"127.0.0.1", "8460", "digits", "60", "auto", "home"}),
        ("worker", WorkerSettings, {"127.0.0.1", "8470", "auto", "1", "home"}),
    ],
)
def test_help_says_what_the_settings_say(
    name: str, settings: type[DaemonSettings], defaults: set[str]
) -> None:
    command = get_command(app).commands[name]
    shown = " ".join(command.get_help(command.make_context(name, [])).split())
    flags = {each.name for each in command.params} - {"join", "wire", "state_dir"}
    told = {settings.model_fields[key].description for key in flags & settings.model_fields.keys()}
    assert [each for each in told if each not in shown] == []
    assert defaults <= set(re.findall(r"\[default: ([^\]]+)\]", shown))


@pytest.mark.parametrize("settings", [CoordinatorSettings, WorkerSettings])
def test_every_setting_says_what_it_is_for(settings: type[DaemonSettings]) -> None:
    told = {name: field.description or "" for name, field in settings.model_fields.items()}
    assert [name for name, each in told.items() if not each or each.endswith(".")] == []


@pytest.mark.parametrize("text", ["pi-1:8470, pi-2:8470", '["pi-1:8470", "pi-2:8470"]'])
def test_a_list_in_the_environment_has_commas_or_is_json(text: str) -> None:
    settings = CoordinatorSettings.load(environ={"IMBREX_COORDINATOR_WORKERS": text})
    assert settings.workers == ("pi-1:8470", "pi-2:8470")


@pytest.mark.parametrize(
    ("key", "text"), [("WORKERS", '["pi-1:8470",'), ("PORT", "70000"), ("WORKRES", "pi-1:8470")]
)
def test_the_variable_that_is_wrong_is_named(key: str, text: str) -> None:
    name = f"IMBREX_COORDINATOR_{key}"
    with pytest.raises(BadConfiguration, match=f"'{key.lower()}' in {name}"):
        CoordinatorSettings.load(environ={name: text})


def test_an_unknown_key_of_the_coordinator_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text("replann = 1\n")
    with pytest.raises(BadConfiguration, match=r"'replann' in .*coordinator\.toml.*replan,"):
        CoordinatorSettings.load(file)


@pytest.mark.parametrize("damage", [b"replan = ", b"\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_bytes(damage)
    with pytest.raises(BadConfiguration, match=r"coordinator\.toml cannot be read"):
        CoordinatorSettings.load(file)


def test_settings_file_serves_both_daemons(tmp_path: Path) -> None:
    file = tmp_path / "imbrex.toml"
    file.write_text("[coordinator]\nreplan = 7\n[worker]\nthreads = 2\n")
    assert CoordinatorSettings.load(file).replan == 7.0
    assert WorkerSettings.load(file, environ={}).threads == 2


def test_flags_that_were_given_alone_are_settings() -> None:
    told = {"config": Path("x"), "host": None, "workers": ["a:1"], "models": [], "port": 0}
    assert said(told | {"mdns": False}) == {"workers": ("a:1",), "port": 0, "mdns": False}


def test_a_level_that_does_not_exist_is_refused_by_both_daemons() -> None:
    for settings in (CoordinatorSettings, WorkerSettings):
        with pytest.raises(BadConfiguration, match="log_level"):
            settings.load(None, {"log_level": "loud"})
