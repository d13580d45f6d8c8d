"""Running `imbrex` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ran:
    """What a finished command left."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object of standard output."""
        assert self.out.count("\n") == 1, self.out
        found: dict[str, Any] = json.loads(self.out)
        return found


def imbrex(*arguments: object, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Ran:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "imbrex", *map(str, arguments)],
        capture_output=True,
        encoding=(env or {}).get("PYTHONIOENCODING", "utf-8"),
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def refused(*arguments: object) -> Ran:
    """A command that must fail with cause and cure, and nothing on standard output."""
    ran = imbrex(*arguments)
    assert ran.code == 1, ran
    assert "error: " in ran.err, ran.err
    assert "\ncure:  " in ran.err, ran.err
    assert not ran.out, ran.out
    return ran
