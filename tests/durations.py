"""Where the time of a run went, as JSON.

`make durations` writes `benchmarks/results/durations.json`: `wall_s`, how long all took on so many
`cores`, and for each directory, the slowest first, its `tests` and their `seconds`. Those are of
tests and their fixtures, waiting included, of all processes of pytest together. `make test-slow`
writes the same to `durations-slow.json`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest


class Durations:
    """Writes `target` at the end of the run."""

    def __init__(self, target: Path) -> None:
        self._target, self._began_s = target, time.monotonic()
        self._seconds: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a setup, a call or a teardown."""
        file = PurePosixPath(report.nodeid.partition("::")[0])
        directory = str(PurePosixPath(*file.parts[:2])) if len(file.parts) > 2 else "tests"
        self._seconds[directory] += report.duration
        self._tests[directory] += report.when == "call"

    def pytest_sessionfinish(self) -> None:
        """Writes them."""
        directories = {
            name: {"tests": self._tests[name], "seconds": round(seconds, 1)}
            for name, seconds in self._seconds.most_common()
        }
        found = {
            "cores": len(os.sched_getaffinity(0)),
            "wall_s": round(time.monotonic() - self._began_s),
            "tests": self._tests.total(),
            "directories": directories,
        }
        self._target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
