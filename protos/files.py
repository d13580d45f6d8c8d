"""Files of daemons: those that survive a power cut with the old content or the new, never half of
it, and the one that says whose a state directory is.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protos.errors import BadConfiguration


@contextmanager
def alone_in(state_dir: Path, daemon: str) -> Iterator[None]:
    """Two daemons with one state directory would be one identity twice.

    Raises:
        BadConfiguration: another process is in it.
    """
    with (state_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadConfiguration(
                cause=f"another {daemon} uses the state directory {state_dir}",
                cure="Stop it, or give this one a state_dir of its own",
            ) from None
        yield


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
