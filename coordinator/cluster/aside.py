"""Devices that are connected and get no new work: drained by a person, or in quarantine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordinator.cluster.ledger import changing, read_entries
from coordinator.cluster.quarantine import Quarantine
from coordinator.tasks.plan import DeviceId
from protos.errors import NotFound

DRAINED_FILE = "drained.json"

AsideState = Literal["checking", "draining", "drained", "quarantined"]


@dataclass(frozen=True, slots=True)
class Apart:
    """Why a device gets no new work, and what brings it back."""

    state: AsideState
    reason: str
    cure: str

    @property
    def is_out(self) -> bool:
        """Whether it may not even finish what it was given."""
        return self.state != "draining"


class Aside:
    """Who is set aside. What people drained outlives the coordinator, in its state directory."""

    def __init__(self, state_dir: Path) -> None:
        """Raises:
        BadConfiguration: the list of drained devices cannot be read.
        """
        self.quarantine = Quarantine()
        self._path = state_dir / DRAINED_FILE
        entries = read_entries(self._path)
        self._drained = {DeviceId(id_): str(each.get("name", id_)) for id_, each in entries.items()}
        self._finishing: set[DeviceId] = set()

    def of(self, device: DeviceId, now: float) -> Apart | None:
        """Why a device is set aside, if it is."""
        back = f"`imbrex resume {self._drained.get(device, device)}` uses it again"
        if device in self._finishing:
            return Apart("draining", "it finishes what it was given", back)
        if device in self._drained:
            return Apart("drained", "it was drained, and gets no work", back)
        if reason := self.quarantine.reason(device, now):
            cure = f"See to its memory, power and clock rates; `imbrex resume {device}` trusts it"
            return Apart("quarantined", reason, cure)
        return None

    def drain(self, device: DeviceId, name: str) -> None:
        """No new work from now on; it is `draining` until `finished`.

        Raises:
            BadConfiguration: the list cannot be written.
        """
        if device in self._drained:
            return
        with changing(self._path) as entries:
            entries[device] = {"name": name}
        self._drained[device] = name
        self._finishing.add(device)

    def finished(self, device: DeviceId) -> None:
        """Nothing runs there any more."""
        self._finishing.discard(device)

    def find(self, name: str) -> DeviceId | None:
        """The drained device of this id, or of this name if only one has it."""
        found = [device for device, called in self._drained.items() if name in (device, called)]
        return found[0] if len(found) == 1 else None

    def resume(self, device: DeviceId, now: float) -> None:
        """Uses it again, whatever it was set aside for.

        Raises:
            NotFound: it wasn't.
            BadConfiguration: the list cannot be written.
        """
        if self.of(device, now) is None:
            raise NotFound(
                cause=f"device {device} is neither drained nor in quarantine",
                cure="See `imbrex status`",
            )
        with changing(self._path) as entries:
            entries.pop(device, None)
        self.quarantine.pardon(device)
        self._drained.pop(device, None)
        self._finishing.discard(device)
