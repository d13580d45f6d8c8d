"""systemd's units: they parse, and they start what the command line offers."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from typer.main import get_command

from coordinator.settings import CoordinatorSettings
from imbrex.cli.app import app
from models.catalogue.installed import VARIABLE as MODELS
from tests.cli.run_cli import imbrex
from worker.machine.machine import POWER_FLAGS, VOLTAGE_ALARM
from worker.settings import WorkerSettings

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
DAEMONS = {"worker": WorkerSettings, "coordinator": CoordinatorSettings}
daemons = pytest.mark.parametrize("daemon", DAEMONS)


def options(file: Path) -> dict[str, list[str]]:
    """Every option of a unit file with its values; a section's name is of no interest here."""
    found = defaultdict(list)
    for line in file.read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found[key].append(value)
    return found


def unit(daemon: str) -> dict[str, list[str]]:
    return options(UNITS / f"imbrex-{daemon}.service")


@daemons
def test_unit_starts_what_the_command_line_offers(daemon: str) -> None:
    (start,) = unit(daemon)["ExecStart"]
    program, command, *flags = shlex.split(start)
    assert (program, command) == ("/opt/imbrex/venv/bin/imbrex", daemon)
    known = imbrex(daemon, "--help").out.split()
    assert flags
    assert [flag for flag in flags if flag.startswith("-") and flag not in known] == []


@daemons
def test_environment_of_a_unit_names_settings(daemon: str) -> None:
    variables = dict(line.split("=", 1) for line in unit(daemon)["Environment"])
    prefix = f"IMBREX_{daemon.upper()}_"
    ours = {key.removeprefix(prefix).lower() for key in variables if key.startswith(prefix)}
    assert ours == {"state_dir"}
    others = {key for key in variables if key.startswith("IMBREX_") and not key.startswith(prefix)}
    assert others <= {MODELS}
    assert ours <= set(DAEMONS[daemon].model_fields)
    state = unit(daemon)["StateDirectory"]
    assert variables[f"{prefix}STATE_DIR"] == f"%S/{state[0]}"


@daemons
def test_hardening_leaves_what_the_libraries_need(daemon: str) -> None:
    found = unit(daemon)
    assert "AF_NETLINK" in found["RestrictAddressFamilies"][0].split()  # zeroconf
    assert "ProcSubset" not in found  # /proc/cpuinfo
    assert found["SystemCallFilter"] == ["@system-service"]  # with @resources: onnxruntime
    assert found["SystemCallErrorNumber"] == ["EPERM"]


@daemons
def test_unit_runs_as_a_user_without_capabilities(daemon: str) -> None:
    found = unit(daemon)
    assert (found["User"], found["Group"]) == (["imbrex"], ["imbrex"])
    assert (found["CapabilityBoundingSet"], found["AmbientCapabilities"]) == ([""], [""])
    assert found["NoNewPrivileges"] == ["yes"]


@daemons
def test_unit_starts_after_the_clock_was_set(daemon: str) -> None:
    assert "time-sync.target" in unit(daemon)["After"][0].split()


@daemons
def test_heat_and_power_are_read_where_the_units_leave_them_to_be_seen(daemon: str) -> None:
    found = unit(daemon)
    assert found["PrivateDevices"] == ["yes"]  # no /dev/vcio
    assert found["ProtectKernelTunables"] == ["yes"]  # /sys is there, read-only
    hidden = {key: found.get(key, []) for key in ("InaccessiblePaths", "TemporaryFileSystem")}
    assert hidden == {"InaccessiblePaths": [], "TemporaryFileSystem": []}
    assert all(each.startswith("sys/") for each in (POWER_FLAGS, VOLTAGE_ALARM))


@daemons
def test_onnxruntime_reports_to_nobody(daemon: str) -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in unit(daemon)["Environment"]


@daemons
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_understands_it(daemon: str, tmp_path: Path) -> None:
    text = (UNITS / f"imbrex-{daemon}.service").read_text()
    copy = tmp_path / f"imbrex-{daemon}.service"
    # The program is installed on devices only; verify wants one that is there.
    copy.write_text(text.replace("/opt/imbrex/venv/bin/imbrex", "/bin/true"))
    assert verify(copy) == (0, "")


@daemons
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_little_is_exposed(daemon: str) -> None:
    file = UNITS / f"imbrex-{daemon}.service"
    ran = analyze("security", "--offline=true", "--threshold=25", str(file))
    assert ran[0] == 0, ran[1]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_a_unit_without_hardening_is_found_out(tmp_path: Path) -> None:
    bare = tmp_path / "imbrex-worker.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    assert analyze("security", "--offline=true", "--threshold=25", str(bare))[0] != 0


@daemons
def test_systemd_waits_for_readiness_and_watches(daemon: str) -> None:
    found = unit(daemon)
    assert found["Type"] == ["notify"]
    assert found["WatchdogSec"]
    assert found["Restart"] == ["on-failure"]  # the watchdog's kill is a failure


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_verify_finds_a_misspelt_option(tmp_path: Path) -> None:
    copy = tmp_path / "imbrex-worker.service"
    copy.write_text("[Service]\nExecStart=/bin/true\nRestrt=always\n")
    _, said = verify(copy)
    assert "Restrt" in said


WATCH = UNITS / "imbrex-watch@.service"


def test_a_watch_is_what_the_page_says_and_comes_back_with_everything() -> None:
    found = options(WATCH)
    page = (UNITS.parents[1] / "docs" / "home-assistant.md").read_text()
    (arguments,) = re.findall(r"^WATCH=(.*)$", page, re.M)
    (start,) = found["ExecStart"]
    words = shlex.split(start.replace("$WATCH", arguments).replace("%i", "yard"))
    assert words[:2] == ["/opt/imbrex/venv/bin/imbrex", "watch"]
    get_command(app).commands["watch"].make_context("imbrex", words[2:])
    assert (found["Restart"], found["StartLimitIntervalSec"]) == (["always"], ["0"])
    assert found["EnvironmentFile"] == ["/etc/imbrex/watch/%i.env"]
    assert (found["User"], found["NoNewPrivileges"]) == (["imbrex"], ["yes"])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_understands_a_watch(tmp_path: Path) -> None:
    copy = tmp_path / "imbrex-watch@.service"
    copy.write_text(WATCH.read_text().replace("/opt/imbrex/venv/bin/imbrex", "/bin/true"))
    assert verify(copy) == (0, "")


def test_the_drop_in_grows_the_pause() -> None:
    found = options(UNITS / "backoff.conf")
    assert set(found) == {"RestartSec", "RestartSteps", "RestartMaxDelaySec"}


def verify(file: Path) -> tuple[int, str]:
    return analyze("verify", "--man=no", "--recursive-errors=no", str(file))


def analyze(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr
