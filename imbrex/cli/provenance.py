"""The provenance of a measurement: versions, machine, command, commit."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("imbrex", "onnxruntime", "grpcio", "numpy")


def provenance() -> dict[str, Any]:
    """The provenance stored with every measurement."""
    return {
        "command": " ".join(["imbrex", *sys.argv[1:]]),
        "commit": _commit(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _commit() -> str:
    """The commit of the clone that this runs from; a release has its version instead."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return "unknown"
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"
