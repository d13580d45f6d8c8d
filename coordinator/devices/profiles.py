"""The profiles of the devices' kinds: in memory, on disk, and shared with other coordinators."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import structlog

from coordinator.costs.cluster import EndpointOverhead
from coordinator.costs.profile_json import parse_profile, save_profile
from coordinator.costs.regression import DeviceProfile
from coordinator.trust.cluster_state import PROFILES, ClusterState, Entries
from protos.daemon.files import write_atomically
from protos.errors import ImbrexError
from protos.wire.facts import Facts

# Kinds of devices; a home has a handful, each a few kilobytes.
MOST_KINDS = 256
# Of these, as many as other coordinators are told: the cluster's state is small.
_MOST_SHARED = 32

log = structlog.get_logger(__name__)


class Profiles:
    """Alike devices share one profile, by the fingerprint of their facts."""

    def __init__(self, folder: Path, state: ClusterState) -> None:
        self._folder = folder
        self._state = state if state.url else None
        self._profiles: dict[str, DeviceProfile | None] = {}
        self._saving: set[asyncio.Task[None]] = set()
        # Devices of one kind share a file.
        self._writing = asyncio.Lock()

    def of(self, facts: Facts) -> DeviceProfile | None:
        """The profile of this device's kind, if it was ever measured here."""
        kind = facts.fingerprint
        if kind not in self._profiles:
            self._keep(kind, self._load(kind))
        return self._profiles[kind]

    async def put(self, kind: str, profile: DeviceProfile, *, share: bool = True) -> None:
        """A kind was measured: saves its profile, for the other coordinators, too."""
        await self._write(kind, profile)
        if share:
            await self._tell(kind, profile)
        self._keep(kind, profile)

    def learned(self, facts: Facts, endpoint: EndpointOverhead) -> None:
        """Saves what requests showed of the event loops of such devices with their profile."""
        profile = self.of(facts)
        if profile is None or profile.endpoint == endpoint:
            return
        known = replace(profile, endpoint=endpoint)
        self._keep(facts.fingerprint, known)
        saving = asyncio.create_task(self._write(facts.fingerprint, known))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def saved(self) -> None:
        """Returns when everything is on disk."""
        await asyncio.gather(*self._saving)

    def _keep(self, kind: str, profile: DeviceProfile | None) -> None:
        if len(self._profiles) >= MOST_KINDS and kind not in self._profiles:
            del self._profiles[next(iter(self._profiles))]
        self._profiles[kind] = profile

    # ------------------------------------------------------------ other coordinators

    def of_others(self, key: str) -> DeviceProfile | None:
        """What another coordinator has measured of such devices."""
        if self._state is None:
            return None
        try:
            entry = self._state.entries(PROFILES).get(key)
            return None if entry is None else parse_profile(str(entry["profile"]))
        except ImbrexError as error:
            log.warning("another coordinator's profile is not used", cause=error.cause)
            return None

    async def _tell(self, key: str, profile: DeviceProfile) -> None:
        """Lets the other coordinators use a profile instead of measuring again."""
        if self._state is None:
            return
        text = json.dumps(json.loads(save_profile(profile)))

        def put(profiles: Entries) -> None:
            profiles.pop(key, None)
            for oldest in list(profiles)[: max(0, len(profiles) + 1 - _MOST_SHARED)]:
                del profiles[oldest]
            profiles[key] = {"profile": text}

        try:
            await asyncio.to_thread(self._state.change, (PROFILES,), put)
        except ImbrexError as error:
            log.warning("the profile is not shared", cause=error.cause)

    # ------------------------------------------------------------ disk

    def _load(self, key: str) -> DeviceProfile | None:
        try:
            return parse_profile((self._folder / f"{key}.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ImbrexError) as error:
            log.warning("a saved profile is ignored and measured again", error=str(error))
            return None

    async def _write(self, key: str, profile: DeviceProfile) -> None:
        async with self._writing:
            await asyncio.to_thread(self._save, key, profile)

    def _save(self, key: str, profile: DeviceProfile) -> None:
        path = self._folder / f"{key}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, save_profile(profile).encode())
        except OSError as error:
            # The price is a new measurement at the next start.
            log.warning("a profile cannot be saved", path=str(path), error=str(error))
