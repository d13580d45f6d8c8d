"""Open join tokens, hashed; each is good for one device and a limited time."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta
from pathlib import Path

from coordinator.cluster.authority import FOLDER
from coordinator.cluster.ledger import changing
from protos.errors import Infeasible, Unavailable
from protos.identity import secret_hash

# Several times the devices of a large home; more open invitations are a mistake.
MAX_OPEN = 256
VALID_FOR = timedelta(hours=1)
_SECRET_BYTES = 24


class Invitations:
    """Invitations in the coordinator's state directory, by the hash of their secret."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FOLDER / "invitations.json"

    def open(self, now: datetime, valid_for: timedelta = VALID_FOR) -> str:
        """A new secret; the first device that shows it becomes a member.

        Raises:
            Infeasible: too many are open.
        """
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        with changing(self._path) as entries:
            _drop_expired(entries, now)
            if len(entries) >= MAX_OPEN:
                raise Infeasible(
                    cause=f"{MAX_OPEN} invitations are open", cure="Wait until some have expired"
                )
            entries[secret_hash(secret)] = {"expires": (now + valid_for).isoformat()}
        return secret

    def take(self, secret: str, now: datetime) -> None:
        """Uses up an invitation. Only hashes are compared, in constant time.

        Raises:
            NotInvited: the token is unknown, expired, or was used before.
        """
        shown = secret_hash(secret)
        with changing(self._path) as entries:
            _drop_expired(entries, now)
            found = [known for known in entries if hmac.compare_digest(known, shown)]
            for known in found:
                del entries[known]
        if not found:
            raise NotInvited(
                cause="the join token is unknown, has expired, or was used before",
                cure="Make a new one with `imbrex cluster invite`",
            )


class NotInvited(Unavailable):
    """The token does not admit a device."""


def _drop_expired(entries: dict[str, dict[str, str]], now: datetime) -> None:
    for key, entry in list(entries.items()):
        if datetime.fromisoformat(entry["expires"]) < now:
            del entries[key]
