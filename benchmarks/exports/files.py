"""The ONNX files of exported networks, made once in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from benchmarks.report import ROOT

FOLDER = platformdirs.user_cache_path("imbrex") / "exports"
_ENVIRONMENT = ROOT / ".venv-exports"
_EXPORTER = Path(__file__).with_name("exporter.py")


def exported(names: Sequence[str], folder: Path = FOLDER) -> list[Path]:
    """The files of these networks; what is missing is exported first."""
    missing = [name for name in names if not _file(name, folder).exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        # Its packages write beside where they run.
        command = [str(_python()), str(_EXPORTER), str(folder), *missing]
        subprocess.run(command, check=True, cwd=folder)
    return [_file(name, folder) for name in names]


def _python() -> Path:
    python, ready = _ENVIRONMENT / "bin" / "python", _ENVIRONMENT / "ready"
    wanted = _EXPORTER.with_name("requirements.txt")
    if not ready.exists() or ready.stat().st_mtime < wanted.stat().st_mtime:
        subprocess.run([sys.executable, "-m", "venv", str(_ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(wanted)], check=True)
        ready.touch()
    return python


def _file(name: str, folder: Path) -> Path:
    return folder / f"{name}.onnx"
