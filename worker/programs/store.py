"""Weights on disk by content: fetched once, verified, resumable, evicted when nothing names them.

    blobs/<sha256>            complete and verified; never changes, so it may be memory-mapped
    partial/<sha256>          the first bytes of a transfer in progress or broken off

Optimised weights (re-laid for this processor) live here too, under the hash of their own bytes, so
that equal weights are stored and mapped once.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from models.tensors.memory import megabytes
from protos.daemon.files import sync_directory
from protos.errors import BadRequest, Unavailable

_HASH = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Most partial blobs kept; beyond this, the oldest are removed.
_MAX_PARTIAL = 1024


class BlobStore:
    """Blobs by hash under one directory, `capacity_bytes` at most.

    `in_use` names the blobs that loaded programs refer to: these are never evicted. Methods may
    be called from any thread, but one blob has one writer.
    """

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        self.blobs = directory / "blobs"
        self._partial = directory / "partial"
        self._capacity_bytes = capacity_bytes
        self.in_use: Callable[[], Collection[str]] = frozenset
        for path in (self.blobs, self._partial):
            path.mkdir(parents=True, exist_ok=True)

    def __contains__(self, sha256: str) -> bool:
        return bool(_HASH.fullmatch(sha256)) and (self.blobs / sha256).exists()

    def path(self, sha256: str) -> Path:
        """The file of a complete blob."""
        return self.blobs / sha256

    def size(self, sha256: str) -> int:
        """Bytes of a complete blob."""
        return self.path(sha256).stat().st_size

    def have_bytes(self, sha256: str) -> int:
        """Bytes present of a blob that is not complete."""
        try:
            return (self._partial / _checked(sha256)).stat().st_size
        except FileNotFoundError:
            return 0

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """The hashes among these that are not complete here, each once, in order."""
        return [sha256 for sha256 in dict.fromkeys(hashes) if _checked(sha256) not in self]

    def append(self, sha256: str, offset: int, total_bytes: int, data: bytes) -> None:
        """Adds bytes to a partial blob.

        Raises:
            BadRequest: not at its end, or beyond `total_bytes`.
            Unavailable: the disk is full; what had arrived stays.
        """
        path = self._partial / _checked(sha256)
        have = self.have_bytes(sha256)
        if offset != have:
            raise BadRequest(
                cause=f"bytes of blob {sha256[:12]} from {offset} on do not continue its "
                f"{have} bytes here",
                cure="Ask which bytes are missing, and continue there",
            )
        if offset + len(data) > total_bytes:
            raise BadRequest(
                cause=f"blob {sha256[:12]} has more bytes than the announced {total_bytes}",
                cure="Send exactly the blob",
            )
        if offset == 0:
            self.make_room(total_bytes)
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            # A short write would shift everything after it.
            if path.exists():
                os.truncate(path, have)
            raise _disk_error(error, path) from error

    def complete(self, sha256: str, total_bytes: int) -> None:
        """Verifies a partial blob and makes it usable.

        Raises:
            BadRequest: bytes are missing (it stays), or differ from the hash (it is removed).
        """
        path = self._partial / _checked(sha256)
        if not path.exists() and total_bytes == 0:
            path.touch()
        have = self.have_bytes(sha256)
        if have != total_bytes:
            raise BadRequest(
                cause=f"blob {sha256[:12]} ended after {have} of {total_bytes} bytes",
                cure="Ask which bytes are missing, and continue there",
            )
        actual = hash_file(path)
        if actual != sha256:
            path.unlink(missing_ok=True)
            raise BadRequest(
                cause=f"the bytes of blob {sha256[:12]} have the hash {actual[:12]}: "
                "corrupted on the way, or the wrong file",
                cure="Send it again from the start",
            )
        self._install(path, sha256)

    def add_file(self, path: Path, sha256: str) -> None:
        """Moves a local file with a known hash into the store (same file system)."""
        if sha256 in self:
            path.unlink()
            return
        self._install(path, sha256)

    def temporary(self, name: str) -> Path:
        """A temporary path on the store's file system."""
        return self._partial / f".{name}"

    def touch(self, hashes: Iterable[str]) -> None:
        """Marks blobs as just used: eviction takes the least recently used first."""
        for sha256 in hashes:
            try:
                os.utime(self.path(sha256))
            except FileNotFoundError:
                continue

    def remove(self, hashes: Iterable[str]) -> None:
        """Deletes blobs that turned out to be damaged."""
        for sha256 in hashes:
            self.path(sha256).unlink(missing_ok=True)

    def make_room(self, needed_bytes: int) -> None:
        """Evicts until `needed_bytes` more fit the cap.

        Raises:
            Unavailable: the blobs of loaded programs leave too little room.
        """
        files = sorted(self._partial.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        for file in files[: max(0, len(files) - _MAX_PARTIAL)]:
            file.unlink(missing_ok=True)
        entries = []
        for entry in os.scandir(self.blobs):
            status = entry.stat()
            entries.append((status.st_mtime_ns, status.st_size, entry.name))
        used = sum(size for _, size, _ in entries)
        if used + needed_bytes <= self._capacity_bytes:
            return
        keep = self.in_use()
        for _, size, name in sorted(entries):
            if name in keep:
                continue
            self.path(name).unlink(missing_ok=True)
            used -= size
            if used + needed_bytes <= self._capacity_bytes:
                return
        raise Unavailable(
            cause=f"the weight store's cap of {megabytes(self._capacity_bytes)} leaves no room for "
            f"{megabytes(needed_bytes)} more",
            cure="Raise disk_mb on this worker",
        )

    def _install(self, path: Path, sha256: str) -> None:
        # A rename that survives a power cut before its content does would be a corrupt blob.
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(path, self.path(sha256))
        sync_directory(self.blobs)


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _checked(sha256: str) -> str:
    """The checked hash, which is also a file name: nothing else may be used as a path."""
    if not _HASH.fullmatch(sha256):
        raise BadRequest(
            cause=f"{sha256[:80]!r} is not a SHA-256 in lower-case hexadecimal",
            cure="Name blobs by the hash of their bytes",
        )
    return sha256


def _disk_error(error: OSError, path: Path) -> Unavailable:
    if error.errno in _FULL:
        return Unavailable(
            cause=f"the disk that holds {path.parent} is full",
            cure="Free some space, or move state_dir; the transfer continues where it stopped",
        )
    return Unavailable(
        cause=f"{path} cannot be written: {error.strerror}",
        cure="Check the disk, and that state_dir can be written",
    )
