"""Files: writes that survive a power cut with either the old or the new content, the lock of a
state directory, and text that people wrote.
"""

import codecs
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protos.errors import BadConfiguration

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(path: Path) -> str:
    """The text of a file that a person wrote.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    return decoded(path.read_bytes())


def decoded(data: bytes) -> str:
    """Text that a person wrote, as editors and shells of any system save it: UTF-8 with or without
    a byte order mark, or UTF-16 with one; any line ends, which become "\\n".

    Raises:
        UnicodeDecodeError: it is neither.
    """
    text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def alone_in(state_dir: Path, daemon: str) -> Iterator[None]:
    """Locks a state directory: two daemons in one directory would share one identity.

    Raises:
        BadConfiguration: another process uses it.
    """
    with (state_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadConfiguration(
                cause=f"another {daemon} uses the state directory {state_dir}",
                cure="Stop it, or give this one another state_dir",
            ) from None
        yield


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces `path` by a file with these bytes that only its owner may read; an OSError leaves
    the old file. If root writes it, it gets the directory's owner: a daemon must be able to read
    what its administrator changed.
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
    """Gives a file, by path or descriptor, the owner of its directory (root only)."""
    owner = directory.stat()
    os.chown(what, owner.st_uid, owner.st_gid)


def sync_directory(directory: Path) -> None:
    """Makes renames in the directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
