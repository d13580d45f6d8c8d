"""The models of a cluster of several coordinators, which an optional package shares."""

from __future__ import annotations

import os
import pwd
import shlex
from dataclasses import dataclass
from pathlib import Path

from coordinator.devices.announcements import Announcements
from coordinator.trust.authority import Authority
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.open_state import FOLLOWER, MODEL_STORE, open_state
from coordinator.trust.trust import Trust, own_name
from models.catalogue.installed import VARIABLE, Store
from protos.errors import BadConfiguration
from protos.rooms import imported

# In the models' folder: the state directory of the coordinator that serves them.
SERVED_BY = ".coordinator"


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """Versions of models came or went."""


class Sharing:
    """Makes this coordinator's models those of the cluster; if it is alone, they are already."""

    async def start(self, state_dir: Path) -> None:
        """Starts giving and fetching.

        Raises:
            BadConfiguration: the port is taken.
        """

    async def stop(self) -> None:
        """Stops both."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong besides versions that are missing."""
        return ()

    def awaited(self) -> dict[str, dict[str, str]]:
        """The versions that are installed in the cluster but not here, by name: each with the
        reason.
        """
        return {}


def sharing_of(
    state: ClusterState, trust: Trust, host: str, port: int, announcements: Announcements
) -> Sharing:
    """What follows the cluster's models, if several coordinators share its state. It gives files at
    `host:port`, and announces that versions came or went.

    Raises:
        NotFound: the package for several coordinators is not installed.
    """
    if not state.url or trust.certified is None:
        return Sharing()
    own_id = trust.caller.coordinator.partition(" ")[0]
    store = imported(MODEL_STORE)(state, trust.certified.authority.fingerprint, own_id)
    sharing: Sharing = imported(FOLLOWER)(store, trust, host, port, announcements)
    return sharing


def open_store(root: Path | None = None, *, to_change: bool = True) -> Store:
    """The models of this user: those of a cluster, if the coordinator that serves them shares its
    state.

    Raises:
        BadConfiguration: that coordinator's state cannot be read, or root is to change the folder
            of somebody else.
        NotFound: the package for several coordinators is not installed.
    """
    alone = Store(root)
    if to_change:
        _require_owner(alone.root)
    try:
        state_dir = Path((alone.root / SERVED_BY).read_text().strip())
    except OSError:
        return alone
    try:
        if not state_dir.is_dir():
            return alone
        state, authority = open_state(state_dir), Authority.load(state_dir)
        own_id = own_name(state_dir).partition(" ")[0]
    except PermissionError as error:
        raise BadConfiguration(
            cause=f"{alone.root} is shared by a cluster whose state in {state_dir} cannot be read",
            cure="Run this as the coordinator's user, or as root",
        ) from error
    if not state.url or authority is None:
        return alone
    store: Store = imported(MODEL_STORE)(state, authority.fingerprint, own_id, alone.root)
    return store


def _require_owner(root: Path) -> None:
    """Root writes into no folder of somebody else, who could have put links there that lead to
    anything.
    """
    if os.geteuid() != 0 or not root.exists() or (owner := root.stat().st_uid) == 0:
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"#{owner}"
    raise BadConfiguration(
        cause=f"the models' folder {root} belongs to {name}, and this runs as root",
        cure=f"Be its owner: sudo -u {shlex.quote(name)} {VARIABLE}={root} imbrex models ...",
    )
