"""Files that survive a power cut: the old content or the new, never half of it."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces `path` by a file of these bytes, which its owner alone may read; OSError leaves
    what was there. Written by root, it belongs to whom the directory belongs to: a daemon must be
    able to read what its administrator changed.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if os.geteuid() == 0:
                give_to_owner_of(path.parent, file.fileno())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_directory(path.parent)


def give_to_owner_of(directory: Path, what: int | Path) -> None:
    """Makes a file, by path or descriptor, belong to whom the directory belongs to (root only)."""
    owner = directory.stat()
    os.chown(what, owner.st_uid, owner.st_gid)


def sync_directory(directory: Path) -> None:
    """Makes renames in it survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
