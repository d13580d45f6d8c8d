"""The list of the cluster's members, which decides, whatever a certificate says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coordinator.cluster.authority import FOLDER
from coordinator.cluster.ledger import Entries, Followed, changing
from coordinator.tasks.plan import DeviceId
from protos.errors import NotFound

# The cure if workers refuse this list because they have a newer one.
CONFIRM = (
    "If this is a copy of a coordinator that runs elsewhere, stop it. If it was restored from a "
    "backup, remove the devices that had been removed since (`imbrex cluster list`), then run "
    "`imbrex cluster confirm`"
)
_ENTRY = "members"


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled device; `expires` is the end of its certificate."""

    id: DeviceId
    name: str
    since: datetime
    expires: datetime


class Roster:
    """The list in the coordinator's state directory; the daemon notices the changes of the command
    line. Lists are numbered by generation, and workers accept none older than theirs.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FOLDER / "devices.json"
        self._file = Followed(self._path)
        self._generation_path = state_dir / FOLDER / "generation.json"
        self._generation_file = Followed(self._generation_path)

    def members(self) -> dict[DeviceId, Member]:
        """All members at present."""
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
        """The members' ids; cheap, since it is read several times a second."""
        return frozenset(map(DeviceId, self._file.entries()))

    @property
    def generation(self) -> int:
        """1, and one more after every device that was added or removed."""
        return self._noted("generation", 1)

    @property
    def newest(self) -> int:
        """The highest generation that a worker has reported; 0 if none was newer than this list."""
        return self._noted("newest", 0)

    def _noted(self, name: str, otherwise: int) -> int:
        return int(self._generation_file.entries().get(_ENTRY, {}).get(name, otherwise))

    def note_newer(self, generation: int) -> None:
        """Records that a worker has a list of this generation and refuses this one."""
        if generation > max(self.newest, self.generation):
            with changing(self._generation_path) as entries:
                entries.setdefault(_ENTRY, {})["newest"] = generation

    def confirm(self) -> bool:
        """Declares this list the right one, so that workers with a newer one accept it. Returns
        whether any has a newer one.
        """
        if self.newest <= self.generation:
            return False
        with changing(self._generation_path) as entries:
            entries[_ENTRY] = {"generation": self.newest + 1}
        return True

    @contextmanager
    def _changing(self) -> Iterator[Entries]:
        """The list, to be changed in place. The new generation is written first: if writing stops
        there, the unchanged list is only sent again under the new number.
        """
        with changing(self._path) as entries:
            before = set(entries)
            yield entries
            if set(entries) != before:
                with changing(self._generation_path) as noted:
                    kept = noted.setdefault(_ENTRY, {})
                    kept["generation"] = int(kept.get("generation", 1)) + 1

    def admit(self, member: Member) -> None:
        """Adds a device, or records its new certificate."""
        with self._changing() as entries:
            entries[member.id] = {
                "name": member.name,
                "since": member.since.isoformat(),
                "expires": member.expires.isoformat(),
            }

    def remove(self, name: str) -> Member:
        """Removes a device by its id, or by its name if that is unique.

        Raises:
            NotFound: no member matches, or several do.
        """
        members = self.members()
        named = [each for each in members.values() if name in (each.id, each.name)]
        if len(named) != 1:
            known = ", ".join(f"{each.name} ({each.id})" for each in members.values())
            raise NotFound(
                cause=f"{len(named) or 'no'} members are called {name!r}",
                cure=f"Members: {known or 'none'}; name one of them, or give its id",
            )
        with self._changing() as entries:
            entries.pop(named[0].id, None)
        return named[0]
