"""Devices that are set aside until a person resumes them, also when the coordinator restarts."""

from __future__ import annotations

from coordinator.trust.cluster_state import DRAINED, QUARANTINED, ClusterState, Entries
from protos.wire.facts import DeviceId

# Several times the devices of a cluster: without an authority, ids can be forged.
MOST_QUARANTINED = 256
_MOST_REASON = 500


class WithheldList:
    """Two documents of the cluster's state; every method raises what that does."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def drained(self) -> dict[DeviceId, str]:
        """The drained devices and their names."""
        entries = self._state.entries(DRAINED)
        return {DeviceId(id_): str(entry.get("name", id_)) for id_, entry in entries.items()}

    def quarantined(self) -> dict[DeviceId, str]:
        """The devices that were proven to compute wrongly, and the evidence."""
        entries = self._state.entries(QUARANTINED)
        return {DeviceId(id_): str(entry.get("evidence", "")) for id_, entry in entries.items()}

    def drain(self, device: DeviceId, name: str) -> None:
        """Adds a drained device."""

        def put(drained: Entries) -> None:
            drained[device] = {"name": name}

        self._state.change((DRAINED,), put)

    def quarantine(self, device: DeviceId, evidence: str) -> None:
        """Adds a device that was proven to compute wrongly."""

        def put(quarantined: Entries) -> None:
            if device not in quarantined and len(quarantined) < MOST_QUARANTINED:
                quarantined[device] = {"evidence": evidence[:_MOST_REASON]}

        self._state.change((QUARANTINED,), put)

    def resume(self, device: DeviceId) -> None:
        """Removes a device from both."""

        def pop(drained: Entries, quarantined: Entries) -> None:
            drained.pop(device, None)
            quarantined.pop(device, None)

        self._state.change((DRAINED, QUARANTINED), pop)
