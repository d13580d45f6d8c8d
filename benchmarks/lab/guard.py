"""Removes a lab whose owner was killed: `python -m benchmarks.lab.guard OWNER FOLDER`.

A child of the owner that reads from a pipe nobody writes to: the pipe ends with the owner, however
that one ended.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.lab.network import Network, Wiring


class Guard:
    """The child, for as long as the context lasts; leaving it removes nothing."""

    def __init__(self, owner: int, folder: Path) -> None:
        self._command = [sys.executable, "-m", __name__, str(owner), str(folder)]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def main() -> None:
    """Waits for the end of the owner, then removes what it left."""
    owner, folder = int(sys.argv[1]), Path(sys.argv[2])
    sys.stdin.buffer.read()
    Network(Wiring(0, "star", 1.0), owner).remove()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
