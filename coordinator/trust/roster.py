"""The list of the cluster's members, which decides, whatever a certificate says, and the join
tokens: kept by their hash, each good for one device (or coordinator) and a limited time.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from coordinator.trust.cluster_state import COORDINATORS, DEVICES, GENERATION, ClusterState, Entries
from protos.errors import BadRequest, Infeasible, NotFound, Unavailable
from protos.trust.identity import secret_hash
from protos.wire.facts import DeviceId

# The cure if workers refuse this list because they have a newer one.
CONFIRM = (
    "If this is a copy of a coordinator that runs elsewhere, stop it. If it was restored from a "
    "backup, remove the devices that had been removed since (`imbrex cluster list`), then run "
    "`imbrex cluster confirm`"
)
_ENTRY = "members"
# In the entry of the coordinator that holds the authority's key.
_SIGNS = "signs"
# Several times the devices of a large home; more open invitations are a mistake.
MAX_OPEN = 256
VALID_FOR = timedelta(hours=1)
_SECRET_BYTES = 24
_COORDINATOR = "coordinator"


class NotInvited(Unavailable):
    """The token does not admit a device."""


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled device or coordinator; `expires` is the end of its certificate."""

    id: DeviceId
    name: str
    since: datetime
    expires: datetime


class Roster:
    """The devices that may compute and the coordinators that may give them orders. Lists are
    numbered by generation, and workers accept none older than theirs.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def members(self) -> dict[DeviceId, Member]:
        """All devices at present."""
        return _members(self._state.entries(DEVICES))

    def coordinators(self) -> dict[DeviceId, Member]:
        """The coordinators by their ids; none if there has only ever been one."""
        return _members(self._state.entries(COORDINATORS))

    def ids(self) -> frozenset[DeviceId]:
        """The devices' ids; cheap, since it is read several times a second."""
        return frozenset(map(DeviceId, self._state.entries(DEVICES)))

    def coordinator_ids(self) -> frozenset[DeviceId]:
        """The coordinators' ids; as cheap."""
        return frozenset(map(DeviceId, self._state.entries(COORDINATORS)))

    @property
    def generation(self) -> int:
        """1, and one more after every device or coordinator that was added or removed."""
        return self._noted("generation", 1)

    @property
    def newest(self) -> int:
        """The highest generation that a worker has reported; 0 if none was newer than this list."""
        return self._noted("newest", 0)

    def _noted(self, name: str, otherwise: int) -> int:
        return int(self._state.entries(GENERATION).get(_ENTRY, {}).get(name, otherwise))

    def note_newer(self, generation: int) -> None:
        """Records that a worker has a list of this generation and refuses this one."""

        def note(noted: Entries) -> None:
            noted.setdefault(_ENTRY, {})["newest"] = generation

        if generation > max(self.newest, self.generation):
            self._state.change((GENERATION,), note)

    def confirm(self) -> bool:
        """Declares this list the right one, so that workers with a newer one accept it. Returns
        whether any has a newer one.
        """

        def declare(noted: Entries) -> bool:
            newest = int(noted.get(_ENTRY, {}).get("newest", 0))
            if newest <= int(noted.get(_ENTRY, {}).get("generation", 1)):
                return False
            noted[_ENTRY] = {"generation": newest + 1}
            return True

        return self._state.change((GENERATION,), declare)

    def admit(self, member: Member) -> None:
        """Adds a device, or records its new certificate."""
        self._state.change(
            (DEVICES, GENERATION), lambda devices, noted: admit(member, devices, noted)
        )

    def remove(self, name: str) -> Member:
        """Removes a device or a coordinator by its id, or by its name if that is unique.

        Raises:
            NotFound: no member matches, or several do.
            BadRequest: it is the coordinator that holds the authority's key.
        """

        def without(devices: Entries, coordinators: Entries, noted: Entries) -> Member:
            members = {**_members(devices), **_members(coordinators)}
            named = [member for member in members.values() if name in (member.id, member.name)]
            if len(named) != 1:
                known = ", ".join(f"{member.name} ({member.id})" for member in members.values())
                raise NotFound(
                    cause=f"{len(named) or 'no'} members are called {name!r}",
                    cure=f"Members: {known or 'none'}; name one of them, or give its id",
                )
            if coordinators.get(named[0].id, {}).get(_SIGNS):
                raise BadRequest(
                    cause=f"{named[0].name} holds the authority's key: removed, it could make "
                    "itself a coordinator again",
                    cure="Make a new authority (`imbrex cluster init --replace`)",
                )
            for listed in (devices, coordinators):
                listed.pop(named[0].id, None)
            _count(noted)
            return named[0]

        return self._state.change((DEVICES, COORDINATORS, GENERATION), without)


def admit(member: Member, listed: Entries, noted: Entries) -> None:
    """Adds a member to a list, or records its new certificate."""
    if member.id not in listed:
        _count(noted)
    listed[member.id] = {
        "name": member.name,
        "since": member.since.isoformat(),
        "expires": member.expires.isoformat(),
    }


def admit_signer(member: Member, listed: Entries, noted: Entries) -> None:
    """Adds the coordinator that holds the authority's key."""
    admit(member, listed, noted)
    listed[member.id][_SIGNS] = True


def _count(noted: Entries) -> None:
    """One generation more. It is stored before the list: if writing stops there, the unchanged list
    is only sent again under the new number.
    """
    kept = noted.setdefault(_ENTRY, {})
    kept["generation"] = int(kept.get("generation", 1)) + 1


def _members(entries: Mapping[str, Mapping[str, Any]]) -> dict[DeviceId, Member]:
    return {
        DeviceId(id_): Member(
            DeviceId(id_),
            str(entry["name"]),
            datetime.fromisoformat(entry["since"]),
            datetime.fromisoformat(entry["expires"]),
        )
        for id_, entry in entries.items()
    }


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


def _drop_expired(entries: Entries, now: datetime) -> None:
    for key, entry in list(entries.items()):
        if datetime.fromisoformat(entry["expires"]) < now:
            del entries[key]
