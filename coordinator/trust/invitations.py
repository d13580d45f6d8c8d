"""Open join tokens, by their hash; each is good for one device (or coordinator) and a limited
time.
"""

import hmac
import secrets
from datetime import datetime, timedelta

from coordinator.trust.cluster_state import Entries
from protos.errors import Infeasible, Unavailable
from protos.trust.identity import secret_hash

# Several times the devices of a large home; more open invitations are a mistake.
MAX_OPEN = 256
VALID_FOR = timedelta(hours=1)
_SECRET_BYTES = 24
_COORDINATOR = "coordinator"


def invite(
    entries: Entries, now: datetime, valid_for: timedelta = VALID_FOR, *, coordinator: bool = False
) -> str:
    """A new secret; the first device (or `coordinator`) that shows it becomes a member.

    Raises:
        Infeasible: too many are open.
    """
    _drop_expired(entries, now)
    if len(entries) >= MAX_OPEN:
        raise Infeasible(
            cause=f"{MAX_OPEN} invitations are open", cure="Wait until some have expired"
        )
    secret, entry = secrets.token_urlsafe(_SECRET_BYTES), {"expires": (now + valid_for).isoformat()}
    entries[secret_hash(secret)] = entry | ({"for": _COORDINATOR} if coordinator else {})
    return secret


def use_up(entries: Entries, secret: str, now: datetime, *, coordinator: bool = False) -> None:
    """Uses up an invitation. Only hashes are compared, in constant time.

    Raises:
        NotInvited: the token is unknown, expired, or was used before, or is for the other kind.
    """
    shown, kind = secret_hash(secret), _COORDINATOR if coordinator else None
    _drop_expired(entries, now)
    found = [
        known
        for known, entry in entries.items()
        if hmac.compare_digest(known, shown) and entry.get("for") == kind
    ]
    for known in found:
        del entries[known]
    if not found:
        raise NotInvited(
            cause="the join token is unknown, has expired, or was used before",
            cure="Make a new one with `imbrex cluster invite"
            + (" --coordinator`" if coordinator else "`"),
        )


class NotInvited(Unavailable):
    """The token does not admit a device."""


def _drop_expired(entries: Entries, now: datetime) -> None:
    for key, entry in list(entries.items()):
        if datetime.fromisoformat(entry["expires"]) < now:
            del entries[key]
