"""Examines a live cluster: questions every device, listens to mDNS, and has peers try each
other.
"""

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version

from coordinator.answers import Check, Diagnosis, Finding
from coordinator.devices.addresses import RETRIED, PeerState, seconds_ago
from coordinator.devices.connection import Connection
from coordinator.devices.discovery import Heard, hear
from coordinator.devices.events import AddressSource
from coordinator.devices.pool import Pool
from coordinator.devices.statuses import MOST_STRANGERS
from coordinator.doctor import machines, networks
from coordinator.doctor.checks import checks
from coordinator.doctor.findings import Absent, Examined, Patient
from coordinator.doctor.frigate import InTime
from coordinator.settings import CoordinatorSettings
from protos.daemon.interfaces import InterfaceRank, best, own_interfaces
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId, Facts

# How long to listen: mDNS queries are answered within a second [RFC 6762, section 6].
LISTEN_S = 2.5
# Devices try to reach each other for two seconds; reading their state takes milliseconds.
EXAMINE_TIMEOUT_S = 10.0
# What a device receives and sends, so that a packet in a hundred would be seen to be lost: some 360
# packets each way, a tenth of a second of Fast Ethernet.
_LOAD_BYTES = 1 << 19
_ORDER = ("error", "warning", "note")

Networks = tuple[ipaddress.IPv4Network, ...]


async def examine(
    pool: Pool, settings: CoordinatorSettings, rate: Callable[[Facts], float]
) -> Examined:
    """Examines the cluster in a few seconds, while requests go on. `rate` is a device's in
    GFLOP/s.
    """
    ready = pool.ready()
    sources = {peer.address: peer.source for peer in pool.peers}
    asked = (
        _patient(connection, sources.get(connection.address, "static"), ready)
        for connection in ready.values()
    )
    listening = hear(settings.interfaces, LISTEN_S) if settings.mdns else _nothing()
    heard, results = await asyncio.gather(listening, asyncio.gather(*asked))
    announced = {announcement.id for announcement in heard}
    called = Counter(connection.facts.name for connection in ready.values())

    def name(facts: Facts) -> str:
        return facts.name if called[facts.name] == 1 else f"{facts.name} ({facts.id})"

    patients = [
        replace(patient, name=name(connection.facts))
        for connection, patient in zip(ready.values(), results, strict=True)
        if isinstance(patient, Patient)
    ]
    return Examined(
        version=version("imbrex"),
        patients=tuple(replace(patient, heard=patient.id in announced) for patient in patients),
        absent=tuple(_absent(pool, rate, own_networks(), time.monotonic())),
        strangers=tuple(peer.address for peer in pool.peers if peer.is_stranger),
        unexamined={
            name(connection.facts): result.cause
            for connection, result in zip(ready.values(), results, strict=True)
            if isinstance(result, ImbrexError)
        },
        listened=settings.mdns,
        others=tuple(sorted({announcement.cluster for announcement in heard} - {settings.cluster})),
    )


def diagnose(
    examined: Examined, known: Iterable[Finding] = (), frigate: InTime | None = None
) -> Diagnosis:
    """All that was looked at, and all problems, the worst first; `known` are some that an
    examination of machines and networks does not find. `frigate`: if it asks here, whether it is
    answered in time.
    """
    found = [*known, *networks.findings(examined)]
    rows: list[Check] = []
    if frigate is not None:
        rows.append(frigate.check())
        found += frigate.findings()
    for patient in examined.patients:
        found += machines.findings(patient, examined.version)
    found.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Diagnosis((*checks(examined, found), *rows), tuple(found))


def own_networks() -> Networks:
    """The IPv4 networks that this machine is in, without those of containers and VPNs."""
    own = own_interfaces()
    loopback = [interface for interface in own if interface.rank is InterfaceRank.LOOPBACK]
    return tuple(interface.network for interface in (*best(own), *loopback))


async def _nothing() -> list[Heard]:
    return []


async def _patient(
    connection: Connection, source: AddressSource, ready: Mapping[DeviceId, Connection]
) -> Patient | ImbrexError:
    """A connected device, or why it could not be examined."""
    neighbours = {
        device: other.address
        for device, other in ready.items()
        if other is not connection and (connection.is_loopback or not other.is_loopback)
    }
    try:
        trip = await connection.ping()
        asked_s = time.time()
        reply = await connection.examine(neighbours, EXAMINE_TIMEOUT_S)
        await connection.ping(_LOAD_BYTES, _LOAD_BYTES)
        loaded = await connection.examine({}, EXAMINE_TIMEOUT_S)
    except ImbrexError as error:
        return error
    return Patient(
        id=connection.facts.id,
        name=connection.facts.name,
        address=connection.address,
        source=source,
        version=connection.version,
        condition=loaded.condition,
        before=reply.condition,
        ahead_s=reply.condition.clock_s - asked_s,
        round_trip_s=trip.seconds,
        unreached={DeviceId(peer.device): peer.error for peer in reply.reached if peer.error},
        celsius=connection.facts.celsius,
        coordinators=connection.coordinators,
        newer_members=connection.newer_members,
        engine=connection.facts.engine,
        engine_speedup=connection.facts.speedup,
        limits=str(connection.facts.limits or ""),
        engines=connection.facts.engines,
        kept=connection.facts.kept,
        refused_engines=connection.facts.refused,
    )


def _absent(
    pool: Pool, rate: Callable[[Facts], float], ours: Networks, now: float
) -> Iterable[Absent]:
    """Addresses that cannot be used; of strangers, at most as many as a home has devices."""
    strangers = 0
    for peer in pool.peers:
        moved_to = pool.replaced_by(peer)
        if peer.is_stranger and moved_to:
            continue
        strangers += peer.is_stranger
        if peer.is_stranger and strangers > MOST_STRANGERS:
            continue
        trying_again = peer.state is PeerState.CONNECTING and peer.attempts
        if peer.state in RETRIED or trying_again:
            facts = pool.last_facts(peer.device_id)
            yield Absent(
                address=peer.address,
                source=peer.source,
                code=peer.code if peer.state is PeerState.REFUSED else "",
                reason=peer.reason,
                cure=peer.cure,
                near=_is_near(peer.address, ours),
                name=facts.name if facts else "",
                seen=seconds_ago(now - peer.alive_s) if facts else "",
                gflops=rate(facts) if facts else 0.0,
                moved_to=moved_to or "",
            )


def _is_near(address: str, ours: Networks) -> bool:
    try:
        ip = ipaddress.IPv4Address(address.rpartition(":")[0])
    except ValueError:
        return True  # a name, or IPv6: assumed to be in this network
    return any(ip in network for network in ours)
