"""Backup of what a cluster cannot recreate: its authority, members, keys and measurements."""

import io
import os
import tarfile
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from coordinator.trust.authority import Authority
from coordinator.trust.cluster_state import FOLDER
from protos.daemon.files import give_to_owner_of, write_atomically
from protos.errors import BadConfiguration, BadRequest

# Weights and optimised programs are created again; locks belong to a running daemon.
KEPT = (
    f"{FOLDER}/*.pem",
    f"{FOLDER}/*.json",
    f"{FOLDER}/store/*",
    "coordinator-id",
    "keys.json",
    "drained.json",
    "quarantined.json",
    "models.json",
    "defaults.json",
    "profiles.json",
    "profiles/*.json",
    "worker/id",
    "worker/machine/identity.pem",
    "worker/joined",
)
# A home's backup has some kilobytes; a decompression bomb has more.
_MAX_BYTES = 16 << 20


def backup(state_dir: Path, target: Path) -> list[str]:
    """Writes the file, readable by its owner alone; its contents, relative to `state_dir`.

    Raises:
        BadConfiguration: there is no authority, or the file cannot be written.
    """
    if Authority.load(state_dir) is None:
        raise BadConfiguration(
            cause=f"there is no cluster authority in {state_dir}",
            cure="Name the coordinator's state directory with --state-dir",
        )
    found = sorted({path for pattern in KEPT for path in state_dir.glob(pattern)})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in found:
            archive.add(path, str(path.relative_to(state_dir)), recursive=False)
    try:
        write_atomically(target, packed.getvalue())
    except OSError as error:
        raise BadConfiguration(
            cause=f"{target} cannot be written: {error.strerror}",
            cure="Name a file in a folder that you may write to",
        ) from error
    return [str(path.relative_to(state_dir)) for path in found]


def restore(source: Path, state_dir: Path) -> list[str]:
    """Writes a backup's files to a state directory without an authority; their names, relative to
    it.

    Raises:
        BadConfiguration: there is an authority already, or the directory cannot be written.
        BadRequest: the file is not a backup of a cluster.
    """
    if (state_dir / FOLDER).exists():
        raise BadConfiguration(
            cause=f"{state_dir} already holds a cluster's authority",
            cure="Stop the coordinator, move that folder away, and then restore",
        )
    files = _unpacked(source)
    try:
        for name, content in files.items():
            _put(state_dir, PurePosixPath(name), content)
    except OSError as error:
        raise BadConfiguration(
            cause=f"{state_dir} cannot be written: {error.strerror}",
            cure="Run this as the coordinator's user, or as root",
        ) from error
    return sorted(files)


def _unpacked(source: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    left = _MAX_BYTES
    try:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or not _is_kept(member.name):
                    raise _no_backup(source, f"it contains {member.name!r}")
                files[member.name] = content.read(left + 1)
                left -= len(files[member.name])
                if left < 0:
                    raise _no_backup(source, "it is too large")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise _no_backup(source, str(error)) from error
    if not any(name.startswith(f"{FOLDER}/") for name in files):
        raise _no_backup(source, "it contains no authority")
    return files


def _is_kept(name: str) -> bool:
    """Whether backups contain such a file; compared part by part, since `*` must not match
    a slash.
    """
    parts = PurePosixPath(name).parts
    patterns = (PurePosixPath(pattern).parts for pattern in KEPT)
    return ".." not in parts and any(
        len(parts) == len(pattern) and all(map(fnmatch, parts, pattern)) for pattern in patterns
    )


def _put(state_dir: Path, name: PurePosixPath, content: bytes) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    folder = state_dir / name.parent
    if not folder.exists():
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            give_to_owner_of(state_dir, folder)
    write_atomically(folder / name.name, content)


def _no_backup(source: Path, why: str) -> BadRequest:
    return BadRequest(
        cause=f"{source} is not a backup of a cluster: {why}",
        cure="Give the file that `imbrex cluster backup` wrote",
    )
