"""Files: writes that survive a power cut with either the old or the new content, the lock of a
state directory, and text that people wrote.
"""

import codecs
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import platformdirs

from protos.errors import BadConfiguration

# What a daemon needs of a disk to start: an identity, keys, a list of members.
_LEAST_ROOM_BYTES = 16 << 10
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


def own_folder(kind: Literal["state", "data", "cache"], instead: str) -> Path:
    """This user's folder for imbrex.

    Raises:
        BadConfiguration: the user has no home; `instead` says how to name another folder.
    """
    find = {
        "state": platformdirs.user_state_path,
        "data": platformdirs.user_data_path,
        "cache": platformdirs.user_cache_path,
    }[kind]
    try:
        folder = find("imbrex")
    except RuntimeError:
        folder = Path("~")
    if not folder.is_absolute():
        raise BadConfiguration(
            cause="this user has no home directory", cure=f"Set HOME, or {instead}"
        )
    return folder


def unusable(state_dir: Path, error: OSError) -> BadConfiguration:
    """The error for a state directory that cannot be made or written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return BadConfiguration(
        cause=f"the state directory {state_dir} cannot be used: {error.strerror or error}",
        cure=("Free some space, or set" if full else "Set")
        + " state_dir (--state-dir) to a directory that this user may write",
    )


@contextmanager
def alone_in(state_dir: Path, daemon: str) -> Iterator[None]:
    """Makes and locks a state directory: two daemons in one directory would share one identity.

    Raises:
        BadConfiguration: another process uses it, or it cannot be written.
    """
    lock_file = state_dir / "lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock_file.touch()
        room = state_dir / f".room-{os.getpid()}"
        write_atomically(room, bytes(_LEAST_ROOM_BYTES))
        room.unlink()
    except OSError as error:
        raise unusable(state_dir, error) from error
    with lock_file.open("w") as lock:
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
