"""Programs during whose preparation the worker's process ended, by a file for each."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Suspects:
    """Files named by programs in `folder`, which hold the engine's fingerprint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def found(self, fingerprint: str) -> list[str]:
        """The programs that ended earlier processes with this engine; files of others go."""
        programs = []
        with suppress(OSError):
            for file in sorted(self._folder.iterdir()):
                if file.read_text() == fingerprint:
                    programs.append(file.name)
                else:
                    file.unlink()
        return programs

    @contextmanager
    def suspected(self, sha256: str, fingerprint: str) -> Iterator[None]:
        """There is a file while the program is prepared, unless the disk is full."""
        file = self._folder / sha256
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            file.write_text(fingerprint)
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()
