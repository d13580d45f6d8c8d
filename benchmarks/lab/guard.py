"""Removes a lab whose owner was killed: `python -m benchmarks.lab.guard OWNER FOLDER`.

A child of the owner that reads from a pipe nobody writes to: the pipe ends with the owner, however
that one ended.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.lab.network import Network, Wiring


@contextmanager
def guarded(owner: int, folder: Path) -> Iterator[None]:
    """The child is there meanwhile; it removes what the owner made, also when all is well."""
    command = [sys.executable, "-m", __name__, str(owner), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


def main() -> None:
    """Waits for the end of the owner, then removes what it left."""
    owner, folder = int(sys.argv[1]), Path(sys.argv[2])
    sys.stdin.buffer.read()
    Network(Wiring(0, "star", 1.0), owner).remove()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
