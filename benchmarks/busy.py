"""Another program on this machine, which takes a core of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_core(is_busy: bool) -> Iterator[None]:
    """A program that never waits, meanwhile; none if not `is_busy`."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            yield
        finally:
            busy.kill()
