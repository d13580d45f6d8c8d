"""The devices as people and scripts see them: all that is known of each address in one value."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

from coordinator.answers import DeviceStatus
from coordinator.audit.examiner import Examiner
from coordinator.costs.cluster import Device
from coordinator.devices.addresses import SILENT, Peer, PeerState, seconds_ago
from coordinator.devices.connection import Connection
from coordinator.devices.measured import DeviceMeasurements
from coordinator.devices.peer_reachability import Reach
from coordinator.devices.pool import Pool
from coordinator.devices.withheld import Apart, Withheld
from coordinator.doctor.examine import MOST_STRANGERS
from coordinator.measuring.probing import Probing
from coordinator.measuring.profiler import Profiler
from models.tensors.memory import megabytes
from protos.wire.facts import DeviceId, Facts

AsDevice = Callable[[Facts], Device]


class Statuses:
    """Combines membership, connections and measurements into statuses."""

    def __init__(
        self,
        pool: Pool,
        withheld: Withheld,
        measured: DeviceMeasurements,
        probing: Probing,
        profiler: Profiler,
        reach: Reach,
        examiner: Examiner,
    ) -> None:
        self._examiner = examiner
        self._pool = pool
        self._reach = reach
        self._withheld = withheld
        self._measured = measured
        self._probing = probing
        self._profiler = profiler

    def all(self, as_device: AsDevice) -> list[DeviceStatus]:
        """Every known address, ready devices first and other addresses of devices last. Addresses
        that are announced but have never answered are capped at the number of devices of a home.
        """
        connected = {connection.address: connection for connection in self._pool.ready().values()}
        now = time.monotonic()
        found = []
        strangers = 0
        for peer in self._pool.peers:
            connection = connected.get(peer.address)
            if peer.is_stranger and self._pool.replaced_by(peer):
                continue
            strangers += peer.is_stranger
            if peer.is_stranger and strangers > MOST_STRANGERS:
                continue
            if connection is None:
                found.append(self._away(peer, as_device, now))
            else:
                found.append(self._here(peer, connection, as_device, now))
        return sorted(found, key=lambda each: (each.is_alias, each.state != "ready", each.name))

    def _here(
        self, peer: Peer, connection: Connection, as_device: AsDevice, now: float
    ) -> DeviceStatus:
        facts = connection.facts
        apart = self._withheld.of(facts.id, now)
        if apart is None and not self._examiner.may_compute(facts):
            apart = Apart("checking", self._examiner.reason(facts.id), "")
        return replace(
            self._known(peer, facts, as_device),
            state=apart.state if apart else str(peer.state),
            withheld=apart.state if apart else "",
            reason=_sentence(apart.reason, apart.cure) if apart else _note(connection),
            profiled=bool(self._profiler.profile(facts)) and facts.id not in self._probing.unprobed,
            last_seen_s=now - connection.last_seen_s,
            mhz=facts.mhz_now,
            celsius=facts.celsius,
            throttled=facts.throttled,
            unreachable=self._unreachable_names(facts.id),
            shared_with=tuple(map(str, connection.coordinators)),
            others_share=connection.others.share,
        )

    def _known(self, peer: Peer, facts: Facts, as_device: AsDevice) -> DeviceStatus:
        """What stays known of a device that goes: its name, what it is, and its last rates."""
        device = as_device(facts)
        return replace(
            _stranger(peer),
            id=facts.id,
            name=facts.name,
            cpu=facts.cpu,
            cores=facts.cores,
            memory_bytes=facts.memory_bytes,
            pace=facts.pace,
            gflops=self._measured.gflops(device),
            mbps=device.link.bytes_per_s * 8e-6,
            correction=self._measured.correction(facts.id),
            fingerprint=facts.fingerprint,
            threads=facts.threads,
            concurrency=facts.concurrency,
            facts=asdict(facts),
        )

    def _unreachable_names(self, device: DeviceId) -> tuple[str, ...]:
        """Devices that this one cannot reach."""
        ready = self._pool.ready()
        others = {each for pair in self._reach.apart if device in pair for each in pair - {device}}
        return tuple(sorted(ready[each].facts.name for each in others & ready.keys()))

    def _away(self, peer: Peer, as_device: AsDevice, now: float) -> DeviceStatus:
        facts = self._pool.last_facts(peer.device_id)
        apart = self._withheld.of(peer.device_id, now) if peer.device_id else None
        told = apart is not None and peer.state is not PeerState.ALIAS
        silent_s = now - peer.alive_s
        reason = _sentence(peer.reason, peer.cure)
        if facts is None:
            status = _stranger(peer)
        else:
            status = self._known(peer, facts, as_device)
            if peer.state in SILENT:
                reason = f"{facts.name} is off or its worker has stopped"
                reason += f"; last seen {seconds_ago(silent_s)}"
        return replace(
            status,
            reason=f"{reason} ({apart.state})" if apart and told else reason,
            withheld=apart.state if apart and told else "",
            last_seen_s=silent_s,
        )


def _stranger(peer: Peer) -> DeviceStatus:
    """An address at which no device has answered since the start."""
    return DeviceStatus(
        id=peer.device_id or "",
        name=peer.address,
        address=peer.address,
        state=str(peer.state),
        reason="",
        source=peer.source,
        host=peer.source == "host",
        last_seen_s=math.inf,
    )


def status_of(device: DeviceId, devices: Iterable[DeviceStatus]) -> DeviceStatus:
    """The status of a device among those of `devices`. Of one that has not been seen since the
    start, only the id is known.
    """
    return next((each for each in devices if each.id == device), _unseen(device))


def _unseen(device: DeviceId) -> DeviceStatus:
    return DeviceStatus(
        id=device,
        name=device,
        address="",
        state=str(PeerState.WAITING),
        reason="it is not connected",
        source="",
        host=False,
        last_seen_s=math.inf,
    )


def _note(connection: Connection) -> str:
    """What a device waits for before it can take part, or which other coordinators use it."""
    if connection.programs.arriving is not None:
        there, altogether = connection.programs.arriving
        return f"weights: {megabytes(there)} of {megabytes(altogether)}"
    notes = []
    if connection.coordinators:
        others = ", ".join(map(str, connection.coordinators))
        notes.append(f"it also works for another coordinator: {others}")
    if connection.newer_members:
        notes.append("it has a newer list of members than this coordinator (see `imbrex doctor`)")
    return "; ".join(notes)


def _sentence(cause: str, cure: str) -> str:
    return " ".join(part for part in (cause, cure) if part)
