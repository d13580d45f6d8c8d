"""Keys of the coordinator's interfaces for clients: kept as hashes, each with a role.

Without any key everybody who reaches the port may do everything; with the first one nobody may do
anything without.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from coordinator.cluster.ledger import Followed, changing
from protos.errors import BadRequest, Infeasible, NotFound
from protos.identity import secret_hash

# One per client of a home; each is compared with at every request.
MAX_KEYS = 64
_SECRET_BYTES = 24
_PREFIX = "imbrex_"  # lets scanners for leaked secrets recognise one


class Role(StrEnum):
    """What the holder of a key may do: ask and look, or also change things."""

    INFER = "infer"
    ADMIN = "admin"


class NoKey(BadRequest):
    """The caller showed no key, or an unknown one."""

    code: ClassVar[str] = "no_key"


class NotAllowed(BadRequest):
    """The caller's key is not for this."""

    code: ClassVar[str] = "not_allowed"


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret."""

    name: str
    role: Role


class Keys:
    """Kept in the coordinator's state directory; the daemon follows what the command line changes
    there.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "keys.json"
        self._file = Followed(self._path)

    def all(self) -> list[Key]:
        """Every key."""
        return [Key(name, Role(entry["role"])) for name, entry in self._file.entries().items()]

    def add(self, name: str, role: Role) -> str:
        """A new key; its secret is told this once.

        Raises:
            BadRequest: the name is taken.
            Infeasible: there are too many.
        """
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        with changing(self._path) as entries:
            if name in entries:
                raise BadRequest(
                    cause=f"there is already a key called {name!r}",
                    cure="Remove it, or choose another name",
                )
            if len(entries) >= MAX_KEYS:
                raise Infeasible(cause=f"there are {MAX_KEYS} keys", cure="Remove one")
            entries[name] = {"sha256": secret_hash(secret), "role": role.value}
        return secret

    def remove(self, name: str) -> None:
        """Ends a key, at once.

        Raises:
            NotFound: there is none of this name.
        """
        with changing(self._path) as entries:
            if entries.pop(name, None) is None:
                known = ", ".join(entries) or "none"
                raise NotFound(cause=f"no key is called {name!r}", cure=f"Known keys: {known}")

    @property
    def in_use(self) -> bool:
        """Whether there is any key."""
        return bool(self._file.entries())

    def holder(self, shown: str | None) -> Key | None:
        """Whose key this is; None if it is unknown. Hashes are compared in constant time, and with
        every key.
        """
        shown_hash = secret_hash(shown or "")
        held = [
            Key(name, Role(entry["role"]))
            for name, entry in self._file.entries().items()
            if hmac.compare_digest(str(entry["sha256"]), shown_hash)
        ]
        return held[0] if held else None

    def require(self, shown: str | None, role: Role) -> Key | None:
        """Lets the call go on if this key allows it, and tells whose it is; None where there are no
        keys.

        Raises:
            NoKey: none was shown, or an unknown one.
            NotAllowed: it is for less.
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
