"""API keys for clients: stored as hashes, each with a role.

Without any key, everybody who can reach the port may do everything; once there is one, nobody may
do anything without a key.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from coordinator.trust.cluster_state import KEYS, ClusterState
from coordinator.trust.json_files import Entries
from protos.errors import BadRequest, Infeasible, NotFound
from protos.trust.identity import secret_hash

# One per client of a home; each request is compared with all of them.
MAX_KEYS = 64
_SECRET_BYTES = 24
_PREFIX = "imbrex_"  # lets scanners for leaked secrets recognise one


class Role(StrEnum):
    """What a key permits: to read and send requests, or also to change things."""

    INFER = "infer"
    ADMIN = "admin"


class NoKey(BadRequest):
    """The caller showed no key, or an unknown one."""

    code: ClassVar[str] = "no_key"


class NotAllowed(BadRequest):
    """The caller's key does not permit this."""

    code: ClassVar[str] = "not_allowed"


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret."""

    name: str
    role: Role


class Keys:
    """The keys of the cluster; the daemon notices the changes of the command line."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def all(self) -> list[Key]:
        """Every key."""
        return [Key(name, Role(entry["role"])) for name, entry in self._state.entries(KEYS).items()]

    def add(self, name: str, role: Role) -> str:
        """Adds a key; returns its secret, which is not stored.

        Raises:
            BadRequest: the name is taken.
            Infeasible: there are too many keys.
        """
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)

        def put(entries: Entries) -> None:
            if name in entries:
                raise BadRequest(
                    cause=f"there is already a key called {name!r}",
                    cure=f"Revoke it (`imbrex cluster revoke {name}`), or choose another name",
                )
            if len(entries) >= MAX_KEYS:
                raise Infeasible(
                    cause=f"there are {MAX_KEYS} keys", cure="Revoke one: `imbrex cluster revoke`"
                )
            entries[name] = {"sha256": secret_hash(secret), "role": role.value}

        self._state.change((KEYS,), put)
        return secret

    def remove(self, name: str) -> None:
        """Revokes a key at once.

        Raises:
            NotFound: there is no key with this name.
        """

        def pop(entries: Entries) -> None:
            if entries.pop(name, None) is None:
                known = ", ".join(entries) or "none"
                raise NotFound(cause=f"no key is called {name!r}", cure=f"Known keys: {known}")

        self._state.change((KEYS,), pop)

    @property
    def in_use(self) -> bool:
        """Whether there is any key."""
        return bool(self._state.entries(KEYS))

    def holder(self, shown: str | None) -> Key | None:
        """The key with this secret; None if it is unknown. Hashes are compared in constant time,
        and with all keys.
        """
        shown_hash = secret_hash(shown or "")
        held = [
            Key(name, Role(entry["role"]))
            for name, entry in self._state.entries(KEYS).items()
            if hmac.compare_digest(str(entry["sha256"]), shown_hash)
        ]
        return held[0] if held else None

    def require(self, shown: str | None, role: Role) -> Key | None:
        """Checks that the key permits the role, and returns the key; None if there are no keys.

        Raises:
            NoKey: the key is missing or unknown.
            NotAllowed: its role is not sufficient.
        """
        if not self.in_use:
            return None
        held = self.holder(shown)
        if held is None:
            raise NoKey(
                cause="an unknown API key was sent" if shown else "no API key was sent",
                cure="Send one as `Authorization: Bearer KEY` or `X-API-Key: KEY`; "
                "`imbrex cluster key` makes one",
            )
        if role is Role.ADMIN and held.role is not Role.ADMIN:
            raise NotAllowed(
                cause="this key may send requests and read, but not change anything",
                cure="Use a key with the role admin",
            )
        return held
