"""What a cluster is, apart from its authority's key: documents of entries, by name.

One coordinator keeps them in files; several share them in a key-value store
(`coordinator.several.replicated`).
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from protos.daemon.files import give_to_owner_of, write_atomically
from protos.errors import BadConfiguration

Entries = dict[str, dict[str, Any]]
# Of the state directory: what a cluster is, and its authority.
FOLDER = "cluster"
DEVICES = f"{FOLDER}/devices"
COORDINATORS = f"{FOLDER}/coordinators"
GENERATION = f"{FOLDER}/generation"
INVITATIONS = f"{FOLDER}/invitations"
KEYS = "keys"
DRAINED = "drained"
QUARANTINED = "quarantined"
MODELS = "models"
DEFAULTS = "defaults"
PROFILES = "profiles"
# The last one is written first: see `roster`. One coordinator alone lists no models and no
# profiles: it has the files themselves.
DOCUMENTS = (
    *(DEVICES, COORDINATORS, INVITATIONS, KEYS, DRAINED, QUARANTINED),
    *(MODELS, DEFAULTS, PROFILES, GENERATION),
)
# Where the state is if it is shared, and how new its copy in the files is.
STATE_FILE = "state.json"
T = TypeVar("T")


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
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise _unusable(path, "it does not hold entries")
    return found


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


class ClusterState:
    """Documents as JSON files of the state directory, which other processes may change, too.

    Reading is cheap, and never waits for the network. Changes are atomic: other processes see all
    of a change or nothing. Methods may be called in any thread.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._paths = {name: state_dir / f"{name}.json" for name in DOCUMENTS}
        # By document, the file's stamp when it was read, and its entries: one value, since several
        # threads read and replace it.
        self._read: dict[str, tuple[tuple[int, int] | None, Entries]]
        self._read = dict.fromkeys(DOCUMENTS, (None, {}))

    @property
    def url(self) -> str:
        """Where the state is, if several coordinators share it; else empty."""
        return ""

    @property
    def problem(self) -> str:
        """Why changes are refused at present, and how old the entries are; empty if all is well."""
        return ""

    def follow(self) -> None:
        """Learns of other coordinators' changes from now on; those of files are seen when a file is
        read.
        """

    def close(self) -> None:
        """Stops following."""

    def entries(self, name: str) -> Entries:
        """The present entries of a document, as far as they are known here; not to be changed.

        Raises:
            BadConfiguration: they cannot be read.
        """
        known, entries = self._read[name]
        try:
            found = os.stat(self._paths[name])
            stamp = found.st_mtime_ns, found.st_ino
        except FileNotFoundError:
            stamp = None
        if stamp != known:
            entries = read_entries(self._paths[name])
            self._read[name] = stamp, entries
        return entries

    def change(self, names: Sequence[str], do: Callable[..., T]) -> T:
        """Calls `do` with the entries of these documents, which it may change in place, and returns
        its result once they are stored: in files under their locks, the last one first. `do` is
        called again if somebody else was faster.

        Raises:
            BadConfiguration: they cannot be read or written.
            Unavailable: changes are impossible at present.
        """
        with ExitStack() as stack:
            return do(*(stack.enter_context(changing(self._paths[name])) for name in names))
