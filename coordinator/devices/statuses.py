"""The devices as people and scripts see them: all that is known of each address in one value."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Set
from dataclasses import asdict, replace

from coordinator.answers import DeviceStatus
from coordinator.devices.addresses import SILENT, Peer, PeerState, seconds_ago
from coordinator.devices.connection import Connection
from coordinator.devices.devices import Devices
from models.tensors.memory import megabytes
from protos.wire.facts import DeviceId, Facts

# More addresses without a worker than this are left out, or reported together.
MOST_STRANGERS = 16


def statuses(devices: Devices, unprobed: Set[DeviceId] = frozenset()) -> list[DeviceStatus]:
    """Every known address, ready devices first and other addresses of devices last. Addresses that
    are announced but have never answered are capped at the number of devices of a home. The links
    of `unprobed` devices are being measured.
    """
    pool, now = devices.pool, time.monotonic()
    connected = {connection.address: connection for connection in pool.ready().values()}
    listed = []
    strangers = 0
    for peer in pool.peers:
        connection = connected.get(peer.address)
        if peer.is_stranger and pool.replaced_by(peer):
            continue
        strangers += peer.is_stranger
        if peer.is_stranger and strangers > MOST_STRANGERS:
            continue
        if connection is None:
            listed.append(_away(devices, peer, now))
        else:
            listed.append(_here(devices, peer, connection, unprobed, now))
    return sorted(
        listed, key=lambda status: (status.is_alias, status.state != "ready", status.name)
    )


def _here(
    devices: Devices, peer: Peer, connection: Connection, unprobed: Set[DeviceId], now: float
) -> DeviceStatus:
    facts = connection.facts
    withheld = devices.withheld.of(facts.id, now, facts)
    return replace(
        _known(devices, peer, facts),
        state=withheld.state if withheld else str(peer.state),
        withheld=withheld.state if withheld else "",
        reason=_sentence(withheld.reason, withheld.cure) if withheld else _note(connection),
        profiled=bool(devices.profiles.of(facts)) and facts.id not in unprobed,
        last_seen_s=now - connection.last_seen_s,
        mhz=facts.mhz_now,
        celsius=facts.celsius,
        throttled=facts.throttled,
        unreachable=_unreachable_names(devices, facts.id),
        shared_with=tuple(map(str, connection.coordinators)),
        others_share=connection.others.share,
    )


def _known(devices: Devices, peer: Peer, facts: Facts) -> DeviceStatus:
    """What stays known of a device that goes: its name, what it is, and its last rates."""
    device = devices.described(facts)
    return replace(
        _stranger(peer),
        id=facts.id,
        name=facts.name,
        cpu=facts.cpu,
        cores=facts.cores,
        memory_bytes=facts.memory_bytes,
        pace=facts.pace,
        gflops=devices.measured.gflops(device),
        mbps=device.link.bytes_per_s * 8e-6,
        correction=devices.measured.correction(facts.id),
        fingerprint=facts.fingerprint,
        threads=facts.threads,
        concurrency=facts.concurrency,
        facts=asdict(facts),
    )


def _unreachable_names(devices: Devices, device: DeviceId) -> tuple[str, ...]:
    """Devices that this one cannot reach."""
    ready = devices.pool.ready()
    others = {other for pair in devices.reach.apart if device in pair for other in pair - {device}}
    return tuple(sorted(ready[other].facts.name for other in others & ready.keys()))


def _away(devices: Devices, peer: Peer, now: float) -> DeviceStatus:
    facts = devices.pool.last_facts(peer.device_id)
    withheld = devices.withheld.of(peer.device_id, now) if peer.device_id else None
    is_shown = withheld is not None and peer.state is not PeerState.ALIAS
    silent_s = now - peer.alive_s
    reason = _sentence(peer.reason, peer.cure)
    if facts is None:
        status = _stranger(peer)
    else:
        status = _known(devices, peer, facts)
        if peer.state in SILENT:
            reason = f"{facts.name} is off or its worker has stopped"
            reason += f"; last seen {seconds_ago(silent_s)}"
    return replace(
        status,
        reason=f"{reason} ({withheld.state})" if withheld and is_shown else reason,
        withheld=withheld.state if withheld and is_shown else "",
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
    return next((status for status in devices if status.id == device), _unseen(device))


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
