"""What every benchmark's JSON begins with: commit, machine, versions and command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

ROOT = Path(__file__).parent.parent
PACKAGES = ("imbrex", "onnxruntime", "grpcio", "numpy", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Where and of what a result was made."""
    return {
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "commit": _commit(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def emit(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Prints one JSON object, or a text for people."""
    print(json.dumps({**result, "provenance": provenance()}, indent=1) if as_json else text)


def log_to_stderr() -> None:
    """Leaves standard output to the result, where a benchmark runs daemons in its own process."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,  # an unpacked release is no clone
    )
    return found.stdout.strip() or "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return "unknown"
