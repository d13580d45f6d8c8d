"""Pictures that cameras and scanners write to a folder."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from imbrex.picture_files import SUFFIXES
from imbrex.watch.video_frames import Frame
from protos.errors import BadRequest, NotFound

# The interval of reading a folder; a file that did not change in between is complete.
POLL_S = 0.25
# Queued paths; each is a few hundred bytes.
MOST_WAITING = 10_000
# The coordinator's limit: files may come from a camera over FTP.
LARGEST_BYTES = 64 << 20

Stamp = tuple[int, int]


@dataclass
class Folder:
    """New pictures in a folder, each once; with `existing`, also those that are there already.

    Raises:
        NotFound: no such folder.
    """

    path: Path
    existing: bool = False
    keeps: int = MOST_WAITING
    _seen: dict[str, Stamp] = field(default_factory=dict)
    _done: dict[str, Stamp] = field(default_factory=dict)

    def __post_init__(self) -> None:
        there = self._listed()
        self._done = {} if self.existing else there

    @property
    def name(self) -> str:
        """The display name."""
        return str(self.path)

    def run(self, put: Callable[[Frame], None], stopped: threading.Event) -> None:
        """Yields pictures as they become complete.

        Raises:
            NotFound: the folder is no longer there.
        """
        number = 0
        while not stopped.is_set():
            for name, (_, changed_ns) in self._complete():
                put(Frame(number, name, changed_ns * 1e-9, partial(self._read, name)))
                number += 1
            stopped.wait(POLL_S)

    def _complete(self) -> list[tuple[str, Stamp]]:
        """New files that have not changed since the last reading, oldest first."""
        listed = self._listed()
        ready = {
            name: stamp
            for name, stamp in listed.items()
            if stamp[0] and self._seen.get(name) == stamp != self._done.get(name)
        }
        self._seen = listed
        self._done = {name: stamp for name, stamp in self._done.items() if name in listed} | ready
        return sorted(ready.items(), key=lambda item: (item[1][1], item[0]))

    def _listed(self) -> dict[str, Stamp]:
        """Size in bytes and time of change in ns of each picture."""
        found: dict[str, Stamp] = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file():
                        with suppress(FileNotFoundError):  # it was removed meanwhile
                            told = entry.stat()
                            found[entry.name] = (told.st_size, told.st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(
                cause=f"there is no folder {self.path.absolute()}",
                cure="Create it, or name a folder that exists",
            ) from error
        except OSError as error:
            raise BadRequest(
                cause=f"{self.path} cannot be read ({error.strerror})", cure="Check its permissions"
            ) from error
        return found

    def _read(self, name: str) -> bytes:
        try:
            with (self.path / name).open("rb") as file:
                picture = file.read(LARGEST_BYTES + 1)
        except OSError as error:
            raise BadRequest(
                cause=f"{self.path / name} cannot be read ({error.strerror})",
                cure="Check its permissions, and that nothing removes it before it is read",
            ) from error
        if len(picture) > LARGEST_BYTES:
            raise BadRequest(
                cause=f"{self.path / name} has more than {LARGEST_BYTES >> 20} MB",
                cure=f"Put only pictures of at most {LARGEST_BYTES >> 20} MB into this folder",
            )
        return picture
