"""Small JSON files that daemon and command line both change, one at a time and atomically."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protos.daemon.files import give_to_owner_of, write_atomically
from protos.errors import BadConfiguration

Entries = dict[str, dict[str, Any]]


def read_entries(path: Path) -> Entries:
    """The entries of the file; none if there is no file.

    Raises:
        BadConfiguration: it cannot be read.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise _unusable(path, "it does not hold entries")
    return found


class Followed:
    """The entries of a file that another process may change; read again only after changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # One value: several threads read and replace it.
        self._read: tuple[tuple[int, int] | None, Entries] = (None, {})

    def entries(self) -> Entries:
        """The present entries.

        Raises:
            BadConfiguration: the file cannot be read.
        """
        stamp, (known, entries) = self._now(), self._read
        if stamp != known:
            entries = read_entries(self._path)
            self._read = stamp, entries
        return entries

    def _now(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino


@contextmanager
def changing(path: Path) -> Iterator[Entries]:
    """The entries, to be changed in place, and written back at the end if they were. The file is
    locked meanwhile.

    Raises:
        BadConfiguration: the file cannot be read or written.
    """
    lock = path.with_suffix(".lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(lock, error) from error
    try:
        if os.geteuid() == 0:
            give_to_owner_of(path.parent, handle)
        fcntl.flock(handle, fcntl.LOCK_EX)
        entries = read_entries(path)
        before = json.dumps(entries)
        yield entries
        after = json.dumps(entries)
        if after != before:
            write_atomically(path, json.dumps(entries, indent=1).encode() + b"\n")
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        os.close(handle)


def _unusable(path: Path, why: object) -> BadConfiguration:
    return BadConfiguration(
        cause=f"{path} cannot be used: {why}",
        cure="Run this as the coordinator's user or as root; restore a damaged file from a backup",
    )
