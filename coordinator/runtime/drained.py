"""The list of drained devices on disk: they stay drained when the coordinator restarts."""

from __future__ import annotations

from pathlib import Path

from coordinator.cluster.ledger import changing, read_entries
from coordinator.tasks.plan import DeviceId

DRAINED_FILE = "drained.json"


class DrainedFile:
    """A file in the state directory; every method raises BadConfiguration if it cannot be used."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / DRAINED_FILE

    def read(self) -> dict[DeviceId, str]:
        """The drained devices and their names."""
        entries = read_entries(self._path)
        return {DeviceId(id_): str(each.get("name", id_)) for id_, each in entries.items()}

    def add(self, device: DeviceId, name: str) -> None:
        """Adds a device."""
        with changing(self._path) as entries:
            entries[device] = {"name": name}

    def remove(self, device: DeviceId) -> None:
        """Removes a device if it is listed."""
        with changing(self._path) as entries:
            entries.pop(device, None)
