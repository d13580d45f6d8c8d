"""The devices that belong to the cluster: the list that decides, whatever a certificate says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coordinator.cluster.authority import FOLDER
from coordinator.cluster.ledger import Followed, changing
from coordinator.planning.plan import DeviceId
from protos.errors import NotFound


@dataclass(frozen=True, slots=True)
class Member:
    """A device that was enrolled; `expires` is the end of its certificate."""

    id: DeviceId
    name: str
    since: datetime
    expires: datetime


class Roster:
    """Kept in the coordinator's state directory; the daemon follows what the command line
    changes there.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FOLDER / "devices.json"
        self._file = Followed(self._path)

    def members(self) -> dict[DeviceId, Member]:
        """All of them, as they are now."""
        return {
            DeviceId(device): Member(
                DeviceId(device),
                str(entry["name"]),
                datetime.fromisoformat(entry["since"]),
                datetime.fromisoformat(entry["expires"]),
            )
            for device, entry in self._file.entries().items()
        }

    def ids(self) -> frozenset[DeviceId]:
        """Their ids: asked several times a second."""
        return frozenset(map(DeviceId, self._file.entries()))

    def admit(self, member: Member) -> None:
        """Adds a device, or notes its new certificate."""
        with changing(self._path) as entries:
            entries[member.id] = {
                "name": member.name,
                "since": member.since.isoformat(),
                "expires": member.expires.isoformat(),
            }

    def remove(self, name: str) -> Member:
        """Takes a device off the list, by its id, or by its name if only one has it.

        Raises:
            NotFound: none, or several.
        """
        members = self.members()
        named = [each for each in members.values() if name in (each.id, each.name)]
        if len(named) != 1:
            known = ", ".join(f"{each.name} ({each.id})" for each in members.values())
            raise NotFound(
                cause=f"{len(named) or 'no'} members are called {name!r}",
                cure=f"Members are {known or 'none'}; name one of them, or give its id",
            )
        with changing(self._path) as entries:
            entries.pop(named[0].id, None)
        return named[0]
