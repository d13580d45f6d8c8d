"""The devices that belong to the cluster: the list that decides, whatever a certificate says."""

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

# Of a list that workers do not take, since they know a newer one.
CONFIRM = (
    "If this is a copy of a coordinator that runs elsewhere, stop it. If it was restored from a "
    "backup, remove the devices that had been removed since (`imbrex cluster list`), then run "
    "`imbrex cluster confirm`"
)
_ENTRY = "members"


@dataclass(frozen=True, slots=True)
class Member:
    """A device that was enrolled; `expires` is the end of its certificate."""

    id: DeviceId
    name: str
    since: datetime
    expires: datetime


class Roster:
    """Kept in the coordinator's state directory; the daemon follows what the command line
    changes there. Workers take no list older than one that they know: each has a generation.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FOLDER / "devices.json"
        self._file = Followed(self._path)
        self._generation_path = state_dir / FOLDER / "generation.json"
        self._generation_file = Followed(self._generation_path)

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

    @property
    def generation(self) -> int:
        """1, and one more for every device that came or went."""
        return self._noted("generation", 1)

    @property
    def newest(self) -> int:
        """The highest generation that workers have told of; 0: none was higher than ours."""
        return self._noted("newest", 0)

    def _noted(self, name: str, otherwise: int) -> int:
        return int(self._generation_file.entries().get(_ENTRY, {}).get(name, otherwise))

    def note_newer(self, generation: int) -> None:
        """A worker knows a list of this generation, and so does not take ours."""
        if generation > max(self.newest, self.generation):
            with changing(self._generation_path) as entries:
                entries.setdefault(_ENTRY, {})["newest"] = generation

    def confirm(self) -> bool:
        """This list is the right one: workers that know a newer one take it. Whether any does."""
        if self.newest <= self.generation:
            return False
        with changing(self._generation_path) as entries:
            entries[_ENTRY] = {"generation": self.newest + 1}
        return True

    @contextmanager
    def _changing(self) -> Iterator[Entries]:
        """The list, to be changed in place. Its generation is written first: a list that is told
        under its next number is told once more.
        """
        with changing(self._path) as entries:
            before = set(entries)
            yield entries
            if set(entries) != before:
                with changing(self._generation_path) as noted:
                    kept = noted.setdefault(_ENTRY, {})
                    kept["generation"] = int(kept.get("generation", 1)) + 1

    def admit(self, member: Member) -> None:
        """Adds a device, or notes its new certificate."""
        with self._changing() as entries:
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
                cure=f"Members: {known or 'none'}; name one of them, or give its id",
            )
        with self._changing() as entries:
            entries.pop(named[0].id, None)
        return named[0]
