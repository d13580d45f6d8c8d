"""What every benchmark shares: its command line, and what its JSON says of where it was made."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from protos.daemon.logs import log_to_stderr

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"
PACKAGES = ("imbrex", "onnxruntime", "grpcio", "numpy", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Where and of what a result was made."""
    return {
        "command": " ".join(["python", "-m", _module(), *map(_portable, sys.argv[1:])]),
        "commit": _commit(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "python_ms": _python_ms(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def without_options(doc: str | None) -> argparse.ArgumentParser:
    """A parser that a module's docstring describes."""
    _commit()
    return argparse.ArgumentParser(
        prog=f"python -m {_module()}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """The same with what `emit` needs. Log lines go to standard error from here on: standard
    output is the result's.
    """
    log_to_stderr()
    parser = without_options(doc)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the JSON there, too")
    return parser


def emit(result: dict[str, Any], chosen: argparse.Namespace, text: str) -> None:
    """Prints one JSON object or a text for people, and writes the JSON, as `chosen`."""
    made = json.dumps({**result, "provenance": provenance()}, indent=1)
    if chosen.output:
        chosen.output.write_text(made + "\n", encoding="utf-8")
    print(made if chosen.json else text)


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).name


def _portable(argument: str) -> str:
    """An argument without the folders of this machine: files by their names."""
    return re.sub(r"(?<![\w.])/[^\s:,]*/", "", argument)


@cache
def _commit() -> str:
    """The commit when the benchmark began: hours later it may be another one."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RESULTS}")
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    """What git says; nothing in an unpacked release, which is no clone."""
    found = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def _python_ms() -> float:
    """Milliseconds of a fixed piece of Python, at best: processors of one name differ threefold."""
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        _fibonacci(20)
        times.append(time.perf_counter() - began_s)
    return round(min(times) * 1e3, 3)


def _fibonacci(number: int) -> int:
    return number if number < 2 else _fibonacci(number - 1) + _fibonacci(number - 2)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return "unknown"
