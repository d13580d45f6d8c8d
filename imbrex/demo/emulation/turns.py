"""Emulated computers of one machine: they compute in turns, and equal kernels take equal time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.program import sha256_of
from protos.errors import BadConfiguration


class Turns:
    """The state shared by workers that name the same folder.

    Raises:
        BadConfiguration: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise BadConfiguration(
                cause=f"turns: {error}", cure="Name a folder that all these workers may write to"
            ) from error

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While this context is open, no other worker computes."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def least(self, kernels: tuple[object, ...], cpu_s: float) -> float:
        """The least CPU seconds that these kernels have taken so far on any worker, including
        `cpu_s` now; call it while holding the turn.
        """
        kept = self._folder / sha256_of(repr(kernels).encode())
        # No value yet, or a truncated one: a worker was killed while writing, or the disk is full.
        with suppress(OSError, ValueError):
            cpu_s = min(cpu_s, float(kept.read_text()))
        with suppress(OSError):
            kept.write_text(repr(cpu_s))
        return cpu_s

    def close(self) -> None:
        """Releases its resources."""
        os.close(self._lock)
