"""What the machines of tests are made from: Debian, the wheel, and the wheels that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

ROOT = Path(__file__).parents[2]
MIRROR = "http://deb.debian.org/debian"


def run(*command: str | Path, timeout_s: float = 600, check: bool = True) -> str:
    """What a command prints; its error output is in the exception."""
    ran = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if check and ran.returncode:
        raise AssertionError(f"{command} -> {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


def images() -> Path:
    """Where installed systems are kept from one run to the next."""
    kept = os.environ.get("IMBREX_DEPLOY_IMAGES")
    return Path(kept) if kept else platformdirs.user_cache_path("imbrex") / "machines"


def image(suite: str, packages: str, architecture: str = "amd64") -> Path:
    """An installed Debian, made once."""
    target = images() / (suite if architecture == "amd64" else f"{suite}-{architecture}")
    done = target.with_suffix(".packages")
    if not done.exists() or done.read_text() != packages:
        done.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        options = ("--variant=minbase", f"--include={packages}", f"--arch={architecture}")
        run("debootstrap", *options, suite, target, MIRROR, timeout_s=3600)
        done.write_text(packages)
    return target


def build(source: Path, target: Path) -> Path:
    """The wheel of a source tree."""
    run(sys.executable, "-m", "build", "--wheel", "--outdir", target, source)
    (wheel,) = target.glob("*.whl")
    return wheel


def changed(folder: Path, version: str, changes: Mapping[str, Sequence[str]] | None = None) -> Path:
    """A wheel of this program with another version; `changes`: file -> (what is there, instead)."""
    for name in run("git", "-C", ROOT, "ls-files").splitlines():
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy, follow_symlinks=False)
    project = folder / "source" / "pyproject.toml"
    text, count = re.subn(r'(?m)^version = ".*"', f'version = "{version}"', project.read_text())
    assert count == 1
    project.write_text(text)
    for name, (old, new) in (changes or {}).items():
        file = folder / "source" / name
        assert file.read_text().count(old) == 1
        file.write_text(file.read_text().replace(old, new))
    return build(folder / "source", folder / "dist")


def wheels(
    folder: Path, wanted: Sequence[str], pythons: Sequence[str], machine: str = "x86_64"
) -> Path:
    """What is wanted and all that it needs, for these Pythons on this kind of machine."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in (35, 34, 31, 28, 27, 17, 12, 5)]
    platforms += [f"manylinux{year}_{machine}" for year in (2014, 2010, 1)]
    for version in pythons:
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
            *(f"--platform={each}" for each in platforms),
            *(f"--python-version={version}", "--implementation=cp", f"--dest={folder}"),
            *wanted,
            timeout_s=1800,
        )
    return folder
