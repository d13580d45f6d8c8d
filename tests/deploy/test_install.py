"""Wheel and source distribution, installed as people install them: with pipx."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = pytest.mark.slow


def run(*command: object, **environment: str) -> str:
    ran = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


def test_wheel_and_sdist_are_of_this_version_and_whole(built: Path) -> None:
    stem = f"imbrex-{PROJECT['version']}"
    assert {each.name for each in built.iterdir()} == {
        f"{stem}-py3-none-any.whl",
        f"{stem}.tar.gz",
    }
    with zipfile.ZipFile(built / f"{stem}-py3-none-any.whl") as wheel:
        packed = set(wheel.namelist())
    rooms = ("imbrex", "protos", "models", "worker", "coordinator")
    tracked = run("git", "-C", ROOT, "ls-files", *rooms)
    left_out = ("README.md", ".pyi")
    wanted = {each for each in tracked.splitlines() if not each.endswith(left_out)}
    assert sorted(wanted - packed) == []
    assert "imbrex/cli/app.py" in packed
    assert not {each.partition("/")[0] for each in packed} & {"tests", "benchmarks", "deploy"}
    with tarfile.open(built / f"{stem}.tar.gz") as source:
        names = set(source.getnames())
    wanted = {"pyproject.toml", "imbrex/cli/app.py", "LICENSE"}
    assert {f"{stem}/{each}" for each in wanted} <= names


def test_pipx_installs_it_and_a_demo_runs(built: Path, tmp_path: Path) -> None:
    pytest.importorskip("pipx", reason="pipx is not installed: `make setup`")
    (wheel,) = built.glob("*.whl")
    where = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    where |= {"PIPX_MAN_DIR": str(tmp_path / "man"), "PYTHONPATH": ""}
    command = (sys.executable, "-m", "pipx", "install", "--python", sys.executable)
    run(*command, f"{wheel}[coordinator]", **where)
    imbrex = tmp_path / "bin" / "imbrex"
    assert run(imbrex, "--version", **where).split() == ["imbrex", PROJECT["version"]]
    checked = json.loads(run(imbrex, "check", "digits", "--json", **where))
    assert checked["ok"] is True
    quick = ("--workers", "2", "--native", "--no-profile", "--json")
    shown = json.loads(run(imbrex, "demo", *quick, XDG_STATE_HOME=str(tmp_path / "state"), **where))
    assert len(shown["predictions"]) > 5
    assert shown["max_rel_error"] < 1e-5


README_INSTALL = re.findall(r"^pipx install .*$", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", README_INSTALL)
def test_readmes_lines_install_from_a_folder_with_the_wheel(
    built: Path, tmp_path: Path, line: str
) -> None:
    pytest.importorskip("pipx", reason="pipx is not installed: `make setup`")
    where = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    where |= {"PIPX_MAN_DIR": str(tmp_path / "man"), "PYTHONPATH": ""}
    where["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run("bash", "-e", "-c", f"cd {built} && {line}", **where)
    daemon = "coordinator" if "coordinator" in line else "worker"
    imbrex = tmp_path / "bin" / "imbrex"
    assert "--host" in run(imbrex, daemon, "--help", **where, COLUMNS="200")


def test_readme_has_lines_for_the_coordinator_and_for_workers() -> None:
    assert len(README_INSTALL) == 2
