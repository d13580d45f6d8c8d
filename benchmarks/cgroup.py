"""A cap on the memory of a process and its children, page cache included: a cgroup (version 1)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/memory")
MB = 1_000_000


def missing() -> str:
    """Why no cap can be set here; empty if it can."""
    if os.geteuid() != 0:
        return "caps on memory need root"
    usable = (ROOT / "memory.limit_in_bytes").exists()
    return "" if usable else f"there is no memory controller at {ROOT}"


@dataclass(frozen=True, slots=True)
class Cap:
    """One cgroup."""

    folder: Path

    @property
    def within(self) -> tuple[str, ...]:
        """A command that executes another one under the cap, from its start."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    @property
    def peak_mb(self) -> float:
        """The most memory that was ever in use, pages of files included."""
        return self._number("memory.max_usage_in_bytes") / MB

    @property
    def kills(self) -> int:
        """Processes that the kernel has ended for lack of memory."""
        return self._values("memory.oom_control")["oom_kill"]

    @property
    def anonymous_mb(self) -> float:
        """What the kernel cannot drop: memory without a file behind it."""
        return self._values("memory.stat")["total_rss"] / MB

    def _number(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def _values(self, name: str) -> dict[str, int]:
        lines = (self.folder / name).read_text().splitlines()
        return {key: int(value) for key, value in (line.split() for line in lines)}


@contextmanager
def capped(memory_mb: int) -> Iterator[Cap]:
    """A cap that is removed afterwards; its processes must have ended by then."""
    cap = Cap(ROOT / f"imbrex-{uuid.uuid4().hex[:8]}")
    cap.folder.mkdir()
    try:
        (cap.folder / "memory.limit_in_bytes").write_text(str(memory_mb * MB))
        yield cap
    finally:
        with suppress(OSError):  # a process that does not end keeps it
            cap.folder.rmdir()
