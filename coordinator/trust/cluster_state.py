"""What a cluster is, apart from its authority's key: documents of entries, by name.

One coordinator keeps them in files; several share them in a key-value store
(`coordinator.trust.replicated`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from coordinator.trust.json_files import Entries, Followed, changing

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


class ClusterState:
    """Documents as JSON files of the state directory, which other processes may change, too.

    Reading is cheap, and never waits for the network. Changes are atomic: other processes see all
    of a change or nothing. Methods may be called in any thread.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._followed = {name: Followed(self._path(name)) for name in DOCUMENTS}

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
        return self._followed[name].entries()

    def change(self, names: Sequence[str], do: Callable[..., T]) -> T:
        """Calls `do` with the entries of these documents, which it may change in place, and returns
        its result once they are stored: in files under their locks, the last one first. `do` is
        called again if somebody else was faster.

        Raises:
            BadConfiguration: they cannot be read or written.
            Unavailable: changes are impossible at present.
        """
        with ExitStack() as stack:
            return do(*(stack.enter_context(changing(self._path(name))) for name in names))

    def _path(self, name: str) -> Path:
        return self._state_dir / f"{name}.json"
