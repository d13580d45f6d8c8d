"""Emulated computers of one machine: they compute in turns, and equal kernels take equal time."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from models.cut.program import sha256_of
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

    def kept(self, kernels: tuple[object, ...]) -> list[float]:
        """What any worker has kept of these kernels; call it while holding the turn."""
        # Truncated values: a worker was killed while writing, or the disk was full.
        with suppress(OSError, ValueError):
            return list(map(float, self._file(kernels).read_text().split()))
        return []

    def keep(self, kernels: tuple[object, ...], values: Sequence[float]) -> None:
        """Keeps values of these kernels; none of unknown ones."""
        with suppress(OSError):
            if kernels:
                self._file(kernels).write_text(" ".join(map(repr, values)))

    def _file(self, kernels: tuple[object, ...]) -> Path:
        return self._folder / sha256_of(repr(kernels).encode())

    def close(self) -> None:
        """Releases its resources."""
        os.close(self._lock)
